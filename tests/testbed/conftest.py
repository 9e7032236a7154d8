from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pytest

from scheduler.dispatch.simulator import simulate
from scheduler.model.expansion import expand
from scheduler.model.program import Entry, OrderedProgram, Program, Slot, TimedProgram
from scheduler.model.workload import Collective, Compute, Group, Participation, Source, Workload
from scheduler.policies.base import Planner
from testbed.files.plan import Plan, Prediction, workload_sha256
from testbed.files.rundir import RunDirectory
from topologies import Fabric, build_fabric

if TYPE_CHECKING:
    from pathlib import Path

    from scheduler.model.taskgraph import TaskGraph


class MakeRun(Protocol):
    def __call__(self, path: Path, kind: str, topology: str = ..., **known: Any) -> Path: ...


def small_workload(ranks: int = 4, layers: int = 2) -> Workload:
    """Layers of computation, an all-reduce among all, and one among pairs on a second stream."""
    members = tuple(range(ranks))
    pairs = [(rank, rank + ranks // 2) for rank in range(ranks // 2)]
    groups = {"all": Group(ranks=members, desc="tensor parallel")}
    groups |= {f"pair{k}": Group(ranks=pair, desc="data parallel") for k, pair in enumerate(pairs)}
    operations: list[Compute | Collective] = []

    def collective(name: str, size: int, stream: int, after: dict[int, int]) -> None:
        parts = {
            rank: Participation(in_bytes=size, out_bytes=size, stream=stream, deps=(after[rank],))
            for rank in groups[name].ranks
        }
        operations.append(
            Collective(
                id=len(operations), kind="all_reduce", group=name, ranks=parts, iter=0,
                dtype="bfloat16",
            )
        )  # fmt: skip

    for layer in range(layers):
        last = {}
        for rank in members:
            last[rank] = len(operations)
            operations.append(
                Compute(id=len(operations), rank=rank, stream=0, dur_ns=20_000 + 700 * rank, iter=0)
            )
        collective("all", 400_000, 0, last)
        if layer % 2:
            for k in range(len(pairs)):
                collective(f"pair{k}", 200_000, 1, last)
    return Workload(
        world=ranks,
        groups=groups,
        operations=tuple(operations),
        source=Source(path="made by a test", sha256=None, format="synthetic"),
    )


class InOrder(Planner):
    """Messages in the order of their ids, every operation's on one plane, no entry shared."""

    name = "in-order"

    def program(self, graph: TaskGraph, fabric: Fabric) -> Program:
        planes: list[list[Entry]] = [[] for _ in fabric.planes]
        for task in graph.messages.tolist():
            plane = int(graph.op[task]) % len(fabric.planes)
            entry = Entry(int(graph.src[task]), int(graph.dst[task]), (task,))
            planes[plane].append(entry)
        if any(plane.all_stop for plane in fabric.planes):
            return OrderedProgram.from_entries(planes, [(0, 0, 1)])
        return OrderedProgram.from_entries(planes, [(0, 0, 1), (0, 2, 3)])

    def plan(self, problem: Any) -> Program:
        return self.program(problem.graph, problem.fabric)


class Rotating(InOrder):
    """Every plane rotates through all shifts."""

    name = "rotating"

    def program(self, graph: TaskGraph, fabric: Fabric) -> Program:
        del graph
        n, slot = fabric.nodes, 10 * fabric.planes[0].delay_ns
        shifts = [
            Slot(k * slot, tuple((port + 1 + k) % n for port in range(n))) for k in range(n - 1)
        ]
        planes = [tuple(shifts) for _ in fabric.planes]
        return TimedProgram(period_ns=(n - 1) * slot, planes=tuple(planes), guard_ns=50)


@pytest.fixture(scope="session")
def make_run() -> MakeRun:
    """Simulate a small workload under a program made by hand and record it."""

    def make(
        path: Path,
        kind: str,
        topology: str = "rails,planes=2,rate=400Gbps,delay=2us,latency=300ns,control=100ns",
        **known: Any,
    ) -> Path:
        scheduler = {"in-order": InOrder, "rotating": Rotating}[kind]()
        workload = small_workload()
        fabric = build_fabric(topology, workload.world)
        expansion = expand(workload, fabric)
        program = scheduler.program(expansion.graph, fabric)
        timeline = simulate(expansion.graph, fabric, program, iterations=3)
        plan = Plan.of(
            program,
            scheduler=scheduler,
            fabric=fabric,
            workload_sha256=workload_sha256(workload),
            expansion=expansion,
            predicted=Prediction(iteration_ns=1.0, lower_bound_ns=0.5, proven_optimal=False),
        )
        with RunDirectory.create(
            path,
            scheduler=kind,
            plan=plan,
            workload=workload,
            expansion=expansion,
            origin="simulated",
            iterations=3,
            skip=1,
            topology=topology,
            **known,
        ) as run:
            run.write_results(timeline)
        return run.path

    return make
