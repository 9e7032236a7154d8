"""The phase program: exact where it relaxes nothing, and never above what a program achieves."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler import _kernels_paths as paths
from scheduler import _kernels_phases as kernels
from scheduler.bounds import lower_bound_ns
from scheduler.kernel import interpreted
from scheduler.model.problem import Problem
from scheduler.phase_layout import Layout
from scheduler.phases import PhaseProgram
from scheduler.policies.registry import find
from tests.scheduler.instances import Builder, chain_of_two, random_dag, random_fabric, training
from tests.scheduler.oracle import period_ns
from tests.scheduler.policies.test_exact import best_of_all
from topologies import FluxbedError, rails

if TYPE_CHECKING:
    from collections.abc import Callable

    from scheduler.model.taskgraph import Int64s, TaskGraph

MB_NS = 10_000  # 1 MB at 800 Gb/s


def one_sender(seed: int, *, messages: int = 4, peers: int = 3) -> TaskGraph:
    """Node 0 computes and sends in turn, to whom nobody else sends: only its ports matter."""
    rng = random.Random(seed)  # noqa: S311 (a workload, not a secret)
    build = Builder(peers + 1)
    left = messages
    while left:
        for r in range(peers + 1):
            build.compute(r, rng.choice([1_000, 30_000, 80_000]))
        width = rng.randint(1, min(2, left))
        left -= width
        flows = [(0, d, rng.randint(5, 50) * 100_000, 0, []) for d in range(1, peers + 1)]
        build.collective(list(range(peers + 1)), rng.sample(flows, width), 0)
    return build.graph()


@pytest.mark.parametrize("seed", range(12))
def test_as_short_as_trying_everything(seed: int) -> None:
    graph = one_sender(seed)
    fabric = rails(nodes=4, planes=1 + seed % 2, delay_ns=[20_000, 90_000, 200_000][seed % 3])
    best = best_of_all(graph, fabric)
    program = PhaseProgram(graph, fabric, [0])
    assert program.covers
    assert program.fits(round(best)).fits
    least_ns = lower_bound_ns(graph, fabric).value_ns  # other ranks may be the slowest
    assert least_ns == best or program.fits(round(best), tighter=1).fits is False
    found = program.shortest(least_ns, 3 * round(best))
    assert (found.least_ns, found.fits_ns) == (best, best)
    assert sorted(p.message for p in found.order) == graph.messages.tolist()


def exchange(seed: int, *, nodes: int = 3, rounds: int = 2) -> TaskGraph:
    """Everyone computes, and some send to some: outputs and inputs wait for each other."""
    rng = random.Random(seed)  # noqa: S311 (a workload, not a secret)
    build = Builder(nodes)
    for _ in range(rounds):
        for r in range(nodes):
            build.compute(r, rng.choice([1_000, 30_000, 80_000]))
        pairs = [(a, b) for a in range(nodes) for b in range(nodes) if a != b]
        flows = [(a, b, rng.randint(5, 50) * 100_000, 0, []) for a, b in rng.sample(pairs, 2)]
        build.collective(list(range(nodes)), flows, 0)
    return build.graph()


@pytest.mark.parametrize("seed", range(12))
def test_all_nodes_both_ways_are_the_whole_problem(seed: int) -> None:
    graph = exchange(seed)
    duplex = seed % 4 == 3
    planes, delay_ns = 1 + seed % 2, [20_000, 90_000, 200_000][seed % 3]
    fabric = rails(nodes=3, planes=planes, delay_ns=delay_ns, duplex=duplex)
    best = best_of_all(graph, fabric)
    program = PhaseProgram(graph, fabric, [0, 1, 2], ways=(0,) if duplex else (0, 1))
    found = program.shortest(0, 3 * round(best))
    assert best - 1 < found.least_ns <= best
    assert found.fits_ns == np.ceil(best)
    assert sorted(p.message for p in found.order) == graph.messages.tolist()


@pytest.mark.parametrize("planes", [1, 2])
def test_peers_that_are_alike_are_tried_once_and_nothing_is_missed(planes: int) -> None:
    # Node 0 sends the same to three nodes, and to the first of them again: the others are alike.
    build = Builder(4)
    for peers in ([1, 2, 3], [1]):
        for r in range(4):
            build.compute(r, 30_000)
        build.collective([0, 1, 2, 3], [(0, d, 2_000_000, 0, []) for d in peers], 0)
    graph, fabric = build.graph(), rails(nodes=4, planes=planes, delay_ns=90_000)
    program = PhaseProgram(graph, fabric, [0])
    best = best_of_all(graph, fabric)
    found = program.shortest(0, 3 * round(best))
    assert (found.least_ns, found.fits_ns) == (best, best)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Layout, "_far", _nobody_alike(Layout._far))
        slower = PhaseProgram(graph, fabric, [0]).shortest(0, 3 * round(best))
    assert slower.fits_ns == best
    assert found.spent < slower.spent


def _nobody_alike(make: Callable[..., dict[str, Int64s]]) -> Callable[..., dict[str, Int64s]]:
    """Return a twin of `Layout._far` that finds no nodes alike."""

    def far(*arguments: object) -> dict[str, Int64s]:
        columns = make(*arguments)
        assert columns["alike"].any()
        return {**columns, "alike": np.zeros_like(columns["alike"])}

    return far


def test_what_a_node_receives_counts_if_asked_for() -> None:
    # Node 0 hears from two others over one port, so it changes twice; each sends to it alone.
    build = Builder(3)
    for r in range(3):
        build.compute(r, 1)
    build.collective([0, 1, 2], [(1, 0, 10**6, 0, []), (2, 0, 10**6, 0, [])], 0)
    graph, fabric = build.graph(), rails(nodes=3, planes=1, delay_ns=500_000)
    program = PhaseProgram(graph, fabric, [0], ways=(1,))
    assert program.shortest(0, 10**7).fits_ns == 2 * (MB_NS + 500_000)
    assert not PhaseProgram(graph, fabric, [0]).covers  # it sends nothing


def test_a_period_across_several_iterations_is_told_from_one_that_is_shorter() -> None:
    # Two peers on one port, and next to no time to compute: there and back is what it takes.
    build = Builder(3)
    for r in range(3):
        build.compute(r, 1)
    build.collective([0, 1, 2], [(0, 1, 10**6, 0, []), (0, 2, 10**6, 0, [])], 0)
    graph, fabric = build.graph(), rails(nodes=3, planes=1, delay_ns=500_000)
    program = PhaseProgram(graph, fabric, [0])
    assert program.shortest(0, 10**7).fits_ns == 2 * (MB_NS + 500_000)
    assert program.fits(2 * (MB_NS + 500_000), tighter=1).least_ns == 2 * (MB_NS + 500_000)


def test_what_hides_behind_compute_costs_nothing() -> None:
    graph, fabric = chain_of_two(), rails(nodes=3, planes=1, delay_ns=100_000)
    program = PhaseProgram(graph, fabric, [0])
    assert program.shortest(0, 10**8).fits_ns == 4 * 310_000


def test_too_little_work_claims_nothing() -> None:
    graph = training(58)
    fabric = rails(nodes=graph.nodes, planes=3, delay_ns=10_000)
    least_ns = lower_bound_ns(graph, fabric).value_ns
    program = PhaseProgram(graph, fabric, [0, 4], work=20)
    answer = program.fits(round(1.02 * least_ns))
    assert answer.fits is None
    found = program.shortest(least_ns, round(2 * least_ns))
    assert (found.least_ns, found.fits_ns, found.order) == (Fraction(least_ns), None, [])


def test_packet_planes_are_not_covered() -> None:
    graph = chain_of_two()
    fabric = rails(nodes=3, planes=2, delay_ns=0)
    eps = find("packet-ideal").fabric_for(fabric)
    assert PhaseProgram(graph, fabric, [0]).covers
    if any(plane.kind == "eps" for plane in eps.planes):
        assert not PhaseProgram(graph, eps, [0]).covers


@settings(max_examples=8, deadline=None)
@given(
    st.integers(0, 10_000),
    st.integers(0, 10_000),
    st.sampled_from(["flux", "static", "spectra", "sunflow"]),
    st.booleans(),
)
def test_no_ordered_program_is_shorter(one: int, other: int, name: str, regular: bool) -> None:  # noqa: FBT001 (hypothesis)
    graph = training(one) if regular else random_dag(one, nodes=4, tasks=24)
    fabric = random_fabric(other, graph.nodes)
    try:
        program = find(name).plan(Problem(graph=graph, fabric=fabric, budget_s=0.02))
        period = period_ns(graph, fabric, program)
    except FluxbedError:
        return
    for nodes in ([0], [graph.nodes - 1], [0, graph.nodes // 2]):
        for ways in ((0,), (1,), (0, 1)):
            phases = PhaseProgram(graph, fabric, nodes, ways=ways, work=10_000)
            if phases.covers:
                assert phases.fits(int(np.ceil(period))).fits is not False
                found = phases.shortest(0.0, int(np.ceil(period)) + 1)
                assert found.least_ns <= period + 1e-6


def test_compiled_and_interpreted_agree() -> None:
    assert interpreted(kernels.level)(np.array([0, 4, 100]), 3, 10) == 7
    assert kernels.level(np.array([0, 4, 100]), 3, 10) == 7
    path = np.full((4, 4), paths.LONG_AGO)
    path[0, 1], path[1, 2], path[0, 2], path[2, 3], path[0, 3] = 1, 2, 3, 0, 9
    least = np.array([5, 0, 1, 1])
    for function in (paths.needed, interpreted(paths.needed)):
        keep = np.zeros((4, 4), np.int64)
        function(path, least, keep)
        assert np.argwhere(keep).tolist() == [[0, 1], [0, 3], [1, 2], [2, 3]]
    graph, fabric = one_sender(3), rails(nodes=4, planes=1, delay_ns=90_000)
    best = round(best_of_all(graph, fabric))
    compiled = PhaseProgram(graph, fabric, [0]).fits(best)
    twin = interpreted(kernels.place_all)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "place_all", twin)
        assert PhaseProgram(graph, fabric, [0]).fits(best) == compiled
