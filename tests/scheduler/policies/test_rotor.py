"""RotorNet's rotation: every pair meets, nobody twice at once, 90 % of the time lit."""

from __future__ import annotations

import dataclasses
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.check import check_plan
from scheduler.dispatch.simulator import iteration_ends
from scheduler.model.problem import Problem
from scheduler.model.program import ReactiveProgram
from scheduler.policies import tuned
from scheduler.policies.registry import find
from tests.scheduler.instances import Builder, direct, training
from topologies import Fabric, Plane, UsageError, rails
from topologies.matchings import node_matchings
from topologies.rotor import rotor


@given(st.integers(2, 12), st.booleans())
def test_matchings_meet_every_pair_once(count: int, duplex: bool) -> None:  # noqa: FBT001 (drawn)
    met = [
        (i, j)
        for matching in node_matchings(count, duplex=duplex)
        for i, j in enumerate(matching)
        if j >= 0
    ]
    assert sorted(met) == sorted(permutations(range(count), 2))
    for matching in node_matchings(count, duplex=duplex):
        used = [j for j in matching if j >= 0]
        assert len(set(used)) == len(used)
        assert not duplex or all(matching[j] == i for i, j in enumerate(matching) if j >= 0)


def test_eight_nodes_on_two_planes_take_four_slots_of_ten_delays() -> None:
    graph, fabric = training(0), rails(nodes=8, delay_ns=1000)
    program = find("rotor-direct").plan(Problem(graph=graph, fabric=fabric))
    assert program.period_ns == 4 * 10 * 1000
    shifts = [[slot.dst_ports[0] for slot in plane] for plane in program.planes]
    assert shifts == [[1, 2, 3, 4], [5, 6, 7, 1]]
    assert [slot.offset_ns for slot in program.planes[0]] == [0, 10_000, 20_000, 30_000]


@pytest.mark.parametrize("duplex", [False, True])
@pytest.mark.parametrize(("nodes", "planes", "ports"), [(5, 3, 1), (8, 2, 1), (6, 2, 2), (7, 1, 3)])
def test_every_pair_meets_and_no_matching_stands_twice_at_once(
    nodes: int,
    planes: int,
    ports: int,
    duplex: bool,  # noqa: FBT001 (a parameter)
) -> None:
    build = Builder(nodes)
    build.collective(list(range(nodes)), direct(list(range(nodes)), 1000), 0)
    graph = build.graph()
    plane = Plane(node_of=tuple(range(nodes)) * ports, rate_bps=10**9, delay_ns=1000, duplex=duplex)
    fabric = Fabric(nodes=nodes, planes=(plane,) * planes)
    program = find("rotor-direct").plan(Problem(graph=graph, fabric=fabric))
    assert check_plan(program, graph, fabric) == []
    met: set[tuple[int, int]] = set()
    for slots in zip(*program.planes, strict=True):
        now = [
            (plane.node_of[a], plane.node_of[b])
            for slot in slots
            for a, b in enumerate(slot.dst_ports)
            if b >= 0
        ]
        assert len(set(now)) == len(now)
        met |= set(now)
    assert met == set(permutations(range(nodes), 2))


