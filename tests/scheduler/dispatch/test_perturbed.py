"""Perturbed executions: simulator and replay agree; plans by the clock; planning again."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.check import check_plan
from scheduler.check_transfers import check_transfers
from scheduler.dispatch.replanning import simulate_replanned
from scheduler.dispatch.simulator import simulate
from scheduler.model.perturbation import Perturbation, Variation
from scheduler.model.problem import Problem
from scheduler.model.program import OrderedProgram
from scheduler.model.taskgraph import MESSAGE, TaskGraph
from scheduler.policies.registry import find
from scheduler.policies.timestamped import by_the_clock
from tests.scheduler.dispatch.agreement import simulated_like
from tests.scheduler.instances import chain_of_two, random_fabric, training
from tests.scheduler.replay import replay
from tests.scheduler.strategies import fabrics, ordered_programs, task_graphs, timed_programs
from topologies import rails


def perturbed(graph: TaskGraph, **asked: float) -> TaskGraph:
    """Return the graph as if all of its messages were of one all_to_all each."""
    variation = Variation(Perturbation(**asked), graph.kind == MESSAGE)
    return dataclasses.replace(graph, variation=variation)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_simulator_and_replay_draw_and_do_the_same(data: st.DataObject) -> None:
    plain = data.draw(task_graphs())
    graph = perturbed(plain, jitter=0.5, skew=0.5, seed=data.draw(st.integers(0, 99)))
    timed = data.draw(st.booleans())
    fabric = data.draw(fabrics(graph.nodes, kinds=("ocs",) if timed else ("ocs", "eps")))
    program = data.draw(timed_programs(fabric) if timed else ordered_programs(graph, fabric))
    lookahead = 0 if timed else data.draw(st.sampled_from([0, 100, 10_000]))
    other = replay(graph, fabric, program, iterations=3, lookahead_ns=lookahead)
    timeline = simulated_like(other, graph, fabric, program, iterations=3, lookahead_ns=lookahead)
    if timeline is None:
        return
    assert check_transfers(graph, fabric, program, timeline, tolerance_ns=0, quantum_bytes=0) == []


@pytest.mark.parametrize("seed", range(4))
def test_flux_by_the_clock_keeps_its_times_undisturbed(seed: int) -> None:
    graph = training(seed)
    fabric = random_fabric(seed, graph.nodes, plain=True)
    program = find("flux").plan(Problem(graph=graph, fabric=fabric, budget_s=0.05))
    assert isinstance(program, OrderedProgram)
    timeline = simulate(graph, fabric, program, iterations=12)
    clock = by_the_clock(timeline, fabric.planes)
    assert check_plan(clock, graph, fabric) == []
    again = simulate(graph, fabric, clock, iterations=12)
    ordered, timed = timeline.iteration_ends_ns[-1], again.iteration_ends_ns[-1]
    assert timed == pytest.approx(ordered, rel=0.1)  # bytes may use circuits that idled


def test_by_the_clock_misses_what_order_waits_for() -> None:
    graph = chain_of_two(compute_ns=300_000)
    fabric = rails(nodes=3, planes=1, delay_ns=100_000)
    late = perturbed(graph, jitter=0.3)
    times = []
    for name in ("flux", "flux-timestamped"):
        program = find(name).plan(Problem(graph=graph, fabric=fabric, budget_s=0.05))
        times.append(simulate(late, fabric, program, iterations=12).iteration_ends_ns[-1])
    assert times[1] > 1.2 * times[0]


def flux(problem: Problem) -> OrderedProgram:
    program = find("flux").plan(dataclasses.replace(problem, budget_s=0.02))
    assert isinstance(program, OrderedProgram)
    return program


def test_no_drift_no_new_plan() -> None:
    graph, fabric = training(2), rails(nodes=training(2).nodes, planes=2, delay_ns=10_000)
    found = simulate_replanned(
        graph, fabric, flux, threshold=0.1, planning_ns=1_000_000, iterations=6
    )
    assert found.takeovers == ()
    plain = simulate(graph, fabric, flux(Problem(graph=graph, fabric=fabric)), iterations=6)
    assert found.ends_ns.tolist() == plain.iteration_ends_ns.tolist()


def test_a_straggler_is_planned_for_once_and_circuits_are_drained() -> None:
    graph, fabric = training(2), rails(nodes=training(2).nodes, planes=2, delay_ns=10_000)
    slow = perturbed(graph, stragglers=((1, 2.0),))
    plans: list[np.ndarray] = []

    def recorded(problem: Problem) -> OrderedProgram:
        plans.append(problem.graph.dur_ns)
        return flux(problem)

    found = simulate_replanned(
        slow, fabric, recorded, threshold=0.1, planning_ns=1_000, iterations=8
    )
    assert len(found.takeovers) == 1
    assert (np.diff(found.ends_ns) > 0).all()
    assert plans[1].tolist() == slow.durations_ns(1).tolist()
    never = simulate_replanned(slow, fabric, flux, threshold=0.1, planning_ns=10**12, iterations=8)
    assert never.takeovers == ()
