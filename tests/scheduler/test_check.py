from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from scheduler.check import EXAMPLES, Violation, check_plan, examples
from scheduler.model.program import Entry, OrderedProgram, ReactiveProgram, Slot, TimedProgram
from scheduler.model.taskgraph import MESSAGE, Arcs, TaskGraph
from scheduler.model.timeline import NONE
from topologies import Fabric, rails

if TYPE_CHECKING:
    from collections.abc import Sequence


def messages(pairs: Sequence[tuple[int, int]], arcs: Sequence[tuple[int, int]] = ()) -> TaskGraph:
    count = len(pairs)
    none = np.full(count, NONE, np.int64)
    listed = np.array(arcs, np.int64).reshape(-1, 2)
    return TaskGraph(
        nodes=4,
        kind=np.full(count, MESSAGE, np.int64),
        op=none,
        rank=none,
        stream=none,
        position=none,
        src=np.array([src for src, _ in pairs], np.int64),
        dst=np.array([dst for _, dst in pairs], np.int64),
        size_bytes=np.full(count, 100, np.int64),
        dur_ns=np.zeros(count, np.int64),
        group=none,
        step=none,
        arcs=Arcs(
            before=listed[:, 0],
            after=listed[:, 1],
            distance=np.zeros(len(listed), np.int64),
            origin=np.zeros(len(listed), np.int64),
        ),
    )


GRAPH = messages([(0, 1), (1, 2), (0, 2)])
ENTRIES = [Entry(0, 1, (0,)), Entry(1, 2, (1,)), Entry(0, 2, (2,))]


def fabric(*, duplex: bool = False, all_stop: bool = False) -> Fabric:
    return rails(nodes=4, planes=1, delay_ns=100, duplex=duplex, all_stop=all_stop)


def found(
    program: OrderedProgram | TimedProgram, graph: TaskGraph = GRAPH, on: Fabric | None = None
) -> list[tuple[str, str, str]]:
    violations = check_plan(program, graph, on or fabric())
    return [(violation.rule, violation.where, violation.what) for violation in violations]


def ordered(*entries: Entry, initial: Sequence[tuple[int, int, int]] = ()) -> OrderedProgram:
    return OrderedProgram.from_entries([entries], initial)


def test_a_sound_plan_passes() -> None:
    assert found(ordered(*ENTRIES, initial=[(0, 0, 1), (0, 1, 2)])) == []


@pytest.mark.parametrize(
    ("entries", "violation"),
    [
        (ENTRIES[:2], ("every message once", "message 2", "it is sent 0 times")),
        ([*ENTRIES, ENTRIES[0]], ("every message once", "message 0", "it is sent 2 times")),
        (
            [*ENTRIES, Entry(0, 1, (3,))],
            ("messages exist", "message 3", "the workload has no such message"),
        ),
        (
            [*ENTRIES[:2], Entry(0, 4, (2,))],
            ("ports exist", "entry 2", "plane 0 has no circuit from port 0 to port 4"),
        ),
        (
            [*ENTRIES[:2], Entry(2, 2, (2,))],
            ("ports exist", "entry 2", "port 2 of plane 0 is joined with itself"),
        ),
        (
            [*ENTRIES[:2], Entry(3, 2, (2,))],
            (
                "circuits join the message's nodes",
                "message 2",
                "it goes from node 0 to 2, its circuit joins (3, 2)",
            ),
        ),
    ],
)
def test_what_an_ordered_plan_may_not_do(
    entries: list[Entry], violation: tuple[str, str, str]
) -> None:
    assert found(ordered(*entries)) == [violation]


def test_a_circuit_carries_the_way_back_only_on_duplex_planes() -> None:
    entries = [Entry(1, 0, (0,)), Entry(1, 2, (1,)), Entry(2, 0, (2,))]
    assert found(ordered(*entries), on=fabric(duplex=True)) == []
    assert len(found(ordered(*entries))) == 2


def test_ports_of_a_configuration_are_used_once() -> None:
    program = OrderedProgram.from_entries([ENTRIES], matchings=[[0, 0, 1]])
    assert found(program, on=fabric(all_stop=True)) == []
    program = OrderedProgram.from_entries([ENTRIES], matchings=[[0, 1, 1]])
    assert found(program, on=fabric(all_stop=True)) == [
        ("a port holds one circuit", "plane 0 matching 1", "port 2 is the input of 2 circuits")
    ]
    assert found(ordered(*ENTRIES, initial=[(0, 0, 1), (0, 0, 2)])) == [
        (
            "a port holds one circuit",
            "plane 0 initial circuits 0",
            "port 0 is the output of 2 circuits",
        )
    ]


WAITS = "no operation waits for itself"


def test_port_order_against_dependencies_is_a_deadlock() -> None:
    graph = messages([(0, 1), (0, 2)], arcs=[(1, 0)])
    backwards = ordered(Entry(0, 1, (0,)), Entry(0, 2, (1,)))
    assert [(rule, where) for rule, where, _ in found(backwards, graph)] == [(WAITS, "message 1")]
    assert found(ordered(Entry(0, 2, (1,)), Entry(0, 1, (0,))), graph) == []


