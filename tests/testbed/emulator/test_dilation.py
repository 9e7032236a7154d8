from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scheduler"))

from instances import Builder, direct, ring  # (its path was just added)

from scheduler.dispatch.simulator import simulate
from scheduler.model.problem import Problem
from scheduler.model.program import Entry, OrderedProgram, Slot, TimedProgram
from scheduler.policies.greedy import Greedy
from scheduler.policies.rotor import RotorDirect, RotorVlb
from testbed.emulator.capacity import Capacity
from testbed.emulator.dilation import _two_digits, choose, critical_messages, dilate
from topologies import Fabric, UsageError, rails
from topologies.units import format_duration

if TYPE_CHECKING:
    from scheduler.model.program import Program
    from scheduler.model.taskgraph import TaskGraph

CAPACITY = Capacity(
    frames_per_s=200_000, hop_mean_ns=8_000, hop_p50_ns=6_000, hop_p99_ns=20_000, drift_ns=10_000
)


def chain(steps: int, size_bytes: int = 1_000_000, compute_ns: int = 0) -> TaskGraph:
    """Node 0 and 1 send to each other in turn."""
    build, last = Builder(2), None
    for step in range(steps):
        task = build.message(step % 2, 1 - step % 2, size_bytes, build.op(), group=step)
        if last is not None:
            build.arc(last, task)
        last = task
    assert last is not None
    end = build.compute(0, compute_ns)
    build.arc(last, end)
    graph = build.graph()
    build.arc(end, 0, distance=1)
    del graph
    return build.graph()


def standing(fabric: Fabric, graph: TaskGraph) -> OrderedProgram:
    """One circuit each way on plane 0, always lit."""
    ends = [tuple(int(m) for m in graph.messages if graph.src[m] == node) for node in range(2)]
    entries = [[Entry(0, 1, ends[0]), Entry(1, 0, ends[1])], *([[]] * (len(fabric.planes) - 1))]
    return OrderedProgram.from_entries(entries, [(0, 0, 1), (0, 1, 0)])


@settings(deadline=None)  # the first example compiles
@given(st.floats(0.01, 10_000))
def test_a_dilated_execution_takes_so_much_longer(factor: float) -> None:
    graph = chain(4, compute_ns=5_000)
    fabric = rails(nodes=2, planes=1, delay_ns=10_000, latency_ns=500)
    program = standing(fabric, graph)
    end_ns = simulate(graph, fabric, program, iterations=2).end_ns.max()
    slow_ns = simulate(*dilate(graph, fabric, program, factor), iterations=2).end_ns.max()
    # rounding: every task by a ns or two
    assert slow_ns == pytest.approx(end_ns * factor, rel=1e-6, abs=3 * 2 * graph.tasks)


@settings(deadline=None)
@given(st.floats(0.01, 1_000), st.integers(0, 899_999))
def test_a_dilated_rotor_keeps_its_slots_in_order(factor: float, phase_ns: int) -> None:
    fabric = rails(nodes=4, planes=2, delay_ns=10_000)
    plan = RotorDirect(phase_ns=phase_ns).plan(Problem(graph=chain(2), fabric=fabric))
    program = dilate(chain(2), fabric, plan, factor)[2]
    assert isinstance(program, TimedProgram)
    assert 0 <= program.phase_ns < program.period_ns
    for slots in program.planes:
        offsets = [slot.offset_ns for slot in slots]
        assert offsets == sorted(set(offsets))
        assert offsets[-1] < program.period_ns


def test_the_reconfiguration_delay_binds() -> None:
    graph, fabric = chain(1, compute_ns=10**9), rails(nodes=2, planes=1, delay_ns=1_000)
    chosen = choose(graph, fabric, standing(fabric, graph), CAPACITY)
    assert (chosen.bound_by, chosen.factor) == ("reconfiguration delay", 400.0)  # 20 * 20 us / 1 us
    assert chosen.expected_wall_s == pytest.approx(400 * 4 * (10**9 + 10_000) / 1e9)
    assert chosen.guard_ns == 0


def test_the_critical_path_binds() -> None:
    graph, fabric = chain(10), rails(nodes=2, planes=1, delay_ns=0)
    chosen = choose(graph, fabric, standing(fabric, graph), CAPACITY)
    # ten messages in 100 us, each 10 us late on the wall: 100 us are 0.25 % of 40 ms
    assert (chosen.bound_by, chosen.factor) == ("critical path", 400.0)


def test_the_frame_rate_binds() -> None:
    build = Builder(3)
    messages = [build.message(0, 1, 8, build.op(), group=k) for k in range(2_000)]
    end = build.compute(0, 1_000_000)
    for m in messages:
        build.arc(m, end)
    build.arc(end, messages[0], distance=1)
    graph, fabric = build.graph(), rails(nodes=3, planes=1, delay_ns=0)
    program = OrderedProgram.from_entries([[Entry(0, 1, tuple(messages))]])
    chosen = choose(graph, fabric, program, CAPACITY, iterations=1)
    # 2,000 frames in 1 ms at 100,000 a second, with next to nothing of the links in use
    assert chosen.bound_by == "frame rate"
    assert chosen.factor == pytest.approx(20, abs=1)


