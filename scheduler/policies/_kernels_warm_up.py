"""Compile Flux's kernels before its clock starts, and when everything is compiled in advance."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from scheduler.bounds import lower_bound_ns
from scheduler.kernel import register_warm_up
from scheduler.model.problem import Problem
from scheduler.model.taskgraph import MARKER, MESSAGE, Arcs, TaskGraph
from scheduler.phases import PhaseProgram
from topologies.rails import rails

if TYPE_CHECKING:
    from scheduler.model.taskgraph import Int64s

__all__ = ["compile_kernels"]


def _smallest_problem() -> Problem:
    """Rank 0 enters a collective, sends rank 1 two messages and leaves."""

    def column(*values: int) -> Int64s:
        return np.array(values, np.int64)

    graph = TaskGraph(
        nodes=2,
        kind=column(MARKER, MESSAGE, MESSAGE, MARKER),
        op=column(0, 0, 0, 0),
        rank=column(0, -1, -1, 0),
        stream=column(0, -1, -1, 0),
        position=column(0, -1, -1, 1),
        src=column(-1, 0, 0, -1),
        dst=column(-1, 1, 1, -1),
        size_bytes=column(0, 1, 1, 0),
        dur_ns=column(0, 0, 0, 0),
        group=column(-1, 0, 1, -1),
        step=column(-1, 0, 1, -1),
        arcs=Arcs(
            before=column(0, 0, 1, 2, 3),
            after=column(1, 2, 3, 3, 0),
            distance=column(0, 0, 0, 0, 1),
            origin=column(3, 3, 3, 3, 4),
        ),
    )
    return Problem(graph=graph, fabric=rails(nodes=2))


@register_warm_up
@cache
def compile_kernels() -> None:
    """Run everything Flux compiles once, with the types used for real."""
    from scheduler.policies.flux import Search

    problem = _smallest_problem()
    lower_bound_ns(problem.graph, problem.fabric)
    PhaseProgram(problem.graph, problem.fabric, [0]).shortest(1, 10**6)
    search = Search(problem, steps=100)
    search.target_ns = 0.0
    search.seed()
    search.anneal()
    search.bench.best()
