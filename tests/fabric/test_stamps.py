"""No frame passes a dark or foreign port: receivers' stamps against the plan, and the sabotage."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scheduler"))

from instances import Builder, direct, ring  # (its path was just added)

from scheduler.model.problem import Problem
from scheduler.model.program import Entry, OrderedProgram, TimedProgram
from scheduler.policies.registry import find
from testbed.emulator.capacity import Capacity
from testbed.emulator.dilation import choose
from testbed.emulator.engine import attempt
from testbed.emulator.packets import PacketCapture
from testbed.emulator.stamps import (
    light_of_circuits,
    light_of_slots,
    misplaced,
    read_arrivals,
)
from topologies import CheckError, rails

if TYPE_CHECKING:
    from collections.abc import Callable

    from scheduler.model.program import Program
    from scheduler.model.taskgraph import TaskGraph
    from testbed.emulator.engine import Execution
    from testbed.emulator.network import EmulatedFabric
    from testbed.emulator.stamps import Arrivals

NODES, FACTOR, ITERATIONS = 4, 50.0, 2
FABRIC = rails(nodes=NODES, planes=2, rate_bps=800 * 10**9, delay_ns=20_000)
CAPACITY = Capacity(
    frames_per_s=80_000, hop_mean_ns=10_000, hop_p50_ns=8_000, hop_p99_ns=40_000, drift_ns=10_000
)
SLACK_NS = int(100_000 / FACTOR)  # what clocks and the way through the switch may be off by


def step() -> TaskGraph:
    build, everyone = Builder(NODES), list(range(NODES))
    for rank in everyone:
        build.compute(rank, 20_000 + 1_000 * rank)
    build.collective(everyone, ring(everyone, 800_000, 1), 0)
    build.collective(everyone, direct(everyone, 800_000), 0)
    return build.graph()


def captured(
    network: EmulatedFabric,
    path: Path,
    graph: TaskGraph,
    program: Program,
    sabotage: Callable[[EmulatedFabric], None] | None = None,
) -> tuple[Execution, Arrivals]:
    dilation = choose(graph, FABRIC, program, CAPACITY, factor=FACTOR, iterations=ITERATIONS)
    capture = PacketCapture(network, range(NODES), path)
    with capture:
        execution = attempt(
            graph, FABRIC, program, network,
            dilation=dilation, iterations=ITERATIONS, sabotage=sabotage,
        )  # fmt: skip
    zero_ns = capture.zero(execution.timeline)["pcap_zero_ns"]
    arrivals = read_arrivals(capture.paths, range(NODES), FABRIC, zero_ns=zero_ns, factor=FACTOR)
    return execution, arrivals


@pytest.mark.parametrize("name", ["flux", "greedy", "rotor-direct"])
def test_no_frame_passes_a_dark_or_foreign_port(
    network: EmulatedFabric, tmp_path: Path, name: str
) -> None:
    graph = step()
    program = find(name).plan(Problem(graph=graph, fabric=FABRIC, budget_s=0.1))
    execution, arrivals = captured(network, tmp_path, graph, program)
    assert execution.error is None
    timeline = execution.timeline
    if isinstance(program, TimedProgram):
        light = light_of_slots(program, FABRIC, int(timeline.end_ns.max()))
    else:
        light = light_of_circuits(timeline.circuits, FABRIC)
    found = misplaced(arrivals, light, slack_ns=SLACK_NS)
    received = timeline.measures["frames_received"]
    assert received
    assert found.frames == pytest.approx(received, rel=0.2)  # a capture may lose some
    assert (found.dark, found.foreign) == (0, 0)
    # the same stamps against another plan: the test can fail
    wrong = light._replace(node=(light.node + 1) % NODES)
    assert misplaced(arrivals, wrong, slack_ns=SLACK_NS).foreign > 0.9 * found.frames
    unlit = light._replace(down_ns=light.up_ns)
    assert misplaced(arrivals, unlit, slack_ns=SLACK_NS).dark > 0.5 * found.frames


def test_a_led_astray_frame_is_seen_where_it_arrives(
    network: EmulatedFabric, tmp_path: Path
) -> None:
    build = Builder(NODES)
    for rank in range(NODES):
        build.compute(rank, 10_000)
    build.collective([0, 1], [(0, 1, 1_000_000, 0, [])], 0)
    graph = build.graph()
    entry = Entry(0, 1, (len(build.rows) - 3,))
    program = OrderedProgram.from_entries([[entry], []], initial_circuits=((0, 0, 1),))

    def astray(built: EmulatedFabric) -> None:
        built.crossbar.set_dark_at(0)
        built.crossbar.set_circuit_at(0, 3)

    execution, arrivals = captured(network, tmp_path, graph, program, astray)
    assert isinstance(execution.error, CheckError)
    light = light_of_circuits(execution.timeline.circuits, FABRIC)
    found = misplaced(arrivals, light, slack_ns=SLACK_NS)
    assert found.foreign == found.frames > 0
