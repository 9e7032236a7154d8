"""The best that can be had without changing a circuit inside the iteration (DELTA's premise).

DELTA (arXiv 2603.28096) gives pairs of pods circuits for the whole iteration, within their ports.
Here likewise: each pair of nodes that talks gets a circuit for good, on any port of any plane (a
node may have several on one), and a packet plane carries pairs without one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from scheduler.policies.base import Planner
from scheduler.policies.workbench import Workbench
from topologies.errors import UsageError

if TYPE_CHECKING:
    from scheduler.model.problem import Problem
    from scheduler.model.program import OrderedProgram

__all__ = ["Static"]


class Static(Planner):
    """A circuit for every pair of nodes that talks, for good; refuses where ports are too few."""

    name: ClassVar[str] = "static"

    def plan(self, problem: Problem) -> OrderedProgram:
        """Assign circuits to pairs and order the messages on them.

        Raises `UsageError` naming a pair that gets neither a circuit nor a packet plane.
        """
        bench = Workbench(problem)
        ways, left_out = bench.standing()
        if left_out is not None:
            what = f"node {left_out[0]} gets no circuit to node {left_out[1]}"
            why = "a node needs a port for every node it talks to if circuits never change"
            raise UsageError(what, "static", why, "add planes, or use flux or greedy")
        bench.found.clear()
        for wish in ways:
            bench.add(wish)
            bench.add(wish, lazy=True)
        return bench.best()
