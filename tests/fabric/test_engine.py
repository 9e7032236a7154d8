from __future__ import annotations

import dataclasses
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scheduler"))

from instances import Builder, direct, ring  # (its path was just added)

from scheduler.check_circuits import check_circuits
from scheduler.check_transfers import check_transfers
from scheduler.dispatch.simulator import simulate
from scheduler.model.problem import Problem
from scheduler.model.program import Entry, OrderedProgram
from scheduler.model.taskgraph import MESSAGE
from scheduler.model.timeline import NONE
from scheduler.policies.registry import find
from testbed.emulator import engine, engine_tables
from testbed.emulator.capacity import Capacity, measure_capacity
from testbed.emulator.dilation import choose
from testbed.emulator.engine import Monitor, attempt, execute
from topologies import (
    CheckError,
    Fabric,
    FluxbedError,
    MachineError,
    StalledError,
    rails,
)

if TYPE_CHECKING:
    from scheduler.model.program import Program
    from scheduler.model.taskgraph import TaskGraph
    from scheduler.model.timeline import Timeline
    from testbed.emulator.dilation import Dilation
    from testbed.emulator.network import EmulatedFabric

# Assumed, not measured: what a test expects must not depend on the machine's mood.
CAPACITY = Capacity(
    frames_per_s=80_000, hop_mean_ns=10_000, hop_p50_ns=8_000, hop_p99_ns=40_000, drift_ns=10_000
)
FABRIC = rails(nodes=4, planes=2, rate_bps=800 * 10**9, delay_ns=50_000)


