"""Birkhoff-von Neumann: the whole iteration's traffic matrix as a cycle of permutations.

Traffic-matrix scheduling of Porter et al., "Integrating Microsecond Circuit Switching into the Data
Center" (Mordia), SIGCOMM 2013: scale the matrix to equal line sums (Sinkhorn), decompose it into K
permutations (Birkhoff), and repeat them with slots in proportion to their weights. The mean slot is
ten reconfiguration delays, as RotorNet's, so that a period is 10 K tau and light is on for 90 %.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from scheduler.policies.base import Planner
from scheduler.policies.cycles import slot_length, weighted_slots
from scheduler.policies.decomposition import (
    among,
    birkhoff,
    both_ways,
    demand,
    sinkhorn,
    stuffed,
    useful,
)
from scheduler.policies.matchings import alike
from topologies.errors import UsageError

if TYPE_CHECKING:
    from scheduler.model.problem import Problem
    from scheduler.model.program import TimedProgram
    from scheduler.model.taskgraph import Int64s
    from scheduler.policies.decomposition import Turn

__all__ = ["Bvn", "choose"]

_BALANCE: Final = {"sinkhorn": sinkhorn, "stuff": stuffed}


def choose(option: str, value: str, known: tuple[str, ...], where: str) -> None:
    """Refuse a value that an option does not have."""
    if value not in known:
        why = f"it is {' or '.join(known)}"
        raise UsageError(f"{option}={value!r}", where, why, f"write {option}={known[0]}")


class Bvn(Planner):
    """Birkhoff-von Neumann: permutations of the whole iteration's traffic, over and over.

    `planes=aligned`: all planes change together; `staggered`: one after the other, equally spaced.
    `balance=sinkhorn` scales the matrix to equal line sums, `stuff` adds dummy demand instead.
    """

    name: ClassVar[str] = "bvn"

    def __init__(
        self,
        slot_ns: int | None = None,
        phase_ns: int = 0,
        planes: str = "aligned",
        balance: str = "sinkhorn",
    ) -> None:
        choose("planes", planes, ("aligned", "staggered"), self.name)
        choose("balance", balance, tuple(_BALANCE), self.name)
        self.slot_ns = slot_ns
        self.phase_ns = phase_ns
        self.planes = planes
        self.balance = balance

    def plan(self, problem: Problem) -> TimedProgram:
        """Decompose and repeat; raises `UsageError` where there are no circuits or no light."""
        fabric = problem.fabric
        groups = alike(fabric, self.name)
        slot_ns = slot_length(fabric, self.slot_ns, self.name)
        total = demand(problem.graph)
        turns: dict[int, list[Turn]] = {}
        for (members, duplex), planes in groups.items():
            matrix = among(total, members, duplex=duplex)
            turns |= dict.fromkeys(planes, self._decomposed(matrix, duplex=duplex))
        staggered = self.planes == "staggered"
        return weighted_slots(fabric, turns, slot_ns, self.phase_ns, staggered=staggered)

    def _decomposed(self, matrix: Int64s, *, duplex: bool) -> list[Turn]:
        if not matrix.any():
            return []
        turns = birkhoff(_BALANCE[self.balance](matrix))
        return useful(both_ways(turns) if duplex else turns, matrix)
