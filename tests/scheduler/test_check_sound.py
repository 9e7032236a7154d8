"""What check must not say: whatever the simulator does of a program that cannot stall is sound."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.check import check_plan
from scheduler.check_circuits import check_circuits
from scheduler.check_transfers import check_transfers
from scheduler.dispatch.simulator import simulate
from scheduler.model.problem import Problem
from scheduler.model.program import Entry, OrderedProgram, TimedProgram
from scheduler.policies.registry import find
from tests.scheduler.instances import Builder
from tests.scheduler.strategies import fabrics, ordered_programs, task_graphs
from topologies import rails

if TYPE_CHECKING:
    from scheduler.model.taskgraph import TaskGraph
    from scheduler.model.timeline import Circuits
    from topologies import Fabric


def violations(
    graph: TaskGraph, fabric: Fabric, program: OrderedProgram, lookahead_ns: int = 0
) -> list[str]:
    found = check_plan(program, graph, fabric)
    timeline = simulate(graph, fabric, program, iterations=3, lookahead_ns=lookahead_ns)
    given = (graph, fabric, program, timeline)
    table = labelled(fabric, timeline.circuits)
    found += check_circuits(*given, table, tolerance_ns=0, lookahead_ns=lookahead_ns)
    found += check_transfers(*given, tolerance_ns=0, quantum_bytes=0)
    return [str(violation) for violation in found]


def labelled(fabric: Fabric, circuits: Circuits) -> dict[str, np.ndarray]:
    """Return the columns of a circuits table that the check reads."""
    labels = {
        name: np.array(
            [
                fabric.node_of(plane, port)
                for plane, port in zip(circuits.plane.tolist(), ports.tolist(), strict=True)
            ],
            np.int64,
        )
        for name, ports in (("src", circuits.src_port), ("dst", circuits.dst_port))
    }
    return {
        **labels,
        "src_port": circuits.src_port,
        "dst_port": circuits.dst_port,
        "cause": np.full(len(circuits.plane), "program"),
    }


@given(st.data())
@settings(max_examples=80, deadline=None, report_multiple_bugs=False)
def test_what_ordered_programs_do_is_sound(data: st.DataObject) -> None:
    graph = data.draw(task_graphs())
    fabric = data.draw(fabrics(graph.nodes))
    program = data.draw(ordered_programs(graph, fabric))
    assert violations(graph, fabric, program, data.draw(st.sampled_from([0, 0, 100]))) == []


def two_pairs() -> tuple[TaskGraph, list[int]]:
    """Messages 0 -> 1 and 2 -> 3, and one 0 -> 1 that the second of these waits for."""
    build = Builder(4)
    first, last = build.message(0, 1, 1_000, 0), build.message(2, 3, 1_000, 1)
    between = build.message(0, 1, 1_000, 2)
    build.arc(between, last)
    return build.graph(), [first, last, between]


def test_a_part_of_a_configuration_is_granted_with_it() -> None:
    graph, (first, last, between) = two_pairs()
    fabric = rails(nodes=4, planes=1, delay_ns=100, all_stop=True)
    entries = [Entry(0, 1, (first,)), Entry(2, 3, (last,)), Entry(0, 1, (between,))]
    program = OrderedProgram.from_entries([entries], matchings=[[0, 0, 1]])
    assert violations(graph, fabric, program) == []
    # Had the second configuration another circuit, it would wait for the first: a circle.
    other = OrderedProgram.from_entries([[*entries, Entry(1, 0, ())]], matchings=[[0, 0, 1, 1]])
    assert [v.rule for v in check_plan(other, graph, fabric)] == ["no operation waits for itself"]


def test_entries_without_messages_ask_for_nothing() -> None:
    graph, (first, last, between) = two_pairs()
    for all_stop in (False, True):
        fabric = rails(nodes=4, planes=1, delay_ns=100, all_stop=all_stop)
        entries = [Entry(0, 1, (first,)), Entry(0, 2, ()), Entry(0, 1, (between,))]
        program = OrderedProgram.from_entries([[*entries, Entry(2, 3, (last,))]])
        assert violations(graph, fabric, program) == []
        unasked = replace(program, initial_circuits=((0, 0, 1),))
        assert violations(graph, fabric, unasked) == []


def test_a_tolerance_longer_than_slots_mistakes_no_slot_for_another() -> None:
    graph, _ = two_pairs()
    fabric = rails(nodes=4, planes=2, delay_ns=1_000)
    program = find("rotor-direct").plan(Problem(graph=graph, fabric=fabric))
    timeline = simulate(graph, fabric, program, iterations=2)
    assert isinstance(program, TimedProgram)
    for tolerance_ns in (0, 500, 2 * program.period_ns // 3, program.period_ns):
        found = check_circuits(
            graph,
            fabric,
            program,
            timeline,
            labelled(fabric, timeline.circuits),
            tolerance_ns=tolerance_ns,
            lookahead_ns=0,
        )
        assert found == []
