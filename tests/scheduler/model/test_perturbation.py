"""What a seed draws: the same for everyone who asks, of the size asked for, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.model.expansion import expand
from scheduler.model.options import ExpansionOptions
from scheduler.model.perturbation import Perturbation
from scheduler.model.taskgraph import COMPUTE, MESSAGE, TaskGraph
from testbed.synth import synth
from topologies import UsageError, rails

if TYPE_CHECKING:
    from scheduler.model.workload import Workload


@pytest.fixture(scope="module")
def dense() -> tuple[Workload, TaskGraph]:
    workload = synth("llama3-8b", tp=2, dp=2, layers=4, seq=1024, mfu=0.5)
    return workload, expand(workload, rails(nodes=4), ExpansionOptions()).graph


@pytest.fixture(scope="module")
def experts() -> tuple[Workload, TaskGraph]:
    workload = synth("mixtral-8x7b", ep=4, dp=4, layers=2, seq=1024, mfu=0.5)
    return workload, expand(workload, rails(nodes=4), ExpansionOptions()).graph


def test_nothing_asked_nothing_changed(dense: tuple[Workload, TaskGraph]) -> None:
    workload, graph = dense
    assert Perturbation(seed=7).apply(graph, workload) is graph
    assert graph.durations_ns(3).tolist() == 3 * graph.dur_ns.tolist()
    assert graph.sizes_bytes(2).tolist() == 2 * graph.size_bytes.tolist()


@given(seed=st.integers(0, 2**31), few=st.integers(1, 3), more=st.integers(0, 3))
def test_an_iteration_is_the_same_however_many_follow(
    dense: tuple[Workload, TaskGraph], seed: int, few: int, more: int
) -> None:
    workload, graph = dense
    changed = Perturbation(jitter=0.1, seed=seed).apply(graph, workload)
    long = changed.durations_ns(few + more)
    assert long[: few * graph.tasks].tolist() == changed.durations_ns(few).tolist()


def test_jitter_has_the_spread_that_was_asked_for(dense: tuple[Workload, TaskGraph]) -> None:
    workload, graph = dense
    changed = Perturbation(jitter=0.2, seed=3).apply(graph, workload)
    own = np.tile((graph.kind == COMPUTE) & (graph.dur_ns > 1000), 40)
    factor = changed.durations_ns(40)[own] / graph.durations_ns(40)[own]
    assert abs(factor.mean() - 1) < 0.01
    assert abs(factor.std() - 0.2) < 0.02
    rest = np.tile(graph.kind != COMPUTE, 40)
    assert not changed.durations_ns(40)[rest].any()
    assert changed.sizes_bytes(2).tolist() == graph.sizes_bytes(2).tolist()
    assert changed.planned().durations_ns(1).tolist() == graph.dur_ns.tolist()


def test_seeds_and_iterations_draw_anew(dense: tuple[Workload, TaskGraph]) -> None:
    workload, graph = dense
    one, other = (Perturbation(jitter=0.1, seed=s).apply(graph, workload) for s in (0, 1))
    assert one.durations_ns(1).tolist() != other.durations_ns(1).tolist()
    first, second = one.durations_ns(2).reshape(2, -1)
    assert first.tolist() != second.tolist()


def test_a_straggler_is_slow_in_every_iteration(dense: tuple[Workload, TaskGraph]) -> None:
    workload, graph = dense
    changed = Perturbation(stragglers=((3, 1.5),)).apply(graph, workload)
    slow = np.tile(graph.rank == 3, 2)
    wanted = np.where(slow, np.rint(graph.durations_ns(2) * 1.5), graph.durations_ns(2))
    assert changed.durations_ns(2).tolist() == wanted.tolist()
    assert wanted.sum() > graph.durations_ns(2).sum()


def test_skew_shares_a_sources_bytes_out_anew(experts: tuple[Workload, TaskGraph]) -> None:
    workload, graph = experts
    changed = Perturbation(skew=0.5, seed=1).apply(graph, workload)
    sizes, message = changed.sizes_bytes(1), graph.kind == MESSAGE
    kinds = {op.id: getattr(op, "kind", "") for op in workload.operations}
    shifting = np.array([kinds.get(op) == "all_to_all" for op in graph.op.tolist()]) & message
    assert shifting.any()
    assert sizes[~shifting].tolist() == graph.size_bytes[~shifting].tolist()
    assert (sizes[shifting] > 0).all()
    assert (sizes[shifting] != graph.size_bytes[shifting]).mean() > 0.9
    key = graph.op * graph.nodes + graph.src
    for source in np.unique(key[shifting]):
        mine = shifting & (key == source)
        assert abs(int(sizes[mine].sum()) - int(graph.size_bytes[mine].sum())) <= mine.sum()


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"jitter": -0.1}, ("perturbation: jitter=-0.1, because a spread lies between 0 and 10, "
         "1000 %: write jitter=0.1")),
        ({"jitter": float("nan")}, ("perturbation: jitter=nan, because a spread lies between 0 and "
         "10, 1000 %: write jitter=0.1")),
        ({"skew": 11.0}, ("perturbation: skew=11.0, because a spread lies between 0 and 10, "
         "1000 %: write skew=0.1")),
        ({"seed": -1}, ("perturbation: seed=-1, because a seed is a whole number from 0 on: "
         "write seed=0")),
        ({"stragglers": ((1, 0.0),)}, ("perturbation: rank 1 takes 0.0 times as long, because "
         "ranks count from 0 and the factor is a positive number: write it as 3=1.5")),
        ({"stragglers": ((9, 2.0),)}, ("perturbation: there is no rank 9, because the world has 4 "
         "ranks: name one of them")),
        ({"skew": 0.5}, ("perturbation: skew=0.5, because the workload has no all_to_all to skew: "
         "leave it out, or use one with experts")),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_sentence(
    dense: tuple[Workload, TaskGraph], asked: dict[str, float], sentence: str
) -> None:
    workload, graph = dense
    with pytest.raises(UsageError) as refused:
        Perturbation(**asked).apply(graph, workload)
    assert str(refused.value) == sentence
