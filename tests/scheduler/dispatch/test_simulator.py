"""The simulator against a replay that shares no code with it, and against the model's rules."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from scheduler.dispatch.simulator import iteration_ends, simulate
from scheduler.model.problem import Problem
from scheduler.model.timeline import NONE
from scheduler.policies.flux import Search
from scheduler.policies.registry import find
from tests.scheduler.dispatch.agreement import simulated_like
from tests.scheduler.instances import random_dag, random_fabric
from tests.scheduler.replay import replay
from tests.scheduler.replay_greedy import replay_greedy
from tests.scheduler.replay_parts import TooLongError
from tests.scheduler.replay_two_hops import replay_two_hops
from tests.scheduler.strategies import fabrics, ordered_programs, task_graphs, timed_programs

if TYPE_CHECKING:
    from scheduler.model.taskgraph import TaskGraph
    from scheduler.model.timeline import Timeline
    from topologies import Fabric

many = settings(max_examples=100, deadline=None, report_multiple_bugs=False)


def check_rules(timeline: Timeline, graph: TaskGraph, fabric: Fabric) -> None:
    """What holds of every execution, whatever decided it."""
    transfers, circuits = timeline.transfers, timeline.circuits
    sent = np.zeros((2, len(timeline.end_ns)), np.int64)
    np.add.at(sent, (transfers.hop, transfers.task), transfers.size_bytes)
    sizes = np.tile(graph.size_bytes, timeline.iterations)
    assert sent[0].tolist() == sizes.tolist()
    assert (sent[1] <= sizes).all()  # what went through a relay

    assert (np.diff(transfers.start_ns) >= 0).all()
    assert (np.diff(circuits.up_ns) >= 0).all()
    stood = circuits.request_ns == NONE
    assert (circuits.up_ns[stood] == 0).all()
    made = ~stood
    delay = np.array([plane.delay_ns for plane in fabric.planes])[circuits.plane]
    assert (circuits.dark_ns[made] == circuits.request_ns[made] + fabric.control_ns).all()
    assert (circuits.up_ns[made] == circuits.dark_ns[made] + delay[made]).all()

    holds = defaultdict(list)  # (plane, way, port) -> circuits in order
    for c in range(len(circuits.plane)):
        plane = fabric.planes[circuits.plane[c]]
        for port in plane.uses((int(circuits.src_port[c]), int(circuits.dst_port[c]))):
            holds[int(circuits.plane[c]), port].append(c)
    for (plane, _), row in holds.items():
        for c, d in pairwise(row):
            assert circuits.down_ns[c] != NONE
            assert circuits.up_ns[d] >= circuits.down_ns[c] + fabric.planes[plane].delay_ns

    busy = defaultdict(list)  # output -> intervals
    for k in range(len(transfers.task)):
        c, index = transfers.circuit[k], transfers.plane[k]
        plane = fabric.planes[index]
        last = transfers.end_ns[k] - fabric.latency_ns
        assert last - transfers.start_ns[k] >= plane.transfer_ns(int(transfers.size_bytes[k]))
        if plane.kind == "eps":
            assert c == NONE
            continue
        assert circuits.plane[c] == index
        assert circuits.up_ns[c] <= transfers.start_ns[k]
        assert circuits.down_ns[c] == NONE or last <= circuits.down_ns[c]
        ends = [plane.node_of[circuits.src_port[c]], plane.node_of[circuits.dst_port[c]]]
        hop = [transfers.from_node[k], transfers.to_node[k]]
        assert ends == hop or (plane.duplex and ends[::-1] == hop)
        way = ends == hop
        busy[int(c), way].append((transfers.start_ns[k], last))
    for spans in busy.values():
        spans.sort()
        assert all(a[1] <= b[0] for a, b in pairwise(spans))


def same_transfers(timeline: Timeline) -> list[tuple[int, ...]]:
    t = timeline.transfers
    columns = (t.task, t.plane, t.size_bytes, t.start_ns, t.end_ns)
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


@many
@given(st.data())
def test_ordered_programs_agree_with_the_replay_to_the_nanosecond(data: st.DataObject) -> None:
    graph = data.draw(task_graphs())
    fabric = data.draw(fabrics(graph.nodes))
    program = data.draw(ordered_programs(graph, fabric))
    iterations = data.draw(st.integers(1, 3))
    lookahead = data.draw(st.sampled_from([0, 0, 1, 100, 10_000]))
    other = replay(graph, fabric, program, iterations=iterations, lookahead_ns=lookahead)
    timeline = simulated_like(
        other, graph, fabric, program, iterations=iterations, lookahead_ns=lookahead
    )
    assert timeline is not None
    assert same_transfers(timeline) == sorted(t[:2] + t[3:] for t in other.transfers)
    circuits = timeline.circuits
    columns = (circuits.plane, circuits.src_port, circuits.dst_port)
    columns += (circuits.request_ns, circuits.up_ns, circuits.down_ns)
    assert sorted(zip(*(column.tolist() for column in columns), strict=True)) == sorted(
        tuple(NONE if value is None else value for value in row) for row in other.circuits
    )
    check_rules(timeline, graph, fabric)
    ends = iteration_ends(graph, fabric, program, iterations=iterations, lookahead_ns=lookahead)
    assert ends.tolist() == timeline.iteration_ends_ns.tolist()


@many
@given(st.data())
def test_timed_programs_agree_with_the_replay_to_the_nanosecond(data: st.DataObject) -> None:
    graph = data.draw(task_graphs())
    fabric = data.draw(fabrics(graph.nodes, kinds=("ocs",)))
    program = data.draw(timed_programs(fabric))
    quantum = data.draw(st.sampled_from([0, 0, 100, 997]))
    iterations = data.draw(st.integers(1, 3))
    other = replay(graph, fabric, program, iterations=iterations, quantum_bytes=quantum)
    timeline = simulated_like(
        other, graph, fabric, program, iterations=iterations, quantum_bytes=quantum
    )
    if timeline is None:
        return
    assert same_transfers(timeline) == sorted(t[:2] + t[3:] for t in other.transfers)
    check_rules(timeline, graph, fabric)


@pytest.mark.parametrize("seed", [19, 3, 4])
def test_a_circuit_ends_when_the_earlier_of_its_ports_is_asked_for(seed: int) -> None:
    """With lookahead an output can be asked for later, in order, than its far input."""
    graph, fabric = random_dag(seed), random_fabric(seed, 4)
    problem = Problem(graph=graph, fabric=fabric, lookahead_ns=5_000)
    search = Search(problem, steps=200)
    search.seed()
    program = search.bench.best()
    timeline = simulate(graph, fabric, program, lookahead_ns=5_000)
    check_rules(timeline, graph, fabric)


@many
@given(st.data())
def test_greedy_agrees_with_the_replay_to_the_nanosecond(data: st.DataObject) -> None:
    graph = data.draw(task_graphs())
    fabric = data.draw(fabrics(graph.nodes, kinds=("ocs",), all_stop=False))
    program = find("greedy").plan(Problem(graph=graph, fabric=fabric))
    iterations = data.draw(st.integers(1, 3))
    gather_ns = data.draw(st.sampled_from([0, 1, 100, 5000]))
    other = replay_greedy(graph, fabric, iterations=iterations, gather_ns=gather_ns)
    common = {"iterations": iterations, "gather_ns": gather_ns}
    assert simulated_like(other, graph, fabric, program, **common) is not None


@many
@given(st.data(), st.sampled_from(["vlb", "rotorlb"]))
def test_two_hops_agree_with_the_replay_to_the_nanosecond(
    data: st.DataObject, routing: Literal["vlb", "rotorlb"]
) -> None:
    graph = data.draw(task_graphs())
    fabric = data.draw(fabrics(graph.nodes, kinds=("ocs",)))
    program = replace(data.draw(timed_programs(fabric)), routing=routing)
    quantum = data.draw(st.sampled_from([0, 100, 997]))
    iterations = data.draw(st.integers(1, 2))
    try:
        other = replay_two_hops(
            graph, fabric, program, iterations=iterations, quantum_bytes=quantum
        )
    except TooLongError:
        reject()
    timeline = simulated_like(
        other, graph, fabric, program, iterations=iterations, quantum_bytes=quantum
    )
    if timeline is None:
        return
    assert same_transfers(timeline) == sorted(t[:2] + t[3:] for t in other.transfers)
    moves = timeline.transfers
    columns = (moves.task, moves.start_ns, moves.hop, moves.from_node, moves.to_node)
    assert sorted(zip(*(column.tolist() for column in columns), strict=True)) == sorted(other.hops)