def test_frames_are_fine_enough_for_slots() -> None:
    build = Builder(8)
    for _ in range(3):
        for rank in range(8):
            build.compute(rank, 500_000)
        build.collective(list(range(8)), direct(list(range(8)), 3_000_000), 0)
    graph, fabric = build.graph(), rails(nodes=8, planes=2, delay_ns=100_000)
    program = RotorDirect(slot_ns=200_000).plan(Problem(graph=graph, fabric=fabric))
    chosen = choose(graph, fabric, program, CAPACITY)
    slot_bytes = 100_000 * fabric.planes[0].rate_bps / 8e9
    assert chosen.bound_by in ("frames per slot", "slots")
    assert slot_bytes / chosen.quantum_bytes >= 50
    assert chosen.guard_ns * chosen.factor >= 50_000
    ideal, framed = (
        simulate(graph, fabric, program, iterations=4, **how).end_ns.max()
        for how in ({}, {"quantum_bytes": chosen.quantum_bytes, "guard_ns": chosen.guard_ns})
    )
    assert framed == pytest.approx(ideal, rel=0.01)


def test_what_just_fits_into_a_slot_fits_on_a_late_machine_too() -> None:
    # node 1 answers after a computation, and 5 us of the slot are left
    build = Builder(2)
    before = build.compute(0, 5_000_000)
    first = build.message(0, 1, 1_000_000, build.op(), group=0)
    work = build.compute(1, 100_000)
    answer = build.message(1, 0, 28_500_000, build.op(), group=1)
    last = build.compute(0, 0)
    build.arc(before, first)
    build.arc(first, work)
    build.arc(work, answer)
    build.arc(answer, last)
    build.arc(last, before, distance=1)
    graph, fabric = build.graph(), rails(nodes=2, planes=1, delay_ns=100_000)
    slots = (Slot(0, (1, 0)), Slot(500_000, (1, 0)))
    program = TimedProgram(period_ns=1_000_000, planes=(slots,))
    chosen = choose(graph, fabric, program, CAPACITY, iterations=1)
    assert chosen.bound_by == "slots"

    def ends_ns(late_ns: int) -> int:
        slow = dataclasses.replace(fabric, latency_ns=fabric.latency_ns + late_ns)
        framed = {"quantum_bytes": chosen.quantum_bytes, "guard_ns": chosen.guard_ns}
        return int(simulate(graph, slow, program, iterations=1, **framed).end_ns.max())

    late_ns = round(4 * CAPACITY.hop_p99_ns / chosen.factor)
    assert ends_ns(late_ns) <= 1.01 * ends_ns(0)
    assert ends_ns(40 * late_ns) > ends_ns(0) + fabric.planes[0].delay_ns


def test_all_ports_together_send_half_of_what_was_measured() -> None:
    graph, fabric = chain(3), rails(nodes=2, planes=3, delay_ns=10_000)
    chosen = choose(graph, fabric, standing(fabric, graph), CAPACITY, factor=50.0)
    assert chosen.bound_by == "given"
    assert chosen.wall_bps == 100_000 * 4096 * 8 // 6
    wall_ns = chosen.quantum_bytes * 8e9 / fabric.planes[0].rate_bps * 50
    assert wall_ns == pytest.approx(1e9 / (100_000 / 6), rel=1e-3)
    finer = choose(graph, fabric, standing(fabric, graph), CAPACITY, factor=100.0)
    assert finer.wall_bps == chosen.wall_bps
    assert finer.quantum_bytes == pytest.approx(chosen.quantum_bytes / 2, abs=1)


@pytest.mark.parametrize("factor", [0.0, -1.0, 1e7, float("nan")])
def test_an_impossible_factor_is_refused(factor: float) -> None:
    graph, fabric = chain(1), rails(nodes=2)
    with pytest.raises(UsageError, match=r"^dilation: a dilation of .*correct it, or use auto$"):
        choose(graph, fabric, standing(fabric, graph), CAPACITY, factor=factor)


def test_critical_messages_of_a_chain_are_all_of_them() -> None:
    graph, fabric = chain(7), rails(nodes=2, planes=1, delay_ns=10_000)
    timeline = simulate(graph, fabric, standing(fabric, graph), iterations=3)
    assert critical_messages(graph, timeline) == 21


def test_critical_messages_of_a_ring_are_its_steps() -> None:
    build = Builder(4)
    for rank in range(4):
        build.compute(rank, 10_000)
    build.collective([0, 1, 2, 3], ring([0, 1, 2, 3], 500_000, 1), 0)
    graph, fabric = build.graph(), rails(nodes=4, planes=1, delay_ns=0)
    to_next = [
        Entry(n, (n + 1) % 4, tuple(int(m) for m in graph.messages if graph.src[m] == n))
        for n in range(4)
    ]
    program = OrderedProgram.from_entries([to_next])
    timeline = simulate(graph, fabric, program, iterations=5)
    assert critical_messages(graph, timeline) == 3 * 5


