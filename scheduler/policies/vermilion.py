"""Vermilion: a demand-aware cycle of equal slots in which every pair still has its turn.

Addanki et al., arXiv 2504.09892: with n nodes the traffic matrix is scaled and rounded down to line
sums of (k-1) n, an all-ones matrix is added for what rounding loses, and the sum is split into
k n matchings of one slot each; k = 3 as in the authors' code. Direct, one hop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from scheduler.policies.base import Planner
from scheduler.policies.cycles import equal_slots, slot_length
from scheduler.policies.decomposition import among, birkhoff, both_ways, demand, stuffed, useful
from scheduler.policies.matchings import alike, deal
from topologies.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scheduler.model.problem import Problem
    from scheduler.model.program import TimedProgram
    from scheduler.model.taskgraph import Int64s
    from scheduler.policies.decomposition import Turn

__all__ = ["Vermilion"]


class Vermilion(Planner):
    """Vermilion: k n equal slots, most for the pairs with most traffic, one for every other.

    The slot is ten reconfiguration delays by default, as RotorNet's, and the copies of a matching
    are spread evenly over the cycle before it is dealt to the planes in runs; the paper leaves both
    open. On duplex planes matchings are their own inverse, and there may be more of them.
    """

    name: ClassVar[str] = "vermilion"

    def __init__(self, slot_ns: int | None = None, phase_ns: int = 0, k: int = 3) -> None:
        if k < 1:
            why = "the cycle has k slots for every node"
            raise UsageError(f"k={k}", self.name, why, "write k=3")
        self.slot_ns = slot_ns
        self.phase_ns = phase_ns
        self.k = k

    def plan(self, problem: Problem) -> TimedProgram:
        """Decompose and repeat; raises `UsageError` where there are no circuits or no light."""
        fabric = problem.fabric
        groups = alike(fabric, self.name)
        slot_ns = slot_length(fabric, self.slot_ns, self.name)
        total = demand(problem.graph)

        def every(members: tuple[int, ...], duplex: bool) -> list[tuple[int, ...]]:  # noqa: FBT001 (of the planes)
            whole = self._rounded(among(total, members, duplex=duplex))
            turns = birkhoff(whole)
            turns = useful(both_ways(turns) if duplex else turns, whole - np.diag(whole.diagonal()))
            return spread(turns)

        return equal_slots(fabric, deal(fabric, groups, every), slot_ns, self.phase_ns)

    def _rounded(self, matrix: Int64s) -> Int64s:
        """Return the integer matrix whose lines sum to k n."""
        n = len(matrix)
        most = max(int(matrix.sum(axis=0).max()), int(matrix.sum(axis=1).max()), 1)
        scale = (self.k - 1) * n
        whole = np.array([[int(x) * scale // most for x in row] for row in matrix], np.int64)
        whole += 1 - np.eye(n, dtype=np.int64)
        whole[np.diag_indices(n)] += self.k * n - np.maximum(whole.sum(axis=0), whole.sum(axis=1))
        return stuffed(whole)


def spread(turns: Sequence[Turn]) -> list[tuple[int, ...]]:
    """Repeat each permutation as often as its weight says, as evenly as can be.

    >>> from scheduler.policies.decomposition import Turn
    >>> spread([Turn((1, 0), 2), Turn((0, 1), 1)])
    [(1, 0), (0, 1), (1, 0)]
    """
    places = [
        ((2 * copy + 1) / (2 * turn.weight), number)
        for number, turn in enumerate(turns)
        for copy in range(turn.weight)
    ]
    return [turns[number].permutation for _, number in sorted(places)]