@pytest.mark.parametrize("duplex", [False, True])
@pytest.mark.parametrize("matchings", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("scheduler", ["rotor-direct", "rotor-vlb", "rotorlb"])
def test_rotors_turn_through_their_own_matchings(
    scheduler: str,
    matchings: int,
    duplex: bool,  # noqa: FBT001 (a parameter)
) -> None:
    graph, fabric = training(0), rotor(nodes=8, matchings=matchings, duplex=duplex, delay_ns=1000)
    program = find(scheduler).plan(Problem(graph=graph, fabric=fabric))
    for plane, slots in zip(fabric.planes, program.planes, strict=True):
        assert tuple(slot.dst_ports for slot in slots) == plane.matchings
    assert check_plan(program, graph, fabric) == []
    plain = dataclasses.replace(
        fabric, planes=tuple(dataclasses.replace(p, matchings=None) for p in fabric.planes)
    )
    assert find(scheduler).plan(Problem(graph=graph, fabric=plain)) == program


def test_rotors_and_switches_that_make_any_matching_turn_in_step() -> None:
    graph, fixed = training(0), rotor(nodes=8, matchings=7, delay_ns=1000).planes
    fabric = Fabric(nodes=8, planes=(*fixed, *rails(nodes=8, planes=2, delay_ns=1000).planes))
    program = find("rotor-direct").plan(Problem(graph=graph, fabric=fabric))
    assert [len(slots) for slots in program.planes] == [7, 7, 7]
    assert tuple(slot.dst_ports for slot in program.planes[0]) == fixed[0].matchings
    assert check_plan(program, graph, fabric) == []


@pytest.mark.parametrize("scheduler", ["flux", "static", "greedy", "prefetch", "bvn"])
def test_who_wants_circuits_of_its_own_is_refused_on_rotors(scheduler: str) -> None:
    graph, fabric = training(0), rotor(nodes=8, matchings=2, delay_ns=1000)
    program = find(scheduler).plan(Problem(graph=graph, fabric=fabric))
    with pytest.raises(UsageError, match="rotor that knows 2 matchings: use rotor-direct"):
        iteration_ends(graph, fabric, program, iterations=1)
    broken = {violation.rule for violation in check_plan(program, graph, fabric)}
    reactive = isinstance(program, ReactiveProgram)
    assert broken == (set() if reactive else {"a switch holds what it knows"})


@pytest.mark.parametrize("reference", ["packet-ideal", "packet-fair"])
def test_references_are_not_bound_by_matchings(reference: str) -> None:
    scheduler = find(reference)
    fabric = scheduler.fabric_for(rotor(nodes=8, matchings=2, delay_ns=1000))
    program = scheduler.plan(Problem(graph=training(0), fabric=fabric))
    assert iteration_ends(training(0), fabric, program, iterations=1)[-1] > 0


def test_a_slot_that_is_all_dark_is_refused() -> None:
    problem = Problem(graph=training(0), fabric=rails(nodes=8, delay_ns=1000))
    with pytest.raises(UsageError, match="slot"):
        find("rotor-direct,slot=1us").plan(problem)


def test_packet_planes_alone_do_not_rotate() -> None:
    plane = Plane(node_of=tuple(range(8)), rate_bps=10**9, kind="eps")
    problem = Problem(graph=training(0), fabric=Fabric(nodes=8, planes=(plane,)))
    with pytest.raises(UsageError, match="packet switch"):
        find("rotor-direct").plan(problem)


def test_tuned_is_the_best_of_the_grid_and_says_what_it_chose() -> None:
    graph = training(3)
    problem = Problem(graph=graph, fabric=rails(nodes=graph.nodes, delay_ns=10_000))

    def ns(program: object) -> int:
        ends = iteration_ends(graph, problem.fabric, program)  # type: ignore[arg-type]
        return int(ends[-1] - ends[1])

    scheduler = find("rotor-direct-tuned")
    best = ns(scheduler.plan(problem))
    chosen = scheduler.params
    assert ns(find("rotor-direct").plan(problem)) >= best
    for share in tuned.SLOTS_PER_DELAY:
        one = find(f"rotor-direct,slot={int(share * 10_000)}ns")
        program = one.plan(problem)
        assert ns(program) >= best or program.period_ns > ns(program)
    again = find(f"rotor-direct,slot={chosen['slot_ns']}ns,phase={chosen['phase_ns']}ns")
    assert ns(again.plan(problem)) == best


def test_tuned_leaves_alone_what_was_given() -> None:
    graph = training(3)
    problem = Problem(graph=graph, fabric=rails(nodes=graph.nodes, delay_ns=10_000))
    scheduler = find("rotor-direct-tuned,slot=77us,phase=0ns")
    program = scheduler.plan(problem)
    assert (scheduler.params["slot_ns"], program.phase_ns) == (77_000, 0)
