"""Every fault on every kind of program, small: what must hold however the machine is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scheduler"))

from instances import Builder, direct, ring  # (its path was just added)

from scheduler.dispatch.simulator import simulate
from scheduler.model.problem import Problem
from scheduler.model.taskgraph import COMPUTE, MESSAGE
from scheduler.model.timeline import NONE
from scheduler.policies.registry import find
from testbed.emulator.capacity import Capacity
from testbed.emulator.dilation import choose
from testbed.emulator.engine import attempt
from testbed.files.faults import faulted_fabric, parse_faults, predictable
from topologies import StalledError, UsageError, rails

if TYPE_CHECKING:
    from scheduler.model.taskgraph import TaskGraph
    from testbed.emulator.engine import Execution
    from testbed.emulator.network import EmulatedFabric
    from topologies import Fabric

CAPACITY = Capacity(
    frames_per_s=80_000, hop_mean_ns=10_000, hop_p50_ns=8_000, hop_p99_ns=40_000, drift_ns=10_000
)
FABRIC = rails(nodes=4, planes=2, rate_bps=800 * 10**9, delay_ns=50_000)
QUICK = rails(nodes=4, planes=2, rate_bps=800 * 10**9, delay_ns=4_000)
FACTOR = 50.0
SCHEDULERS = ("flux", "greedy", "rotor-direct")
DROPS = ("dark", "unconnected", "conflict")


def step(size_bytes: int = 400_000) -> TaskGraph:
    """A training step of four ranks: rings of two and of four, and an exchange."""
    build, everyone = Builder(4), [0, 1, 2, 3]
    for _ in range(2):
        for rank in everyone:
            build.compute(rank, 20_000 + 1_000 * rank)
        for pair in ([0, 1], [2, 3]):
            build.collective(pair, direct(pair, size_bytes), 0)
        build.collective(everyone, ring(everyone, size_bytes, 1), 0)
    return build.graph()


def execute(
    network: EmulatedFabric,
    name: str,
    *texts: str,
    fabric: Fabric = FABRIC,
    seed: int = 1,
    **more: Any,
) -> Execution:
    graph, fabric = step(), find(name).fabric_for(fabric)
    program = find(name).plan(Problem(graph=graph, fabric=fabric, budget_s=0.1))
    dilation = choose(graph, fabric, program, CAPACITY, factor=FACTOR, iterations=2)
    faults = parse_faults(texts, fabric)
    return attempt(
        graph, fabric, program, network,
        dilation=dilation, iterations=2, faults=faults, seed=seed, **more,
    )  # fmt: skip


def check_accounts(execution: Execution) -> None:
    """Every byte arrived once, and every frame that did not is some fault's."""
    assert execution.error is None
    timeline = execution.timeline
    measures, moves = timeline.measures, timeline.transfers
    graph = step()
    assert (timeline.end_ns != NONE).all()
    assert measures["lost_bytes"] == measures["frames_disordered"] == 0
    carried = np.bincount(moves.task, weights=moves.size_bytes, minlength=2 * graph.tasks)
    wanted = np.tile(np.where(graph.kind == MESSAGE, graph.size_bytes, 0), 2)
    assert (carried == wanted).all()
    assert moves.frames_resent is not None
    assert moves.frames_resent.sum() == measures["frames_resent"]
    dropped = sum(int(measures[f"drops_{cause}"] or 0) for cause in DROPS)
    lost = sum(effect.frames_lost for effect in execution.effects)
    missing = int(measures["frames_sent"] or 0) - int(measures["frames_received"] or 0)
    useless = int(measures["frames_discarded"] or 0) + int(measures["frames_duplicate"] or 0)
    assert missing == dropped + int(measures["frames_spoilt"] or 0) + useless
    assert dropped + int(measures["frames_spoilt"] or 0) == lost


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize(
    "text",
    [
        "stuck-dark:plane=0,port=1,at=100us,for=300us",
        "lost-plane:plane=1,at=50us,for=200us",
    ],
)
def test_an_outage_that_passes_costs_frames_and_time(
    network: EmulatedFabric, name: str, text: str
) -> None:
    execution = execute(network, name, text)
    check_accounts(execution)
    (effect,) = execution.effects
    assert effect.frames_lost == execution.timeline.measures["drops_dark"]
    assert effect.frames_resent >= effect.frames_lost
    if name != "greedy":  # whose circuits may have been elsewhere
        assert effect.frames_lost > 0


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("text", ["stuck-dark:plane=0,port=1", "lost-plane:plane=0,at=150us"])
def test_an_outage_for_good_stops_the_run_and_says_where(
    network: EmulatedFabric, name: str, text: str
) -> None:
    execution = execute(network, name, text)
    assert isinstance(execution.error, StalledError)
    assert "is blocked: message" in execution.error.what
    assert "rank" in execution.error.what
    assert execution.error.why.startswith("the circuit plane 0 port ")
    assert execution.error.why.endswith(f"passes nothing under {text}")


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_slow_plane_slows_its_frames(network: EmulatedFabric, name: str) -> None:
    execution = execute(network, name, "slow-plane:plane=0,rate=200Gbps")
    check_accounts(execution)
    timeline = execution.timeline
    moves = timeline.transfers
    took_ns = moves.end_ns - moves.start_ns
    slow = moves.plane == 0
    assert slow.any()
    assert (took_ns[slow] >= moves.size_bytes[slow] * 8 // 200 - 2).all()
    assert timeline.measures["frames_resent"] == 0


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_paused_host_computes_and_sends_nothing(network: EmulatedFabric, name: str) -> None:
    execution = execute(network, name, "paused-host:host=h2,at=10us,for=500us")
    check_accounts(execution)
    timeline, graph = execution.timeline, step()
    (effect,) = execution.effects
    assert effect.delayed > 0
    assert effect.delay_most_ns <= 500_000
    kind, rank = np.tile(graph.kind, 2), np.tile(graph.rank, 2)
    first = np.flatnonzero((kind == COMPUTE) & (rank == 2))[0]
    assert timeline.end_ns[first] == graph.dur_ns[first] + 500_000
    moves = timeline.transfers
    own = moves.from_node == 2
    assert not ((moves.start_ns[own] > 10_000) & (moves.start_ns[own] < 510_000)).any()


@pytest.mark.parametrize("name", SCHEDULERS)
def test_lost_frames_are_sent_again_with_what_followed(network: EmulatedFabric, name: str) -> None:
    execution = execute(network, name, "frame-loss:share=0.05")
    check_accounts(execution)
    (effect,) = execution.effects
    assert effect.frames_lost == execution.timeline.measures["frames_spoilt"] > 0
    assert effect.bytes_lost > 0
    assert effect.frames_resent == execution.timeline.measures["frames_resent"]
    assert effect.frames_resent >= effect.frames_lost
    assert execution.timeline.measures["drops_dark"] == 0


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize(
    ("kind", "dist", "most_ns"),
    [
        ("late-commands", "fixed", 2_000),
        ("late-commands", "exponential", 20_000),
        ("late-lock", "uniform", 4_000),
    ],
)
def test_late_light_is_waited_for(
    network: EmulatedFabric, name: str, kind: str, dist: str, most_ns: int
) -> None:
    execution = execute(network, name, f"{kind}:mean=2us,dist={dist}", fabric=QUICK)
    check_accounts(execution)
    circuits = execution.timeline.circuits
    asked = circuits.request_ns != NONE
    late = (circuits.dark_ns - circuits.request_ns)[asked]
    slow = (circuits.up_ns - circuits.dark_ns)[asked] - QUICK.planes[0].delay_ns
    shifted, alike = (late, slow) if kind == "late-commands" else (slow, late)
    assert len(shifted) > 0
    assert (alike == 0).all()
    assert (shifted >= 0).all()
    assert (circuits.fault[asked] == (shifted > 0)).all()
    (effect,) = execution.effects
    assert effect.delayed >= (shifted > 0).sum() > 0
    assert effect.frames_lost == 0
    if dist == "fixed":
        assert (shifted >= most_ns).all()
    elif kind == "late-lock":  # commands queue behind each other besides
        assert (shifted <= most_ns).all()


def test_what_lasts_can_be_predicted(network: EmulatedFabric) -> None:
    """Within bounds that only a broken machine misses."""
    texts = ("slow-plane:plane=1,rate=400Gbps", "late-lock:mean=30us,dist=fixed")
    faults = parse_faults(texts, FABRIC)
    assert predictable(faults, timed=False)
    graph = step()
    program = find("flux").plan(Problem(graph=graph, fabric=FABRIC, budget_s=0.1))
    predicted = simulate(graph, faulted_fabric(FABRIC, faults), program, iterations=2)
    execution = execute(network, "flux", *texts)
    check_accounts(execution)
    assert (execution.timeline.end_ns >= predicted.end_ns - 2).all()
    assert execution.timeline.iteration_ns(1) == pytest.approx(predicted.iteration_ns(1), rel=0.2)


def test_the_seed_decides_what_is_lost(network: EmulatedFabric) -> None:
    text = "frame-loss:share=0.05"
    lost = [execute(network, "flux", text, seed=seed).effects[0].frames_lost for seed in (1, 2)]
    assert lost[0] != lost[1] or lost[0] > 0


def test_commands_later_than_a_slot_are_refused(network: EmulatedFabric) -> None:
    with pytest.raises(UsageError, match="shortest slot"):
        execute(network, "rotor-direct", "late-commands:mean=1s")
