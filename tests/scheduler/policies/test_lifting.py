"""Lifting: what holds for one rank of each kind becomes a plan for all, and a bound."""

from __future__ import annotations

import dataclasses

import pytest

from scheduler.bounds import lower_bound_ns
from scheduler.model.problem import Problem
from scheduler.policies.flux import Flux
from scheduler.policies.lifting import lift, phase_bound
from scheduler.policies.workbench import Workbench
from tests.scheduler.instances import training
from tests.scheduler.oracle import period_ns
from topologies import rails


@pytest.mark.parametrize(("seed", "planes", "delay_ns"), [(4, 1, 100_000), (45, 2, 1_000_000)])
def test_alike_ranks_follow_one_and_keep_its_period(seed: int, planes: int, delay_ns: int) -> None:
    graph = training(seed)
    fabric = rails(nodes=graph.nodes, planes=planes, delay_ns=delay_ns)
    problem = Problem(graph=graph, fabric=fabric)
    bench = Workbench(problem)
    least_ns = lower_bound_ns(graph, fabric).value_ns
    found = phase_bound(
        problem, bench.instance, least_ns=least_ns, most_ns=2 * least_ns, work=10**7
    )
    assert found.least_ns > least_ns
    wish = lift(found.orders[0], found.classes, bench.messages, bench.wish, bench.head_and_tail[0])
    bench.found.clear()
    bench.add(wish)
    assert period_ns(graph, fabric, bench.best()) == found.least_ns


def test_flux_says_what_it_has_proven() -> None:
    graph = training(4)
    fabric = rails(nodes=graph.nodes, planes=1, delay_ns=100_000)
    program = Flux().plan(Problem(graph=graph, fabric=fabric))
    assert program.proof is not None
    assert program.proof.status == "optimal"
    assert program.proof.lower_bound_ns == period_ns(graph, fabric, program)
    assert program.proof.lower_bound_ns > 1.05 * lower_bound_ns(graph, fabric).value_ns


def test_ranks_that_differ_are_bounded_all_the_same() -> None:
    graph = training(57)
    fabric = rails(nodes=graph.nodes, planes=1, delay_ns=100_000)
    uneven = dataclasses.replace(graph, dur_ns=graph.dur_ns * (1 + graph.rank.clip(0)))
    problem = Problem(graph=uneven, fabric=fabric, budget_s=0.1)
    program = Flux().plan(problem)
    if program.proof is not None:
        assert program.proof.lower_bound_ns <= period_ns(uneven, fabric, program) + 1e-6
