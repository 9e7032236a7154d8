"""Finite NIC buffers: simulator and replay agree, nothing exceeds them, and a full one is named."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.check_transfers import check_transfers
from scheduler.dispatch.simulator import iteration_ends, simulate
from scheduler.model.admission import as_admitted
from scheduler.model.nic import account_nics
from scheduler.model.problem import Problem
from scheduler.model.program import Entry, OrderedProgram, Program, TimedProgram
from scheduler.model.taskgraph import MESSAGE, Arcs, TaskGraph
from scheduler.policies.registry import find
from tests.scheduler.dispatch.agreement import simulated_like
from tests.scheduler.instances import random_dag
from tests.scheduler.replay import replay
from tests.scheduler.strategies import fabrics, ordered_programs, task_graphs, timed_programs
from topologies import Fabric, StalledError, UsageError, rails

if TYPE_CHECKING:
    from scheduler.model.timeline import Timeline

ENDLESS = 2**40
SIZES = st.sampled_from([1, 100, 1000, 3000, 6000, 12000])
EVERY_KIND = [
    "flux",
    "greedy",
    "prefetch",
    "rotor-direct",
    "rotor-vlb",
    "rotorlb",
    "bvn",
    "packet-ideal",
    "packet-fair",
]


def held_up(
    graph: TaskGraph, fabric: Fabric, program: Program, timeline: Timeline, size: int
) -> Timeline:
    """Hold an execution against the rules of a buffer; return it as admitted."""
    admitted = as_admitted(graph, fabric, timeline, size)
    message = np.tile(graph.kind == MESSAGE, timeline.iterations)
    assert (admitted.ready_ns[message] >= timeline.ready_ns[message]).all()
    assert (timeline.start_ns[message] >= admitted.ready_ns[message]).all()
    assert check_transfers(graph, fabric, program, admitted, tolerance_ns=0, quantum_bytes=0) == []
    account = account_nics(graph, fabric, timeline, "eager", nic_buffer_bytes=size)
    own = account.transit_peak_bytes == 0
    assert (account.peak_bytes[own] <= size).all()
    assert (account.inject_ns[message] >= admitted.ready_ns[message]).all()
    return admitted


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_simulator_and_replay_let_in_the_same(data: st.DataObject) -> None:
    graph, timed = data.draw(task_graphs()), data.draw(st.booleans())
    fabric = data.draw(fabrics(graph.nodes, kinds=("ocs",) if timed else ("ocs", "eps")))
    program = data.draw(timed_programs(fabric) if timed else ordered_programs(graph, fabric))
    lookahead = 0 if timed else data.draw(st.sampled_from([0, 100, 10_000]))
    size = data.draw(SIZES)
    common = {"iterations": 3, "lookahead_ns": lookahead, "nic_buffer_bytes": size}
    other = replay(graph, fabric, program, **common)
    timeline = simulated_like(other, graph, fabric, program, **common)
    if timeline is None:
        return
    admitted = held_up(graph, fabric, program, timeline, size)
    for message, since_ns in other.admitted.items():
        assert admitted.ready_ns[message] == since_ns


@pytest.mark.parametrize("name", EVERY_KIND)
def test_a_buffer_that_never_fills_changes_nothing(name: str) -> None:
    graph = random_dag(3)
    fabric = rails(nodes=4, planes=2, delay_ns=10_000)
    scheduler = find(name)
    on = scheduler.fabric_for(fabric)
    program = scheduler.plan(Problem(graph=graph, fabric=on, budget_s=0.01))
    plain = simulate(graph, on, program, iterations=3)
    roomy = simulate(graph, on, program, iterations=3, nic_buffer_bytes=ENDLESS)
    for column in ("ready_ns", "start_ns", "end_ns"):
        assert getattr(plain, column).tolist() == getattr(roomy, column).tolist()
    admitted = as_admitted(graph, on, roomy, ENDLESS)
    assert admitted.ready_ns.tolist() == plain.ready_ns.tolist()
    for kind in ("eager", "paced"):
        accounts = [
            account_nics(graph, on, plain, kind, nic_buffer_bytes=size) for size in (None, ENDLESS)
        ]
        for one in dataclasses.fields(accounts[0]):
            first, second = (getattr(account, one.name) for account in accounts)
            assert np.array_equal(first, second)


@pytest.mark.parametrize("name", EVERY_KIND)
@pytest.mark.parametrize("size", [1_000, 7_000_000])
def test_a_small_buffer_is_never_exceeded_whatever_decides(name: str, size: int) -> None:
    graph = random_dag(3)
    fabric = rails(nodes=4, planes=2, delay_ns=10_000)
    scheduler = find(name)
    on = scheduler.fabric_for(fabric)
    program = scheduler.plan(Problem(graph=graph, fabric=on, budget_s=0.01))
    try:
        timeline = simulate(graph, on, program, iterations=2, nic_buffer_bytes=size)
    except StalledError as error:
        found = error
    else:
        held_up(graph, on, program, timeline, size)
        ends = iteration_ends(graph, on, program, iterations=2, nic_buffer_bytes=size)
        assert ends.tolist() == timeline.iteration_ends_ns.tolist()
        return
    assert isinstance(program, OrderedProgram)
    assert found.why.startswith("the NIC of node")


def two_to_send() -> TaskGraph:
    """Node 0 has a message of 800 bytes for node 1 and one of 500 for node 2, both ready."""
    none, two = np.full(2, -1), np.arange(2)
    empty = np.zeros(0, np.int64)
    return TaskGraph(
        nodes=3, kind=np.full(2, MESSAGE), op=two, rank=none, stream=none, position=none,
        src=np.zeros(2, np.int64), dst=two + 1, size_bytes=np.array([800, 500]),
        dur_ns=np.zeros(2, np.int64), group=two, step=np.zeros(2, np.int64),
        arcs=Arcs(before=empty, after=empty, distance=empty, origin=empty),
    )  # fmt: skip


def in_order(first: int, second: int) -> OrderedProgram:
    return OrderedProgram.from_entries(
        [[Entry(0, first + 1, (first,)), Entry(0, second + 1, (second,))]]
    )


def test_what_waits_for_room_is_sent_when_there_is() -> None:
    graph = two_to_send()
    fabric = rails(nodes=3, planes=1, rate_bps=8 * 10**9, delay_ns=2_000)  # a byte per ns
    for size, admitted_ns in ((1300, 0), (1299, 2800), (500, 2800), (1, 2800)):
        timeline = simulate(graph, fabric, in_order(0, 1), iterations=1, nic_buffer_bytes=size)
        assert timeline.start_ns.tolist()[0] == 2_000
        admitted = as_admitted(graph, fabric, timeline, size)
        assert admitted.ready_ns.tolist() == [0, admitted_ns]
        account = account_nics(graph, fabric, timeline, "eager", nic_buffer_bytes=size)
        assert account.peak_bytes.tolist() == [min(size, 1300 if size == 1300 else 800), 0, 0]


def test_a_full_nic_is_named_where_it_blocks_for_ever() -> None:
    graph, fabric = two_to_send(), rails(nodes=3, planes=1)
    program = in_order(1, 0)  # but message 0 is let in first, and leaves no room for message 1
    assert simulate(graph, fabric, program, iterations=1, nic_buffer_bytes=1300).end_ns.min() > 0
    with pytest.raises(StalledError) as caught:
        simulate(graph, fabric, program, iterations=1, nic_buffer_bytes=1299)
    assert caught.value.why == (
        "the NIC of node 0 is full: its 1299 bytes are held for message 0 to node 1, "
        "whose circuits do not come"
    )
    assert "message 1 (500 bytes)" in caught.value.what
    assert replay(graph, fabric, program, iterations=1, nic_buffer_bytes=1299).end == {}


def test_a_nic_holds_something() -> None:
    graph, fabric = two_to_send(), rails(nodes=3, planes=1)
    with pytest.raises(UsageError, match="nothing could ever be sent"):
        simulate(graph, fabric, in_order(0, 1), nic_buffer_bytes=0)


def test_frames_wait_for_room_too() -> None:
    graph = random_dag(3)
    fabric = rails(nodes=4, planes=2, delay_ns=10_000)
    program = find("rotor-direct").plan(Problem(graph=graph, fabric=fabric))
    assert isinstance(program, TimedProgram)
    common = {"iterations": 2, "quantum_bytes": 100_000, "nic_buffer_bytes": 5_000_000}
    timeline = simulate(graph, fabric, program, **common)
    other = replay(graph, fabric, program, **common)
    assert timeline.end_ns.tolist() == [other.end[task] for task in range(len(timeline.end_ns))]
