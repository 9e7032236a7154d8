"""The dispatcher itself: compiled against interpreted, timed rows, policies, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.dispatch import _kernels_columns as col
from scheduler.dispatch._kernels_dispatch import dispatch
from scheduler.dispatch._kernels_policy import bring_up, send
from scheduler.dispatch.layout import new_state, prepare
from scheduler.dispatch.simulator import simulate, simulate_phases
from scheduler.kernel import interpreted, kernel
from scheduler.model.problem import Problem
from scheduler.model.program import (
    Entry,
    OrderedProgram,
    ReactiveProgram,
    Slot,
    TimedProgram,
)
from scheduler.model.taskgraph import MESSAGE, Arcs, TaskGraph
from scheduler.policies.registry import find
from tests.scheduler.dispatch.agreement import times
from tests.scheduler.dispatch.test_simulator import check_rules
from tests.scheduler.instances import Builder
from tests.scheduler.strategies import fabrics, ordered_programs, task_graphs, timed_programs
from topologies import StalledError, UsageError, rails

several = settings(max_examples=30, deadline=None, report_multiple_bugs=False)


def messages(*pairs: tuple[int, int, int], arcs: Any = (), nodes: int = 4) -> TaskGraph:
    """Messages (src, dst, bytes) and arcs (before, after, distance)."""
    count = len(pairs)
    src, dst, size = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
    before, after, distance = np.array(list(arcs), np.int64).reshape(-1, 3).T.copy()
    none = np.full(count, -1)
    zero = np.zeros(count, np.int64)
    return TaskGraph(
        nodes=nodes,
        kind=np.full(count, MESSAGE),
        op=np.arange(count),
        rank=none,
        stream=none,
        position=none,
        src=src,
        dst=dst,
        size_bytes=size,
        dur_ns=zero,
        group=zero,
        step=zero,
        arcs=Arcs(before=before, after=after, distance=distance, origin=np.zeros_like(before)),
    )


def copy(state: col.State, **changes: Any) -> col.State:
    core = col.Core(*(array.copy() for array in state.core))
    return state._replace(core=core, **changes)


def rows(state: col.State, count: int) -> list[tuple[int, ...]]:
    return [tuple(row) for row in state.core.actions[:count].tolist()]


@several
@given(st.data())
def test_compiled_and_interpreted_dispatchers_agree_event_for_event(data: st.DataObject) -> None:
    graph = data.draw(task_graphs())
    fabric = data.draw(fabrics(graph.nodes))
    ordered = data.draw(st.booleans())
    draw = ordered_programs(graph, fabric) if ordered else timed_programs(fabric)
    layout = prepare(graph, fabric, data.draw(draw), iterations=2)
    compiled = new_state(layout, horizon_ns=0 if ordered else 100)
    plain, twin = copy(compiled), interpreted(dispatch)
    event, arg, now, told = col.EV_START, 0, 0, 0
    for _ in range(60):
        count = dispatch(compiled, now, event, arg)
        assert twin(plain, now, event, arg) == count
        for ours, theirs in zip(compiled.core, plain.core, strict=True):
            assert (ours == theirs).all()
        now += data.draw(st.integers(0, 100))
        if not ordered:
            event = col.EV_TICK
        elif told < compiled.core.cursor[col.C_GRANTED]:
            event, arg = col.EV_ARRIVED, int(compiled.core.granted[told])
            told += 1
        else:
            break


def test_neighbours_merge_and_the_wrap_is_per_port() -> None:
    graph = messages((0, 1, 1000), (0, 1, 1000), (2, 3, 1000))
    fabric = rails(nodes=4, planes=1, rate_bps=8 * 10**9, delay_ns=50)
    program = OrderedProgram.from_entries(
        [[Entry(0, 1, (0,)), Entry(2, 3, (2,)), Entry(0, 1, (1,))]]
    )
    state = new_state(prepare(graph, fabric, program, iterations=2))
    count = dispatch(state, 0, col.EV_START, 0)
    assert rows(state, count) == [
        (col.MAKE, 0, 0, 1, 0, 4, 0),  # both messages of both iterations: nothing else comes
        (col.MAKE, 0, 2, 3, 4, 2, 0),
    ]
    assert state.core.granted.tolist() == [0, 1, 3, 4, 2, 5]


def test_a_circuit_torn_down_frees_its_far_end() -> None:
    graph = messages((0, 1, 100), (2, 1, 100))
    fabric = rails(nodes=4, planes=1, rate_bps=8 * 10**9, delay_ns=50)
    program = OrderedProgram.from_entries([[Entry(0, 1, (0,)), Entry(2, 1, (1,))]], [(0, 0, 1)])
    state = new_state(prepare(graph, fabric, program, iterations=1))
    assert rows(state, dispatch(state, 0, col.EV_START, 0)) == [(col.KEEP, 0, 0, 1, 0, 1, 0)]
    assert rows(state, dispatch(state, 130, col.EV_ARRIVED, 0)) == [
        (col.DROP, 0, 0, 1, 1, 0, 130),
        (col.MAKE, 0, 2, 1, 1, 1, 130),
    ]


def test_an_all_stop_plane_makes_everything_anew() -> None:
    graph = messages((0, 1, 100), (2, 3, 100), (0, 1, 100))
    fabric = rails(nodes=4, planes=1, rate_bps=8 * 10**9, delay_ns=50, all_stop=True)
    entries = [Entry(0, 1, (0,)), Entry(0, 1, (2,)), Entry(2, 3, (1,))]
    program = OrderedProgram.from_entries([entries], [(0, 3, 0)], [[0, 1, 1]])
    state = new_state(prepare(graph, fabric, program, iterations=1))
    assert rows(state, dispatch(state, 0, col.EV_START, 0)) == [
        (col.DROP, 0, 3, 0, 0, 0, 0),
        (col.MAKE, 0, 0, 1, 0, 1, 0),
    ]
    assert rows(state, dispatch(state, 150, col.EV_ARRIVED, 0)) == [
        (col.MAKE, 0, 0, 1, 1, 0, 150),
        (col.MAKE, 0, 2, 3, 1, 0, 150),
        (col.KEEP, 0, 0, 1, 1, 1, 150),
        (col.KEEP, 0, 2, 3, 2, 1, 150),
    ]


def test_lookahead_requests_before_the_arrival_and_never_darkens() -> None:
    graph = messages((0, 1, 1000), (0, 2, 1000))
    fabric = replace(
        rails(nodes=4, planes=1, rate_bps=8 * 10**9, delay_ns=50),
        control_ns=30,
        notify_ns=20,
        latency_ns=10,
    )
    program = OrderedProgram.from_entries([[Entry(0, 1, (0,)), Entry(0, 2, (1,))]])
    last_bit = 30 + 50 + 1000
    known = last_bit + 10 + 20
    for lookahead, request in ((0, known), (25, known - 25), (10**6, last_bit - 30)):
        timeline = simulate(graph, fabric, program, iterations=1, lookahead_ns=lookahead)
        assert timeline.circuits.request_ns.tolist() == [0, request]


@kernel
def first_come(core: col.Core, now_ns: int, event: int, arg: int) -> int:  # noqa: ARG001 (policies)
    """Send whatever waits, oldest first, on the first plane that takes it."""
    for node in range(len(core.nodes)):
        message = core.nodes[node, col.NODE_OUT_HEAD]
        while message >= 0:
            after = core.messages[message, col.MSG_OUT_NEXT]
            for plane in range(len(core.planes)):
                base = core.planes[plane, col.PLANE_BASE]
                src = core.nodes[node, col.NODE_PORT + plane] - base
                to = core.messages[message, col.MSG_DST]
                dst = core.nodes[to, col.NODE_PORT + plane] - base
                if send(core, plane, src, dst, message, now_ns):
                    break
            message = after
    return 0


@several
@given(st.data())
def test_a_policy_runs_compiled_and_interpreted_alike(data: st.DataObject) -> None:
    graph = data.draw(task_graphs())
    fabric = data.draw(fabrics(graph.nodes, kinds=("ocs",)))
    compiled = ReactiveProgram(policy="first_come", function=first_come)
    plain = ReactiveProgram(policy="first_come", function=first_come.py_func)
    timeline = simulate(graph, fabric, compiled, iterations=2)
    assert times(timeline) == times(simulate(graph, fabric, plain, iterations=2))
    check_rules(timeline, graph, fabric)


def test_send_and_bring_up_refuse_what_would_darken() -> None:
    graph = messages((0, 1, 100), (0, 2, 100), (3, 1, 100))
    fabric = rails(nodes=4, planes=1, rate_bps=8 * 10**9, delay_ns=50)
    layout = prepare(graph, fabric, ReactiveProgram(policy="none", function=idle), iterations=1)
    state = new_state(layout)
    for message in range(3):
        assert dispatch(state, 0, col.EV_READY, message) == 0
    core = state.core
    assert not send(core, 0, 1, 2, 0, 0), "the ports are other nodes'"
    assert not send(core, 0, 0, 9, 0, 0), "there is no such port"
    assert send(core, 0, 0, 1, 0, 0)
    assert not send(core, 0, 0, 1, 0, 0), "it is on its way"
    assert not send(core, 0, 0, 2, 1, 0), "the output is busy"
    assert not send(core, 0, 3, 1, 2, 0), "the input is busy"
    assert not bring_up(core, 0, 3, 1, 0)
    assert bring_up(core, 0, 0, 1, 0), "it stands"
    dispatch(state, 200, col.EV_ARRIVED, 0)
    assert send(core, 0, 3, 1, 2, 200)
    assert rows(state, core.cursor[col.C_ROWS])[0][:4] == (col.DROP, 0, 0, 1)


@kernel
def idle(core: col.Core, now_ns: int, event: int, arg: int) -> int:  # noqa: ARG001 (policies)
    return 0


def test_a_policy_that_does_nothing_stalls() -> None:
    fabric = rails(nodes=4, planes=1)
    program = ReactiveProgram(policy="idle", function=idle)
    with pytest.raises(StalledError, match=r"message 0 .*any plane's"):
        simulate(messages((0, 1, 100)), fabric, program, iterations=1)


def test_a_stall_names_operation_sender_and_circuit() -> None:
    graph = messages((0, 1, 100), (0, 2, 100), arcs=[(0, 1, 0)])
    fabric = rails(nodes=4, planes=1)
    program = OrderedProgram.from_entries([[Entry(0, 2, (1,)), Entry(0, 1, (0,))]])
    with pytest.raises(StalledError) as stall:
        simulate(graph, fabric, program, iterations=2)
    assert str(stall.value) == (
        "iteration 0: operation 0 of node 0 is blocked: message 0 (100 bytes), because the circuit "
        "plane 0 port 0 -> 1 (node 0 to 1) does not come: give the program that circuit in time "
        "(the message has waited since 0 ns)"
    )


@pytest.mark.parametrize("routing", ["direct", "vlb", "rotorlb"])
def test_a_pair_that_is_never_joined_stalls(routing: Any) -> None:
    slots = (Slot(0, (1, 0, -1, -1)),)
    program = TimedProgram(period_ns=10**6, planes=(slots,), routing=routing)
    with pytest.raises(StalledError, match="node 0 to 2"):
        simulate(messages((0, 2, 100)), rails(nodes=4, planes=1), program, iterations=1)


@several
@given(st.data(), st.sampled_from(["vlb", "rotorlb"]))
def test_two_hops_keep_the_rules(data: st.DataObject, routing: Any) -> None:
    graph = data.draw(task_graphs())
    fabric = data.draw(fabrics(graph.nodes, kinds=("ocs",)))
    program = replace(data.draw(timed_programs(fabric)), routing=routing)
    quantum = data.draw(st.sampled_from([0, 50]))
    try:
        timeline = simulate(graph, fabric, program, iterations=2, quantum_bytes=quantum)
    except StalledError:
        return
    transfers = timeline.transfers
    arrived = np.zeros(len(timeline.end_ns), np.int64)
    last = np.tile(graph.dst, 2)[transfers.task] == transfers.to_node
    np.add.at(arrived, transfers.task[last], transfers.size_bytes[last])
    assert arrived.tolist() == np.tile(graph.size_bytes, 2).tolist()
    relayed = np.zeros((2, len(arrived)), np.int64)
    np.add.at(relayed[0], transfers.task[~last], transfers.size_bytes[~last])
    second = transfers.hop == 1
    np.add.at(relayed[1], transfers.task[second], transfers.size_bytes[second])
    assert (relayed[0] == relayed[1]).all()
    check_rules(timeline, graph, fabric)


def test_phases_average_over_the_cycle() -> None:
    graph = messages((0, 1, 100), arcs=[(0, 0, 1)], nodes=2)
    fabric = rails(nodes=2, planes=1, rate_bps=8 * 10**9, delay_ns=0)
    program = TimedProgram(period_ns=1000, planes=((Slot(0, (1, 0)), Slot(500, (-1, -1))),))
    phases = simulate_phases(graph, fabric, program, phases=4, iterations=12, skip=2)
    assert phases.phase_ns == (0, 250, 500, 750)
    assert phases.least_ns <= phases.mean_ns <= phases.most_ns
    assert phases.most_ns == pytest.approx(200, abs=60)  # five messages a cycle


BAD = [
    (lambda p: replace(p, planes=2), "it is for 2 planes"),
    (lambda p: replace(p, src_port=p.src_port + 9), "a port the plane lacks"),
    (lambda p: replace(p, dst_port=p.src_port), "joins a port to itself"),
    (lambda p: replace(p, message=p.message[::-1].copy()), "its entry's ports"),
    (lambda p: replace(p, message=np.zeros(2, np.int64)), "2 times"),
    (lambda p: replace(p, message=p.message + 1), "does not exist"),
    (lambda p: replace(p, message_ptr=p.message_ptr[:-1]), "differ in length"),
    (lambda p: replace(p, initial_circuits=((0, 0, 1), (0, 2, 1))), "no matching"),
    (lambda p: replace(p, initial_circuits=((3, 0, 1),)), "no such plane"),
]


@pytest.mark.parametrize(("spoil", "what"), BAD)
def test_programs_that_do_not_fit_are_refused(spoil: Any, what: str) -> None:
    graph = messages((0, 1, 100), (2, 3, 100))
    program = OrderedProgram.from_entries([[Entry(0, 1, (0,)), Entry(2, 3, (1,))]])
    with pytest.raises(UsageError, match=what):
        simulate(graph, rails(nodes=4, planes=1), spoil(program), iterations=1)


@pytest.mark.parametrize(
    ("program", "what"),
    [
        (TimedProgram(period_ns=0, planes=((),)), "period is 0"),
        (TimedProgram(period_ns=9, planes=((),), phase_ns=9), "phase 9"),
        (TimedProgram(period_ns=9, planes=()), "0 planes"),
        (TimedProgram(period_ns=9, planes=((Slot(9, (1, 0)),),)), "out of order"),
        (TimedProgram(period_ns=9, planes=((Slot(0, (1,)),),)), "lists 1 ports"),
        (TimedProgram(period_ns=9, planes=((Slot(0, (1, 1)),),)), "circuit 1->1"),
    ],
)
def test_timed_programs_that_do_not_fit_are_refused(program: TimedProgram, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        simulate(messages((0, 1, 9), nodes=2), rails(nodes=2, planes=1), program, iterations=1)


def test_a_tick_that_is_very_late_writes_no_more_rows_than_there_are() -> None:
    fabric = rails(nodes=4, planes=2, delay_ns=1_000)
    build = Builder(4)
    build.message(0, 1, 100, 0)
    graph = build.graph()
    program = find("rotor-direct").plan(Problem(graph=graph, fabric=fabric))
    state = new_state(prepare(graph, fabric, program, iterations=1), horizon_ns=10_000)
    interpreted(dispatch)(state, 0, col.EV_START, 0)
    written = [interpreted(dispatch)(state, 10**6, col.EV_TICK, 0) for _ in range(40)]
    assert max(written) <= len(state.core.actions)
    assert written[0] > 0
    assert written[-1] == 0  # the rest came with the next ones
