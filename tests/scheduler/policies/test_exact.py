"""flux-exact: as good as trying everything, sound, and honest about what it has not proven."""

from __future__ import annotations

import dataclasses
import importlib.util
from itertools import count, permutations, product
from typing import TYPE_CHECKING

import numpy as np
import pytest

from scheduler.bounds import lower_bound_ns
from scheduler.check import check_plan
from scheduler.model.problem import Problem
from scheduler.model.program import Entry, OrderedProgram
from scheduler.policies.exact import FluxExact
from scheduler.policies.folding import fold
from scheduler.policies.registry import find
from tests.scheduler.instances import chain_of_two, random_dag, training
from tests.scheduler.oracle import period_ns
from topologies import MachineError, Plane, UsageError, rails

if TYPE_CHECKING:
    from scheduler.model.taskgraph import TaskGraph
    from topologies import Fabric

needs_ortools = pytest.mark.skipif(
    importlib.util.find_spec("ortools") is None, reason="the extra `exact` is not installed"
)
SECONDS = 10**9


def best_of_all(graph: TaskGraph, fabric: Fabric) -> float:
    """Execute every order on every choice of planes; one port for each node and plane."""
    order = graph.topological_order().tolist()
    before = {t: set[int]() for t in order}
    arcs = graph.arcs
    for task in order:
        for a in arcs.before[(arcs.after == task) & (arcs.distance == 0)].tolist():
            before[task] |= before[a] | {a}
    messages = graph.messages.tolist()
    best = float("inf")
    for sequence in permutations(messages):
        if any(b in before[a] for i, a in enumerate(sequence) for b in sequence[i + 1 :]):
            continue
        for planes in product(range(len(fabric.planes)), repeat=len(messages)):
            if planes[0] > 0:
                continue  # planes are alike: the first message takes the first
            entries: list[list[Entry]] = [[] for _ in fabric.planes]
            for message, plane in zip(sequence, planes, strict=True):
                ends = int(graph.src[message]), int(graph.dst[message])
                entries[plane].append(Entry(*ends, (message,)))
            best = min(best, period_ns(graph, fabric, OrderedProgram.from_entries(entries)))
    return best


def few_messages(seed: int) -> TaskGraph:
    """The first random workload from `seed` on, of 3 or 4 messages."""
    while True:
        graph = random_dag(seed, nodes=3, tasks=7)
        if len(graph.messages) in {3, 4}:
            return graph
        seed += 1000


@needs_ortools
@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_as_good_as_trying_everything(seed: int, fold: bool) -> None:  # noqa: FBT001 (a parameter)
    graph = few_messages(seed)
    fabric = rails(nodes=3, planes=1 + seed % 2, delay_ns=20_000, duplex=seed % 3 == 0)
    fabric = dataclasses.replace(fabric, latency_ns=500, control_ns=3000, notify_ns=2000 * seed)
    solver = FluxExact(time_ns=200 * SECONDS, fold=fold, warm=False)
    program = solver.plan(Problem(graph=graph, fabric=fabric))
    assert program.proof is not None
    assert program.proof.status == "optimal"
    assert check_plan(program, graph, fabric) == []
    best = best_of_all(graph, fabric)
    assert period_ns(graph, fabric, program) == pytest.approx(best, abs=1.0)
    assert best >= program.proof.lower_bound_ns - 1.0
    assert lower_bound_ns(graph, fabric).value_ns <= best


@needs_ortools
def test_several_ports_of_a_node_on_a_plane_are_told_apart() -> None:
    graph = chain_of_two()
    two = Plane(node_of=(0, 1, 2) * 2, rate_bps=800 * 10**9, delay_ns=400_000)
    fabric = dataclasses.replace(rails(nodes=3), planes=(two,))
    program = FluxExact(time_ns=200 * SECONDS, warm=False).plan(Problem(graph=graph, fabric=fabric))
    assert check_plan(program, graph, fabric) == []
    assert period_ns(graph, fabric, program) == 4 * 310_000  # a circuit for each peer: no change
    assert program.proof is not None
    assert program.proof.status == "optimal"


