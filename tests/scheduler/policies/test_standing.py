"""Schedulers that keep circuits: static for good, greedy until a port is needed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.check import check_plan
from scheduler.dispatch.simulator import simulate
from scheduler.model.problem import Problem
from scheduler.policies.assignment import assign
from scheduler.policies.registry import find
from tests.scheduler.instances import Builder, direct, random_fabric, training
from topologies import Fabric, Plane, UsageError, rails


def pairs_graph(nodes: int, pairs: set[tuple[int, int]]) -> Builder:
    build = Builder(nodes)
    for r in range(nodes):
        build.compute(r, 1000)
    flows = [(a, b, 1000 * (1 + a + b), 0, []) for a, b in sorted(pairs)]
    build.collective(list(range(nodes)), flows, 0)
    return build


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 7), st.integers(1, 4), st.data())
def test_ports_suffice_whenever_no_node_has_more_peers(
    nodes: int, planes: int, data: st.DataObject
) -> None:
    every = [(a, b) for a in range(nodes) for b in range(nodes) if a != b]
    drawn = data.draw(st.lists(st.sampled_from(every), min_size=1))
    pairs: set[tuple[int, int]] = set()
    for a, b in drawn:  # as many as no node has more peers than planes
        more = pairs | {(a, b)}
        if all(
            max(sum(x == n for x, _ in more), sum(y == n for _, y in more)) <= planes
            for n in range(nodes)
        ):
            pairs = more
    graph, fabric = pairs_graph(nodes, pairs).graph(), rails(nodes=nodes, planes=planes)
    standing = assign(graph, fabric)
    assert {pair for pair, circuits in standing.items() if circuits} == pairs
    held = [(k, "out", a) for c in standing.values() for k, a, _ in c]
    held += [(k, "in", b) for c in standing.values() for k, _, b in c]
    assert len(set(held)) == len(held)
    program = find("static").plan(Problem(graph=graph, fabric=fabric))
    assert check_plan(program, graph, fabric) == []
    timeline = simulate(graph, fabric, program, iterations=3)
    assert (timeline.circuits.request_ns < 0).all()  # all of them stood from the beginning


def test_static_names_a_pair_without_a_circuit() -> None:
    build = Builder(4)
    build.collective([0, 1, 2, 3], direct([0, 1, 2, 3], 1000), 0)
    problem = Problem(graph=build.graph(), fabric=rails(nodes=4, planes=2))
    with pytest.raises(UsageError) as caught:
        find("static").plan(problem)
    assert "gets no circuit to node" in str(caught.value)
    assert str(caught.value).endswith("add planes, or use flux or greedy")


def test_static_spreads_a_pair_over_spare_ports() -> None:
    build = Builder(2)
    for r in range(2):
        build.compute(r, 1000)
    build.collective([0, 1], [(0, 1, 10**6, 0, []), (0, 1, 10**6, 1, [])], 0)
    graph, fabric = build.graph(), rails(nodes=2, planes=2)
    program = find("static").plan(Problem(graph=graph, fabric=fabric))
    timeline = simulate(graph, fabric, program, iterations=2)
    assert timeline.iteration_ends_ns.tolist() == [11_000, 22_000]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 10_000))
def test_greedy_finishes_every_workload(one: int, other: int) -> None:
    graph = training(one)
    fabric = random_fabric(other, graph.nodes)
    program = find("greedy").plan(Problem(graph=graph, fabric=fabric))
    timeline = simulate(graph, fabric, program, iterations=2)
    assert (timeline.end_ns >= 0).all()


def test_greedy_keeps_a_circuit_that_is_used_again() -> None:
    build = Builder(2)
    for r in range(2):
        build.compute(r, 1000)
    build.collective([0, 1], [(0, 1, 10**6, 0, []), (1, 0, 10**6, 0, [])], 0)
    graph = build.graph()
    ports = (0, 1)
    for duplex in (False, True):
        plane = Plane(node_of=ports, rate_bps=800 * 10**9, delay_ns=50_000, duplex=duplex)
        fabric = Fabric(nodes=2, planes=(plane,))
        program = find("greedy").plan(Problem(graph=graph, fabric=fabric))
        ends = simulate(graph, fabric, program, iterations=3).iteration_ends_ns
        assert ends.tolist() == [61_000, 72_000, 83_000]
