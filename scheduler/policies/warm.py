"""Compile Flux's kernels before its clock starts, and when everything is compiled in advance."""

from __future__ import annotations

from functools import cache

import numpy as np

from scheduler.kernel import register_warm_up
from scheduler.model.problem import Problem
from scheduler.model.taskgraph import MESSAGE, Arcs, TaskGraph
from topologies.rails import rails

__all__ = ["compile_kernels"]


def _smallest_problem() -> Problem:
    """Two nodes send each other one message."""
    column = np.full(2, -1, np.int64)
    none = np.zeros(0, np.int64)
    graph = TaskGraph(
        nodes=2,
        kind=np.full(2, MESSAGE, np.int64),
        op=np.zeros(2, np.int64),
        rank=column,
        stream=column,
        position=column,
        src=np.array([0, 1], np.int64),
        dst=np.array([1, 0], np.int64),
        size_bytes=np.ones(2, np.int64),
        dur_ns=np.zeros(2, np.int64),
        group=np.zeros(2, np.int64),
        step=np.zeros(2, np.int64),
        arcs=Arcs(before=none, after=none, distance=none, origin=none),
    )
    return Problem(graph=graph, fabric=rails(nodes=2))


@register_warm_up
@cache
def compile_kernels() -> None:
    """Run everything Flux compiles once, with the types used for real."""
    from scheduler.policies.flux import Search

    search = Search(_smallest_problem(), steps=100)
    search.target_ns = 0
    search.seed()
    search.anneal()
    search.bench.best()
