"""Word to the controller, commands from it, and asking ahead: circuits shift as the model says."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scheduler"))

from instances import Builder  # (its path was just added)

from scheduler.dispatch.simulator import simulate
from scheduler.model.program import Entry, OrderedProgram
from testbed.emulator.capacity import Capacity
from testbed.emulator.dilation import choose
from testbed.emulator.engine import execute
from topologies import rails
from topologies.errors import CheckError

if TYPE_CHECKING:
    from scheduler.model.taskgraph import TaskGraph
    from testbed.emulator.network import EmulatedFabric

FABRIC = rails(nodes=4, planes=2, rate_bps=800 * 10**9, delay_ns=100_000)
CAPACITY = Capacity(
    frames_per_s=80_000, hop_mean_ns=10_000, hop_p50_ns=8_000, hop_p99_ns=40_000, drift_ns=10_000
)
FACTOR, ITERATIONS, TURNS = 50.0, 2, 4
SIZE_BYTES = 50_000_000  # half a millisecond
SLACK_NS = 100_000  # 5 ms on the wall
TRIES = 5  # a circuit that goes dark with a message's last bit loses it where the machine is late


def alternating() -> tuple[TaskGraph, OrderedProgram]:
    """A node that sends in turn to two others: every message needs another circuit."""
    build, entries = Builder(4), []
    for turn in range(TURNS):
        for rank in range(4):
            build.compute(rank, 1_000)
        build.collective([0, 1, 2], [(0, 1 + turn % 2, SIZE_BYTES, 0, [])], 0)
        entries.append(Entry(0, 1 + turn % 2, (len(build.rows) - 4,)))
    return build.graph(), OrderedProgram.from_entries([entries, []])


@pytest.mark.parametrize(
    ("change", "lookahead_ns", "asked_ns"),
    [
        ({}, 0, 0),
        ({"notify_ns": 400_000}, 0, 400_000),
        ({"control_ns": 300_000}, 0, 0),
        ({"control_ns": 300_000}, 200_000, -200_000),
        ({"control_ns": 100_000}, 200_000, -100_000),  # no sooner: the old circuit is in use
        ({"control_ns": 300_000, "notify_ns": 50_000}, 200_000, -150_000),
    ],
    ids=str,
)
def test_circuits_are_asked_for_when_the_model_says(
    network: EmulatedFabric, change: dict[str, int], lookahead_ns: int, asked_ns: int
) -> None:
    graph, program = alternating()
    fabric = dataclasses.replace(FABRIC, **change)
    dilation = choose(graph, fabric, program, CAPACITY, factor=FACTOR, iterations=ITERATIONS)
    for left in reversed(range(TRIES)):
        try:
            timeline = execute(
                graph, fabric, program, network,
                dilation=dilation, iterations=ITERATIONS, lookahead_ns=lookahead_ns,
            )  # fmt: skip
            break
        except CheckError:
            if not left:
                raise
    predicted = simulate(graph, fabric, program, iterations=ITERATIONS, lookahead_ns=lookahead_ns)
    circuits, moves = timeline.circuits, timeline.transfers
    assert len(circuits.plane) == len(moves.task) == ITERATIONS * TURNS
    last_bit_ns = moves.start_ns + FABRIC.planes[0].transfer_ns(SIZE_BYTES)
    early = circuits.request_ns[1:] - last_bit_ns[:-1]
    assert (early >= asked_ns - 2).all()
    assert (early <= asked_ns + SLACK_NS).all()
    control_ns = change.get("control_ns", 0)
    assert (circuits.dark_ns - circuits.request_ns == control_ns).all()
    assert (circuits.dark_ns[1:] >= last_bit_ns[:-1] - 2).all()  # never under a message
    assert (moves.start_ns >= circuits.up_ns).all()
    assert timeline.end_ns[-1] == pytest.approx(predicted.end_ns[-1], rel=0.2)
    shifts = predicted.circuits.request_ns[1:] - predicted.transfers.end_ns[:-1]
    assert (shifts == asked_ns).all()
