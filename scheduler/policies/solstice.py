"""Solstice: few permutations, long ones first, and the rest for somebody else.

Liu et al., "Scheduling Techniques for Hybrid Circuit/Packet Networks", CoNEXT 2015: stuff the
matrix to equal line sums, peel perfect matchings by a halving threshold, each for as long as its
least entry, until what is left fits the packet network. Their evaluation takes a new matrix every
150 reconfiguration delays (3 ms of 20 us): the period here, unless that leaves a slot less than ten
delays.

Where the residue goes: with an `eps` plane to that plane, which serves every queue besides. Without
one no packet network exists, so when the threshold falls below what a plane carries in one
reconfiguration delay (a slot would be dark for longer than lit), what is left gets slots of its own
at the end of the cycle, as few as there can be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from scheduler.policies.base import Planner
from scheduler.policies.bvn import choose
from scheduler.policies.cycles import slot_length, weighted_slots
from scheduler.policies.decomposition import (
    Turn,
    among,
    both_ways,
    cover,
    cover_both_ways,
    demand,
    halving,
    served,
    stuffed,
    useful,
)
from scheduler.policies.matchings import alike

if TYPE_CHECKING:
    from scheduler.model.problem import Problem
    from scheduler.model.program import TimedProgram
    from scheduler.model.taskgraph import Int64s
    from topologies.fabric import Fabric

__all__ = ["Solstice"]

_DELAYS_PER_PERIOD: Final = 150


class Solstice(Planner):
    """Solstice: stuffed traffic matrix, long slots first by a halving threshold, over and over.

    `planes=aligned`: all planes change together; `staggered`: one after the other, equally spaced.
    """

    name: ClassVar[str] = "solstice"

    def __init__(
        self, slot_ns: int | None = None, phase_ns: int = 0, planes: str = "aligned"
    ) -> None:
        choose("planes", planes, ("aligned", "staggered"), self.name)
        self.slot_ns = slot_ns
        self.phase_ns = phase_ns
        self.planes = planes

    def plan(self, problem: Problem) -> TimedProgram:
        """Decompose and repeat; raises `UsageError` where there are no circuits or no light."""
        fabric = problem.fabric
        groups = alike(fabric, self.name)
        slot_ns = slot_length(fabric, self.slot_ns, self.name)
        total = demand(problem.graph)
        turns: dict[int, list[Turn]] = {}
        for (members, duplex), planes in groups.items():
            matrix = among(total, members, duplex=duplex)
            found = _peeled(matrix, fabric, planes, members, duplex=duplex)
            turns |= dict.fromkeys(planes, found)
        longest = max((len(found) for found in turns.values()), default=0)
        if self.slot_ns is None and longest:
            delay_ns = max(fabric.planes[k].delay_ns for k in turns)
            slot_ns = max(slot_ns, _DELAYS_PER_PERIOD * delay_ns // longest)
        staggered = self.planes == "staggered"
        return weighted_slots(fabric, turns, slot_ns, self.phase_ns, staggered=staggered)


def _peeled(
    matrix: Int64s, fabric: Fabric, planes: list[int], members: tuple[int, ...], *, duplex: bool
) -> list[Turn]:
    """Return the turns of a group of planes, residue included unless a packet plane takes it."""
    if not matrix.any():
        return []
    rate_bps = sum(fabric.planes[k].rate_bps for k in planes)
    delay_ns = max(fabric.planes[k].delay_ns for k in planes)
    packet_bps = sum(
        plane.rate_bps
        for plane in fabric.planes
        if plane.kind == "eps" and set(members) <= set(plane.node_of)
    )
    n = len(matrix)

    def left(turns: list[Turn]) -> Int64s:
        rest: Int64s = np.maximum(matrix - served(turns, n), 0)
        return rest

    def enough(turns: list[Turn], least: int) -> bool:
        if not packet_bps:
            return least * 8 * 10**9 < delay_ns * rate_bps
        rest = left(turns)
        line = max(int(rest.sum(axis=0).max()), int(rest.sum(axis=1).max()))
        bits = 8 * sum(turn.weight for turn in turns)
        elapsed_s = bits / rate_bps + len(turns) * delay_ns / 1e9
        return line * 8 / packet_bps <= elapsed_s

    turns = halving(stuffed(matrix), enough)
    rest = left(turns)
    turns = useful(both_ways(turns) if duplex else turns, matrix)
    if packet_bps or not rest.any():
        return turns
    extra = cover_both_ways(np.maximum(rest, rest.T)) if duplex else cover(rest)
    scale = 2 if duplex else 1  # as `both_ways` doubled the others
    return turns + [Turn(turn.permutation, scale * turn.weight) for turn in extra]