@needs_ortools
def test_relaxed_nodes_prove_what_the_bounds_cannot() -> None:
    graph, fabric = training(8), rails(nodes=8, planes=1, delay_ns=100_000)
    problem = Problem(graph=graph, fabric=fabric, budget_s=0.2)
    program = find("flux-exact,time=200s").plan(problem)
    assert isinstance(program, OrderedProgram)
    assert program.proof is not None
    assert program.proof.status == "optimal"
    assert program.proof.lower_bound_ns > 1.3 * lower_bound_ns(graph, fabric).value_ns


@needs_ortools
def test_what_is_not_proven_is_not_called_optimal() -> None:
    graph = random_dag(1, nodes=5, tasks=80)
    fabric = rails(nodes=5, planes=2, delay_ns=1_000_000)
    problem = Problem(graph=graph, fabric=fabric, budget_s=0.01)
    program = find("flux-exact,time=1ms,warm=no").plan(problem)
    assert isinstance(program, OrderedProgram)
    assert program.proof is not None
    assert program.proof.status == "feasible"
    assert program.proof.lower_bound_ns < period_ns(graph, fabric, program)


@needs_ortools
@pytest.mark.parametrize("workers", [1, 2])
def test_a_count_of_work_makes_the_same_plan_whatever_the_clock_says(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = random_dag(1, nodes=5, tasks=60)
    fabric = rails(nodes=5, planes=2, delay_ns=1_000_000)
    problem = Problem(graph=graph, fabric=fabric, budget_s=0.01, seed=3)
    spec = f"flux-exact,time=200ms,warm=no,repeatable=yes,workers={workers}"
    first = find(spec).plan(problem)
    ticks = count(step=1000)
    monkeypatch.setattr("scheduler.policies.exact.time.monotonic", lambda: float(next(ticks)))
    again = find(spec).plan(problem)
    assert isinstance(first, OrderedProgram)
    assert isinstance(again, OrderedProgram)
    assert first.proof == again.proof
    assert [first.entries(k) for k in range(2)] == [again.entries(k) for k in range(2)]


def test_ranks_that_are_alike_fold() -> None:
    graph = chain_of_two()
    classes = fold(graph)
    assert len(set(classes.tolist())) * 3 == graph.tasks
    for column in (graph.kind, graph.dur_ns, graph.size_bytes):
        for one in set(classes.tolist()):
            assert len(set(column[classes == one].tolist())) == 1
    # Duplex ports hold one circuit for both ways, so three ranks in a ring are not at once.
    apart = fold(graph, duplex=True)[graph.messages]
    assert len(set(apart.tolist())) == len(apart)
    uneven = dataclasses.replace(graph, dur_ns=graph.dur_ns + (np.arange(graph.tasks) == 0))
    assert len(set(classes.tolist())) < len(set(fold(uneven).tolist())) < graph.tasks


def test_without_ortools_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    known = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "ortools" else known(name)
    )
    with pytest.raises(MachineError, match=r"pip install fluxbed\[exact\]"):
        FluxExact().plan(Problem(graph=chain_of_two(), fabric=rails(nodes=3)))


@needs_ortools
@pytest.mark.parametrize(
    ("change", "says"), [({"all_stop": True}, "all-stop"), ({"kind": "eps"}, "packets")]
)
def test_planes_beyond_the_model_are_refused(change: dict[str, object], says: str) -> None:
    fabric = rails(nodes=3, planes=1)
    plane = dataclasses.replace(fabric.planes[0], **change)  # type: ignore[arg-type]
    fabric = dataclasses.replace(fabric, planes=(plane,))
    with pytest.raises(UsageError, match=says):
        FluxExact().plan(Problem(graph=chain_of_two(), fabric=fabric))


@pytest.mark.parametrize("options", ["time=0s", "workers=0"])
def test_bad_options_are_refused(options: str) -> None:
    with pytest.raises(UsageError, match="workers >= 1"):
        find(f"flux-exact,{options}")
