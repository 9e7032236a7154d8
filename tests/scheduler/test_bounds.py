"""Bounds: known values, and nothing that any scheduler does is faster."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler._kernels_bounds import cycle_ratio, load_ns
from scheduler.bounds import lower_bound_ns
from scheduler.dispatch.simulator import iteration_ends
from scheduler.model.problem import Problem
from scheduler.model.program import OrderedProgram, TimedProgram
from scheduler.model.taskgraph import csr
from scheduler.policies.registry import find
from tests.scheduler.instances import Builder, random_fabric, training
from topologies import FluxbedError, Plane, UsageError, rails

MB_NS = 10_000  # 1 MB at 800 Gb/s


def fan(peers: int, size_bytes: int = 1_000_000) -> Builder:
    """Node 0 sends to so many others at once."""
    build = Builder(peers + 1)
    for r in range(peers + 1):
        build.compute(r, 1000)
    flows = [(0, p, size_bytes, p - 1, []) for p in range(1, peers + 1)]
    build.collective(list(range(peers + 1)), flows, 0)
    return build


def test_dependencies_alone() -> None:
    graph = fan(1).graph()
    bound = lower_bound_ns(graph, rails(nodes=2, planes=2, delay_ns=10**6, latency_ns=7))
    assert (bound.value_ns, bound.kind) == (1000 + MB_NS + 7, "dependencies")


def test_busiest_port_counts_the_change_back_across_the_wrap() -> None:
    graph = fan(3).graph()
    fabric = rails(nodes=4, planes=1, delay_ns=50_000)
    bound = lower_bound_ns(graph, fabric)
    assert bound.parts["port of node 0, out"] == 3 * MB_NS + 3 * 50_000
    loose = lower_bound_ns(graph, fabric, cyclic=False)
    assert loose.parts["port of node 0, out"] == 3 * MB_NS


def test_peers_with_a_port_each_need_no_change() -> None:
    graph = fan(3).graph()
    bound = lower_bound_ns(graph, rails(nodes=4, planes=3, delay_ns=50_000))
    assert bound.parts["port of node 0, out"] == MB_NS


def test_windows_see_the_ports_between_two_tasks() -> None:
    graph = fan(3).graph()
    fabric = rails(nodes=4, planes=2, delay_ns=50_000)
    bound = lower_bound_ns(graph, fabric, cyclic=False)
    # Two of the three share a port, with a change between them.
    assert bound.value_ns == 1000 + 2 * MB_NS + 50_000
    assert bound.kind == "dependencies and ports"


def test_fluid_programs_spread_over_all_ports() -> None:
    graph = fan(1).graph()
    bound = lower_bound_ns(graph, rails(nodes=2, planes=2, delay_ns=0), atomic=False)
    assert bound.value_ns == 1000 + MB_NS / 2


def test_a_packet_plane_makes_every_miss_avoidable() -> None:
    graph = fan(3).graph()
    plane = Plane(node_of=(0, 1, 2, 3), rate_bps=800 * 10**9, delay_ns=10**6)
    packet = dataclasses.replace(plane, kind="eps", delay_ns=0)
    fabric = dataclasses.replace(rails(nodes=4), planes=(plane, packet))
    assert lower_bound_ns(graph, fabric).value_ns == 1000 + 2 * MB_NS


def test_a_circle_is_refused() -> None:
    build = Builder(2)
    a, b = build.compute(0, 10), build.compute(0, 10)
    build.arc(b, a)
    with pytest.raises(UsageError, match="task 0 waits for itself"):
        lower_bound_ns(build.graph(), rails(nodes=2))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 50), st.integers(0, 2)),
        min_size=1,
        max_size=14,
    )
)
def test_cycle_ratio_against_every_simple_cycle(rows: list[tuple[int, int, int, int]]) -> None:
    # Distance 0 only forwards, so that there is an order.
    arcs = [(a, b, w, d if a < b else max(d, 1)) for a, b, w, d in rows]
    best = Fraction(0)

    def walk(start: int, at: int, seen: set[int], weight: int, turns: int) -> None:
        nonlocal best
        for a, b, w, d in arcs:
            if a == at and b == start and turns + d:
                best = max(best, Fraction(weight + w, turns + d))
            elif a == at and b > start and b not in seen:
                walk(start, b, seen | {b}, weight + w, turns + d)

    for start in range(5):
        walk(start, start, {start}, 0, 0)
    table = np.array(arcs, np.int64).T
    pointer, place = csr(table[1], np.arange(len(arcs)), 5)
    columns = [np.ascontiguousarray(table[k][place]) for k in (0, 2, 3)]
    for function in (cycle_ratio, cycle_ratio.py_func):  # type: ignore[attr-defined]
        found = function(np.arange(5), pointer, *columns, 0, 1)
        assert Fraction(int(found[0]), int(found[1])) == best


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 3)), min_size=1, max_size=7),
    st.integers(1, 3),
    st.integers(0, 20),
)
def test_no_way_to_share_ports_is_shorter_than_the_load(
    items: list[tuple[int, int]], ports: int, delay_ns: int
) -> None:
    wire, peer = (np.array(column, np.int64) for column in zip(*items, strict=True))
    bound = load_ns(wire, peer, ports, delay_ns, True, float(ports), np.full(4, -1), 0)  # noqa: FBT003
    best = 10**9

    def share(k: int, loads: list[int], served: list[set[int]]) -> None:
        nonlocal best
        if k == len(items):
            ends = [w + max(len(s) - 1, 0) * delay_ns for w, s in zip(loads, served, strict=True)]
            best = min(best, *ends) if len(ends) == 1 else min(best, max(ends))
            return
        for p in range(ports):
            more = [w + items[k][0] * (q == p) for q, w in enumerate(loads)]
            share(k + 1, more, [s | {items[k][1]} if q == p else s for q, s in enumerate(served)])

    share(0, [0] * ports, [set() for _ in range(ports)])
    assert bound <= best


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10_000),
    st.integers(0, 10_000),
    st.sampled_from(["flux", "static", "greedy", "rotor-direct", "rotor-vlb", "rotorlb"]),
)
def test_nothing_beats_the_bound(one: int, other: int, name: str) -> None:
    graph = training(one)
    fabric = random_fabric(other, graph.nodes)
    problem = Problem(graph=graph, fabric=fabric, budget_s=0.02)
    try:
        program = find(name).plan(problem)
        ends = iteration_ends(graph, fabric, program, iterations=40)
    except FluxbedError:
        return
    bound = lower_bound_ns(
        graph,
        fabric,
        atomic=not isinstance(program, TimedProgram),
        cyclic=isinstance(program, OrderedProgram),
    )
    # Fragmenting programs may start out late and catch up; what they gain is less than a period.
    slack = program.period_ns if isinstance(program, TimedProgram) else 0
    assert ends[-1] - ends[1] + slack >= 38 * bound.value_ns


def test_misses_cannot_be_spread_evenly() -> None:
    graph = fan(3).graph()
    bound = lower_bound_ns(graph, rails(nodes=4, planes=2, delay_ns=10**6))
    # Three circuits on two ports: one of them changes twice, there and back.
    assert bound.parts["port of node 0, out"] == 2 * MB_NS + 2 * 10**6


def test_a_duplex_port_serves_senders_and_receivers() -> None:
    build = Builder(3)
    for r in range(3):
        build.compute(r, 1000)
    build.collective([0, 1, 2], [(0, 1, 10**6, 0, []), (2, 0, 10**6, 0, [])], 0)
    graph = build.graph()
    fabric = rails(nodes=3, planes=1, delay_ns=50_000)
    assert lower_bound_ns(graph, fabric).kind == "dependencies"
    duplex = rails(nodes=3, planes=1, delay_ns=50_000, duplex=True)
    assert lower_bound_ns(graph, duplex).parts["port of node 0, out"] == 2 * MB_NS + 2 * 50_000
