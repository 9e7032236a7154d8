"""Topological order and cycles, compiled and as Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model._kernels_order import peel
from scheduler.model.taskgraph import Arcs, TaskGraph, csr

ARCS = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=24)


def graph_of(arcs: list[tuple[int, int]], tasks: int = 12) -> TaskGraph:
    pairs = np.array(arcs, np.int64).reshape(-1, 2)
    zeros, minus = np.zeros(tasks, np.int64), np.full(tasks, -1, np.int64)
    listed = Arcs(
        before=pairs[:, 0],
        after=pairs[:, 1],
        distance=np.zeros(len(pairs), np.int64),
        origin=np.zeros(len(pairs), np.int64),
    )
    return TaskGraph(
        nodes=2, kind=zeros, op=zeros, rank=zeros, stream=zeros, position=zeros, src=minus,
        dst=minus, size_bytes=zeros, dur_ns=zeros, group=minus, step=minus, arcs=listed,
    )  # fmt: skip


@settings(deadline=None)
@given(ARCS)
def test_an_order_or_a_cycle(arcs: list[tuple[int, int]]) -> None:
    graph = graph_of(arcs)
    cycle = graph.cycle()
    if cycle:
        for before, after in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
            assert (before, after) in arcs
        with pytest.raises(ValueError, match=f"task {cycle[0]} waits for itself"):
            graph.topological_order()
    else:
        order = graph.topological_order().tolist()
        assert sorted(order) == list(range(12))
        place = {task: index for index, task in enumerate(order)}
        assert all(place[before] < place[after] for before, after in arcs)


@settings(deadline=None)
@given(ARCS)
def test_the_kernel_does_what_its_source_does(arcs: list[tuple[int, int]]) -> None:
    graph = graph_of(arcs)
    pointers, listed = csr(graph.arcs.before, graph.arcs.after, 12)
    missing = np.bincount(graph.arcs.after, minlength=12).astype(np.int64)
    results: list[Any] = []
    for function in (peel, peel.py_func):
        left, order = missing.copy(), np.full(12, -1, np.int64)
        results.append((function(pointers, listed, left, order), left.tolist(), order.tolist()))
    assert results[0] == results[1]