def test_a_message_that_waits_for_its_port_is_critical_through_it() -> None:
    build = Builder(3)
    first = build.message(0, 1, 1_000_000, build.op(), group=0)
    second = build.message(0, 2, 1_000_000, build.op(), group=1)
    fabric = rails(nodes=3, planes=1, delay_ns=10_000)
    program = OrderedProgram.from_entries([[Entry(0, 1, (first,)), Entry(0, 2, (second,))]])
    graph = build.graph()
    assert critical_messages(graph, simulate(graph, fabric, program, iterations=1)) == 2


def test_a_message_that_passes_a_relay_arrives_twice() -> None:
    build = Builder(3)
    for dst in (1, 2):
        build.message(0, dst, 1_000_000, build.op(), group=dst)
    graph, fabric = build.graph(), rails(nodes=3, planes=1, delay_ns=10_000)
    # the first slot leads to one of the two, which stores what is for the other
    program = RotorVlb().plan(Problem(graph=graph, fabric=fabric))
    timeline = simulate(graph, fabric, program, iterations=1)
    assert timeline.transfers.hop.tolist().count(1) > 0
    assert critical_messages(graph, timeline, timed=True) == 2


@given(st.floats(1e-6, 1e9))
def test_factors_are_rounded_up_to_two_digits(value: float) -> None:
    rounded = _two_digits(value)
    assert rounded >= value * (1 - 1e-9)
    assert rounded <= max(value * 1.1 * (1 + 1e-9), 0.01)
    if rounded > 0.01:
        digits = np.format_float_scientific(rounded, trim="-").split("e")[0].replace(".", "")
        assert len(digits) <= 2


@pytest.mark.parametrize("p99_ns", [20_000, 5_000_000])
def test_a_guard_as_long_as_a_slot_is_not_the_program_s_fault(p99_ns: int) -> None:
    build = Builder(2)
    build.message(0, 1, 100_000, build.op(), group=0)
    graph, fabric = build.graph(), rails(nodes=2, planes=1, delay_ns=10_000)
    program = RotorDirect(slot_ns=60_000).plan(Problem(graph=graph, fabric=fabric))
    late = dataclasses.replace(CAPACITY, hop_p99_ns=p99_ns)
    guard_ns = max(50_000, p99_ns)  # on the wall; 50 us of each slot are lit
    with pytest.raises(UsageError) as refused:
        choose(graph, fabric, program, late, factor=guard_ns / 50_000)
    assert str(refused.value) == (
        f"dilation: no frame can be sent in a slot at a dilation of {guard_ns / 50_000:g}, because "
        f"a slot is lit for 50 us, and frames on this machine are late by "
        f"{format_duration(guard_ns)} on the wall, 50 us of it: use a dilation above "
        f"{guard_ns / 50_000:g}, or auto, or longer slots"
    )
    for factor in (None, 1.1 * guard_ns / 50_000):
        chosen = choose(graph, fabric, program, late, factor=factor)
        assert chosen.guard_ns < 50_000
        assert simulate(graph, fabric, program, guard_ns=chosen.guard_ns).end_ns.min() > 0


def two_ask(*ranks: tuple[int, int]) -> tuple[TaskGraph, Fabric, Program]:
    """Whoever asks first, each after some ns, has the only way to node 2; then each computes."""
    build = Builder(3)
    for source, (asks_ns, work_ns) in enumerate(ranks):
        before = build.compute(source, asks_ns)
        asks = build.message(source, 2, 1_000_000, build.op(), group=source)
        after = build.compute(source, work_ns)
        build.arc(before, asks)
        build.arc(asks, after)
        build.arc(after, before, distance=1)
    graph, fabric = build.graph(), rails(nodes=3, planes=1, delay_ns=100_000)
    return graph, fabric, Greedy().plan(Problem(graph=graph, fabric=fabric))


def test_a_reactive_program_is_slowed_until_lateness_does_not_decide() -> None:
    graph, fabric, program = two_ask((200_000, 0), (240_000, 1_000_000))
    chosen = choose(graph, fabric, program, CAPACITY, iterations=2)
    assert chosen.bound_by == "late decisions"
    assert chosen.gather_ns == 10_000  # a tenth of tau: the two are not taken together
    assert 8 * CAPACITY.hop_p99_ns / chosen.factor < 80_000
    unhurried = dataclasses.replace(CAPACITY, hop_p99_ns=1)
    assert choose(graph, fabric, program, unhurried, iterations=2).bound_by != "late decisions"
    assert choose(graph, fabric, program, CAPACITY, factor=10.0, iterations=2).gather_ns == 10_000
    assert choose(graph, fabric, program, CAPACITY, factor=1.0, iterations=2).gather_ns == 40_000


def test_a_reactive_program_that_stays_unsteady_says_so() -> None:
    # node 1 asks 1 ns too early to be taken together with node 0, which would then go first
    graph, fabric, program = two_ask((210_001, 0), (200_000, 3_000_000))
    chosen = choose(graph, fabric, program, CAPACITY, iterations=2)
    assert chosen.bound_by.endswith(", unsteady decisions")
    assert choose(graph, fabric, program, CAPACITY, factor=9.0, iterations=2).bound_by == "given"