def step(size_bytes: int = 400_000) -> TaskGraph:
    """A training step of four ranks: rings of two and of four, and an exchange."""
    build, everyone = Builder(4), [0, 1, 2, 3]
    for layer in range(2):
        for rank in everyone:
            build.compute(rank, 20_000 + 1_000 * rank)
        for pair in ([0, 1], [2, 3]):
            build.collective(pair, direct(pair, size_bytes), 0)
        build.collective(everyone, ring(everyone, size_bytes, 1), 0)
        if layer:
            build.collective(everyone, direct(everyone, size_bytes // 2), 0)
    for rank in everyone:
        build.compute(rank, 5_000)
    return build.graph()


def planned(name: str, fabric: Fabric, graph: TaskGraph) -> Program:
    return find(name).plan(Problem(graph=graph, fabric=fabric, budget_s=0.1))


def dilation_for(graph: TaskGraph, fabric: Fabric, program: Program, factor: float) -> Dilation:
    return choose(graph, fabric, program, CAPACITY, factor=factor, iterations=2)


def violations(
    graph: TaskGraph,
    fabric: Fabric,
    program: Program,
    timeline: Timeline,
    dilation: Dilation,
    *,
    lookahead_ns: int = 0,
) -> list[Any]:
    """What the independent checker says, allowing for the latest arrival there was."""
    circuits = timeline.circuits
    nodes = [
        np.array(
            [fabric.node_of(int(k), int(p)) for k, p in zip(circuits.plane, ports, strict=True)]
        )
        for ports in (circuits.src_port, circuits.dst_port)
    ]
    table = {
        "src_port": circuits.src_port,
        "dst_port": circuits.dst_port,
        "src": nodes[0],
        "dst": nodes[1],
        "cause": np.full(len(circuits.plane), "program"),
    }
    lates = {
        name: float(timeline.measures[f"{name}_max_us"] or 0)
        for name in ("lateness", "hop", "transit")
    }
    late_us = max(lates["lateness"] + lates["hop"], lates["transit"], 1_000.0)
    tolerance_ns = int(late_us * 1e3 / dilation.factor) + 2
    return [
        *check_circuits(
            graph,
            fabric,
            program,
            timeline,
            table,
            tolerance_ns=tolerance_ns,
            lookahead_ns=lookahead_ns,
        ),
        *check_transfers(
            graph,
            fabric,
            program,
            timeline,
            tolerance_ns=tolerance_ns,
            quantum_bytes=dilation.quantum_bytes,
        ),
    ]


def check_records(
    graph: TaskGraph,
    fabric: Fabric,
    program: Program,
    timeline: Timeline,
    dilation: Dilation,
    *,
    lookahead_ns: int = 0,
) -> None:
    """Everything that must hold however late the machine was."""
    measures, moves = timeline.measures, timeline.transfers
    total = timeline.iterations * graph.tasks
    assert timeline.origin == "emulated"
    assert len(timeline.end_ns) == total
    assert (timeline.ready_ns >= 0).all()
    assert (timeline.start_ns >= timeline.ready_ns).all()
    assert (timeline.end_ns >= timeline.start_ns).all()
    before, after, _ = graph.unrolled_arcs(timeline.iterations)
    assert (timeline.ready_ns[after] >= timeline.end_ns[before]).all()
    for name in ("lost_bytes", "frames_disordered", "frames_foreign", "interrupted"):
        assert measures[name] == 0
    assert [measures[f"drops_{cause}"] for cause in ("dark", "unconnected", "conflict")] == [
        0,
        0,
        0,
    ]
    columns = (
        moves.wall_bytes_sent,
        moves.wall_bytes_received,
        moves.frames_sent,
        moves.frames_received,
        moves.frames_dark,
        moves.frames_resent,
    )
    assert all(column is not None and len(column) == len(moves.task) for column in columns)
    assert moves.frames_received is not None
    assert moves.frames_sent is not None
    assert moves.frames_received.sum() == measures["frames_received"]
    assert moves.frames_sent.sum() == measures["frames_sent"]
    assert (moves.frames_received >= 1).all()
    leaves = moves.hop == 0
    carried = np.bincount(moves.task[leaves], weights=moves.size_bytes[leaves], minlength=total)
    wanted = np.tile(np.where(graph.kind == MESSAGE, graph.size_bytes, 0), timeline.iterations)
    assert (carried == wanted).all()
    found = violations(graph, fabric, program, timeline, dilation, lookahead_ns=lookahead_ns)
    assert found == []


@pytest.mark.parametrize("name", ["flux", "rotor-direct", "packet-ideal", "greedy"])
def test_a_run_is_whole_and_obeys_the_model(network: EmulatedFabric, name: str) -> None:
    graph = step()
    scheduler = find(name)
    fabric = scheduler.fabric_for(FABRIC)
    program = planned(name, fabric, graph)
    dilation = dilation_for(graph, fabric, program, 50.0)
    timeline = execute(graph, fabric, program, network, dilation=dilation, iterations=2)
    check_records(graph, fabric, program, timeline, dilation)


@pytest.mark.parametrize(
    "change",
    [
        {"duplex": True},
        {"all_stop": True},
        {"duplex": True, "all_stop": True},
        {"control_ns": 20_000},
        {"notify_ns": 30_000},
        {"latency_ns": 10_000},
        {"control_ns": 5_000, "notify_ns": 5_000, "latency_ns": 5_000},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["flux", "rotor-direct"])
def test_every_kind_of_fabric(network: EmulatedFabric, name: str, change: dict[str, Any]) -> None:
    graph = step(200_000)
    fabric = rails(nodes=4, planes=2, delay_ns=50_000, **change)
    program = planned(name, fabric, graph)
    dilation = dilation_for(graph, fabric, program, 30.0)
    timeline = execute(graph, fabric, program, network, dilation=dilation, iterations=2)
    check_records(graph, fabric, program, timeline, dilation)
    if change.get("latency_ns"):
        moves = timeline.transfers
        wire_ns = np.array([fabric.planes[0].transfer_ns(int(b)) for b in moves.size_bytes])
        assert (moves.end_ns - moves.start_ns >= wire_ns + change["latency_ns"] - 2).all()


def test_lookahead_asks_before_the_end(network: EmulatedFabric) -> None:
    graph = step()
    program = planned("flux", FABRIC, graph)
    dilation = dilation_for(graph, FABRIC, program, 50.0)
    timeline = execute(
        graph, FABRIC, program, network, dilation=dilation, iterations=2, lookahead_ns=40_000
    )
    check_records(graph, FABRIC, program, timeline, dilation, lookahead_ns=40_000)


def test_messages_of_a_few_bytes_take_a_frame_each(network: EmulatedFabric) -> None:
    graph = step(size_bytes=8)
    program = planned("flux", FABRIC, graph)
    dilation = dilation_for(graph, FABRIC, program, 50.0)
    timeline = execute(graph, FABRIC, program, network, dilation=dilation, iterations=2)
    check_records(graph, FABRIC, program, timeline, dilation)
    assert timeline.transfers.frames_sent is not None
    assert (timeline.transfers.frames_sent == 1).all()


def test_what_is_measured_is_what_was_predicted(network: EmulatedFabric) -> None:
    """Within bounds that only a broken machine misses; the benchmark gives the real error."""
    graph = step()
    program = planned("flux", FABRIC, graph)
    dilation = dilation_for(graph, FABRIC, program, 200.0)
    timeline = execute(graph, FABRIC, program, network, dilation=dilation, iterations=3)
    predicted = simulate(graph, FABRIC, program, iterations=3)
    # nothing is ever early, to a ns of rounding per task
    assert (timeline.end_ns >= predicted.end_ns - 2).all()
    assert timeline.iteration_ns(1) == pytest.approx(predicted.iteration_ns(1), rel=0.2)


def swapped(program: OrderedProgram) -> OrderedProgram:
    """Exchange two entries that follow each other at one port and lead elsewhere."""
    for first in range(len(program.plane)):
        for second in range(first + 1, len(program.plane)):
            same = program.plane[first] == program.plane[second]
            if same and program.src_port[first] == program.src_port[second]:
                if program.dst_port[first] == program.dst_port[second]:
                    break
                entries = [program.entries(k) for k in range(program.planes)]
                plane = int(program.plane[first])
                offset = int(np.flatnonzero(program.plane == plane)[0])
                row = entries[plane]
                a, b = first - offset, second - offset
                row[a], row[b] = row[b], row[a]
                return OrderedProgram.from_entries(entries, program.initial_circuits)
    raise AssertionError


def hungry() -> tuple[TaskGraph, OrderedProgram]:
    """A node that sends in turn to two others, over circuits that have to change every time."""
    build = Builder(4)
    entries = []
    for turn in range(4):
        for rank in range(4):
            build.compute(rank, 10_000)
        flows = [(0, 1 + turn % 2, 1_000_000, 0, [])]
        build.collective([0, 1, 2], flows, 0)
        entries.append(Entry(0, 1 + turn % 2, (len(build.rows) - 4,)))
    graph = build.graph()
    return graph, OrderedProgram.from_entries([entries, []])


def test_a_wrong_delay_and_a_wrong_order_are_noticed(network: EmulatedFabric) -> None:
    graph, program = hungry()
    fabric = rails(nodes=4, planes=2, delay_ns=500_000)
    dilation = dilation_for(graph, fabric, program, 50.0)
    timeline = execute(graph, fabric, program, network, dilation=dilation, iterations=2)
    right = simulate(graph, fabric, program, iterations=2).iteration_ns(1)
    slow = rails(nodes=4, planes=2, delay_ns=550_000)
    wrong = simulate(graph, slow, program, iterations=2).iteration_ns(1)
    measured = timeline.iteration_ns(1)
    assert right is not None
    assert wrong is not None
    assert measured == pytest.approx(right, rel=0.03)
    assert measured != pytest.approx(wrong, rel=0.03)
    assert violations(graph, slow, program, timeline, dilation) != []
    other = swapped(planned("flux", FABRIC, step()))  # type: ignore[arg-type]
    found = execute(
        step(),
        FABRIC,
        planned("flux", FABRIC, step()),
        network,
        dilation=dilation_for(step(), FABRIC, planned("flux", FABRIC, step()), 50.0),
        iterations=2,
    )
    assert violations(step(), FABRIC, other, found, dilation) != []


def test_a_sabotaged_circuit_fails_the_run(network: EmulatedFabric) -> None:
    graph, program = hungry()
    program = dataclasses.replace(program, initial_circuits=((0, 0, 1),))
    dilation = dilation_for(graph, FABRIC, program, 20.0)

    def cut(built: EmulatedFabric) -> None:
        built.crossbar.set_dark_at(0)

    execution = attempt(
        graph, FABRIC, program, network, dilation=dilation, iterations=1, sabotage=cut
    )
    assert isinstance(execution.error, CheckError)
    assert execution.error.what.endswith("was lost 20 times")
    measures, moves = execution.timeline.measures, execution.timeline.transfers
    assert measures["drops_dark"] == 20
    assert measures["frames_resent"] == 19
    assert measures["lost_bytes"] == moves.size_bytes.sum() > 0
    assert moves.frames_dark is not None
    assert moves.frames_dark.tolist() == [20]
    assert execution.timeline.iteration_ns(0) is None
    with pytest.raises(CheckError):
        execute(graph, FABRIC, program, network, dilation=dilation, iterations=1, sabotage=cut)


def test_a_circuit_led_astray_is_a_conflict(network: EmulatedFabric) -> None:
    graph, program = hungry()
    program = dataclasses.replace(program, initial_circuits=((0, 0, 1),))
    dilation = dilation_for(graph, FABRIC, program, 20.0)

    def astray(built: EmulatedFabric) -> None:
        lit = built.crossbar.table[0, ::2] == 0
        built.crossbar.table[0, 1::2][lit] = built.crossbar.ifindex[3]

    execution = attempt(
        graph, FABRIC, program, network, dilation=dilation, iterations=1, sabotage=astray
    )
    assert isinstance(execution.error, CheckError)
    assert execution.timeline.measures["drops_conflict"] == 20


def test_what_is_lost_for_a_while_is_sent_again(network: EmulatedFabric) -> None:
    graph, program = hungry()
    program = dataclasses.replace(program, initial_circuits=((0, 0, 1),))
    dilation = dilation_for(graph, FABRIC, program, 20.0)
    repaired_ns = 5_000_000

    def cut_for_a_while(built: EmulatedFabric) -> None:
        built.crossbar.set_dark_at(0)
        zero_ns = time.monotonic_ns() + engine._LEAD_NS
        built.crossbar.set_circuit_at(0, 1, zero_ns + repaired_ns)

    execution = attempt(
        graph, FABRIC, program, network, dilation=dilation, iterations=1, sabotage=cut_for_a_while
    )
    measures = execution.timeline.measures
    assert execution.error is None
    assert measures["drops_dark"] == measures["frames_resent"] > 0
    assert measures["lost_bytes"] == 0
    assert measures["frames_received"] == measures["frames_sent"] - measures["frames_resent"]


def test_a_run_can_be_stopped(network: EmulatedFabric) -> None:
    graph = step()
    program = planned("flux", FABRIC, graph)
    dilation = dilation_for(graph, FABRIC, program, 20_000.0)
    monitor = Monitor()

    def stop() -> None:
        while monitor.tasks_done < 4:
            time.sleep(0.005)
        monitor.stop()

    watcher = threading.Thread(target=stop)
    watcher.start()
    execution = attempt(
        graph, FABRIC, program, network, dilation=dilation, iterations=4, monitor=monitor
    )
    watcher.join()
    assert execution.interrupted
    assert execution.error is None
    assert execution.timeline.measures["interrupted"] == 1
    assert 4 <= (execution.timeline.end_ns != NONE).sum() < 4 * graph.tasks
    assert monitor.wall_ns > 0
    again = dilation_for(graph, FABRIC, program, 20.0)
    timeline = execute(graph, FABRIC, program, network, dilation=again, iterations=2)
    check_records(graph, FABRIC, program, timeline, again)


def test_ctrl_c_stops_a_run_and_keeps_what_there_is(
    network: EmulatedFabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = step()
    program = planned("flux", FABRIC, graph)
    dilation = dilation_for(graph, FABRIC, program, 20_000.0)
    waited = engine.RealtimeThread.wait
    pressed: list[int] = []

    def wait(thread: Any, timeout_s: float) -> bool:
        ended: bool = waited(thread, timeout_s)
        if not pressed:
            pressed.append(1)
            raise KeyboardInterrupt
        return ended

    monkeypatch.setattr(engine.RealtimeThread, "wait", wait)
    execution = attempt(graph, FABRIC, program, network, dilation=dilation)
    assert pressed
    assert execution.interrupted


def test_without_real_time_there_is_no_run(
    network: EmulatedFabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    graph = step()
    program = planned("flux", FABRIC, graph)
    with pytest.raises(MachineError, match="no thread can be real-time") as refused:
        execute(
            graph, FABRIC, program, network, dilation=dilation_for(graph, FABRIC, program, 20.0)
        )
    assert refused.value.exit_code == 4


def test_a_program_that_waits_for_ever_is_stalled(network: EmulatedFabric) -> None:
    graph, program = hungry()
    first, second, *rest = program.entries(0)
    crossed = OrderedProgram.from_entries([[second, first, *rest], []])
    dilation = dilation_for(graph, FABRIC, program, 20.0)
    with pytest.raises(StalledError, match="is blocked"):
        execute(graph, FABRIC, crossed, network, dilation=dilation, iterations=1, limit_ns=10**9)


def test_a_run_that_takes_too_long_is_given_up(network: EmulatedFabric) -> None:
    graph = step()
    program = planned("flux", FABRIC, graph)
    dilation = dilation_for(graph, FABRIC, program, 50.0)
    with pytest.raises(MachineError, match=r"its limit of .* s on the wall has passed"):
        execute(graph, FABRIC, program, network, dilation=dilation, limit_ns=50_000)


def test_a_full_table_stops_the_run(
    network: EmulatedFabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, program = hungry()
    monkeypatch.setattr(engine_tables, "_most_circuits", lambda *_: 2)
    dilation = dilation_for(graph, FABRIC, program, 20.0)
    with pytest.raises(FluxbedError, match="its table of circuits is full"):
        execute(graph, FABRIC, program, network, dilation=dilation, iterations=1)


def test_capacity_is_measured_once(network: EmulatedFabric) -> None:
    capacity = measure_capacity(network)
    assert capacity.frames_per_s > 1_000
    assert 0 < capacity.hop_p50_ns <= capacity.hop_p99_ns
    assert measure_capacity(network) is capacity