def test_a_deadlock_over_two_ports() -> None:
    graph = messages([(0, 1), (0, 2), (3, 2), (3, 1)], arcs=[(0, 2), (3, 1)])
    sound = ordered(
        Entry(0, 1, (0,)), Entry(3, 2, (2,)), Entry(3, 1, (3,)), Entry(0, 2, (1,))
    )  # fmt: skip
    assert found(sound, graph) == []
    graph = replace(graph, arcs=messages([(0, 1)] * 4, arcs=[(1, 2), (3, 0)]).arcs)
    assert [rule for rule, _, _ in found(sound, graph)] == [WAITS]


def test_messages_of_one_circuit_follow_each_other() -> None:
    graph = messages([(0, 1), (0, 1)], arcs=[(1, 0)])
    assert [rule for rule, _, _ in found(ordered(Entry(0, 1, (0, 1))), graph)] == [WAITS]
    apart = ordered(Entry(0, 1, (0,)), Entry(0, 1, (1,)))
    assert [rule for rule, _, _ in found(apart, graph)] == [WAITS]
    assert found(ordered(Entry(0, 1, (1, 0))), graph) == []


def test_an_all_stop_plane_waits_for_the_whole_configuration() -> None:
    graph = messages([(0, 1), (2, 3)], arcs=[(1, 0)])
    entries = [Entry(0, 1, (0,)), Entry(2, 3, (1,))]
    apart = OrderedProgram.from_entries([entries], matchings=[[0, 1]])
    together = OrderedProgram.from_entries([entries], matchings=[[0, 0]])
    assert [rule for rule, _, _ in found(apart, graph, fabric(all_stop=True))] == [WAITS]
    assert found(together, graph, fabric(all_stop=True)) == []
    assert found(apart, graph) == []


def timed(*slots: Slot, period_ns: int = 2_000, guard_ns: int = 0) -> TimedProgram:
    return TimedProgram(period_ns=period_ns, planes=(slots,), guard_ns=guard_ns)


SHIFTS = (Slot(0, (1, 2, 3, 0)), Slot(1_000, (2, 3, 0, 1)))


def test_a_rotation_that_joins_every_pair_passes() -> None:
    assert found(timed(*SHIFTS)) == []


@pytest.mark.parametrize(
    ("program", "violation"),
    [
        (
            timed(SHIFTS[0]),
            (
                "every pair that talks is connected",
                "nodes 0 to 2",
                "no slot leads from one to the other",
            ),
        ),
        (
            timed(Slot(0, (2, 1, 3, 0)), SHIFTS[1]),
            ("a slot is a matching", "plane 0 slot at 0 ns", "port 1 is joined with itself"),
        ),
        (
            timed(Slot(0, (1, 3, 3, 0)), SHIFTS[1]),
            (
                "a slot is a matching",
                "plane 0 slot at 0 ns",
                "port 3 is the input of two circuits",
            ),
        ),
        (
            timed(Slot(0, (1, 2)), SHIFTS[1]),
            ("a slot is a matching", "plane 0 slot at 0 ns", "it lists 2 ports of 4"),
        ),
        (
            timed(*SHIFTS, guard_ns=900),
            (
                "slots follow each other",
                "plane 0",
                "the slot at 0 ns lasts 1000 ns, of which 1000 ns are lost",
            ),
        ),
        (
            timed(*SHIFTS, period_ns=1_000),
            ("slots follow each other", "plane 0", "the slot at 1000 ns ends at 1000 ns"),
        ),
    ],
)
def test_what_a_timed_plan_may_not_do(
    program: TimedProgram, violation: tuple[str, str, str]
) -> None:
    assert violation in found(program)


def test_a_duplex_slot_is_its_own_inverse() -> None:
    wrong = found(timed(*SHIFTS), on=fabric(duplex=True))
    assert wrong[0][0] == "a slot is a matching"
    pairs = timed(Slot(0, (1, 0, 3, 2)), Slot(1_000, (2, 3, 0, 1)), Slot(1_500, (3, 2, 1, 0)))
    assert found(pairs, on=fabric(duplex=True)) == []


def test_a_relay_may_join_a_pair() -> None:
    assert found(replace(timed(SHIFTS[0]), routing="vlb")) == []


def test_reactive_programs_show_themselves_only_in_a_run() -> None:
    program = ReactiveProgram(policy="mine", function=lambda: 0)
    assert check_plan(program, GRAPH, fabric()) == []


def test_only_the_first_examples_are_told() -> None:
    told = examples("a rule", [(f"message {k}", "it is odd") for k in range(8)])
    assert len(told) == EXAMPLES + 1
    assert str(told[0]) == "message 0: it is odd (a rule)"
    assert told[-1] == Violation("a rule", "elsewhere", "the same 3 times more")
