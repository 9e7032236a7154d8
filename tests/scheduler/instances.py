"""Training-like workloads for tests and benchmarks, built directly as task graphs."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np

from scheduler.model.taskgraph import (
    COMPUTE,
    MARKER,
    MESSAGE,
    ORIGINS,
    Arcs,
    TaskGraph,
)
from topologies import Fabric, Plane, rails

__all__ = ["Builder", "chain_of_two", "random_dag", "random_fabric", "training"]

Flow = tuple[int, int, int, int, list[int]]  # src, dst, bytes, step, earlier flows it waits for
SHAPES = (  # TP, DP, PP
    (4, 1, 1), (2, 2, 1), (4, 2, 1), (2, 4, 1), (2, 3, 1), (2, 2, 2), (1, 4, 2), (2, 1, 3),
    (3, 2, 1), (4, 1, 2), (1, 4, 1), (5, 1, 1), (1, 7, 1),
)  # fmt: skip
STREAM, COLLECTIVE, ITERATION, RECORDED = (
    ORIGINS.index(name) for name in ("stream", "collective", "iteration", "recorded")
)


@dataclass
class Builder:
    """Adds tasks one by one, ranks = nodes; `graph` closes the iteration."""

    nodes: int
    rows: list[tuple[int, ...]] = field(default_factory=list)
    arcs: list[tuple[int, int, int, int]] = field(default_factory=list)
    last: dict[tuple[int, int], int] = field(default_factory=dict)
    first: dict[tuple[int, int], int] = field(default_factory=dict)
    positions: dict[tuple[int, int], int] = field(default_factory=dict)
    ops: int = 0
    groups: int = 0

    def op(self) -> int:
        self.ops += 1
        return self.ops - 1

    def arc(self, before: int, after: int, origin: int = COLLECTIVE, distance: int = 0) -> None:
        self.arcs.append((before, after, distance, origin))

    def on_rank(self, kind: int, rank: int, stream: int, op: int, dur_ns: int = 0) -> int:
        """Add a compute or a marker after the stream's last task."""
        task, key = len(self.rows), (rank, stream)
        position = self.positions.get(key, 0)
        self.positions[key] = position + 1
        self.rows.append((kind, op, rank, stream, position, -1, -1, 0, dur_ns, -1, -1))
        if key in self.last:
            self.arc(self.last[key], task, STREAM)
        self.first.setdefault(key, task)
        self.last[key] = task
        return task

    def compute(self, rank: int, dur_ns: int, stream: int = 0) -> int:
        return self.on_rank(COMPUTE, rank, stream, self.op(), dur_ns)

    def message(
        self, src: int, dst: int, size_bytes: int, op: int, *, group: int = -1, step: int = 0
    ) -> int:
        self.rows.append((MESSAGE, op, -1, -1, -1, src, dst, size_bytes, 0, group, step))
        return len(self.rows) - 1

    def collective(
        self,
        members: list[int],
        flows: list[Flow],
        stream: int,
        after: dict[int, int] | None = None,
    ) -> dict[int, int]:
        """Add flows (src, dst, bytes, step, earlier flows); returns each member's leave marker."""
        op = self.op()
        enter = {r: self.on_rank(MARKER, r, stream, op) for r in members}
        for rank, task in (after or {}).items():
            self.arc(task, enter[rank], RECORDED)
        ids: list[int] = []
        steps: dict[int, int] = {}
        for src, dst, size_bytes, step, waits in flows:
            if step not in steps:
                steps[step] = self.groups
                self.groups += 1
            task = self.message(src, dst, size_bytes, op, group=steps[step], step=step)
            for rank in (src, dst):
                self.arc(enter[rank], task)
            for other in waits:
                self.arc(ids[other], task)
            ids.append(task)
        leave = {r: self.on_rank(MARKER, r, stream, op) for r in members}
        for task, (src, dst, *_) in zip(ids, flows, strict=True):
            self.arc(task, leave[src])
            self.arc(task, leave[dst])
        return leave

    def graph(self) -> TaskGraph:
        for key, task in self.last.items():
            self.arc(task, self.first[key], ITERATION, 1)
        rows = np.array(self.rows, np.int64).reshape(-1, 11).T.copy()
        arcs = np.array(sorted(set(self.arcs)), np.int64).reshape(-1, 4).T.copy()
        names = (
            "kind", "op", "rank", "stream", "position", "src", "dst", "size_bytes", "dur_ns",
            "group", "step",
        )  # fmt: skip
        return TaskGraph(
            nodes=self.nodes,
            arcs=Arcs(before=arcs[0], after=arcs[1], distance=arcs[2], origin=arcs[3]),
            **dict(zip(names, rows, strict=True)),
        )


def ring(members: list[int], size_bytes: int, phases: int) -> list[Flow]:
    """Flows of a ring collective; size_bytes is one chunk."""
    n, flows = len(members), []
    for step in range(phases * (n - 1)):
        for i in range(n):
            waits = [(step - 1) * n + (i - 1) % n] if step else []
            flows.append((members[i], members[(i + 1) % n], size_bytes, step, waits))
    return flows


def direct(members: list[int], size_bytes: int) -> list[Flow]:
    """Flows in which everyone sends to everyone."""
    n = len(members)
    return [
        (members[i], members[(i + d) % n], size_bytes, d - 1, [])
        for d in range(1, n)
        for i in range(n)
    ]


class _Step:
    """One random training step while it is built; ranks are numbered TP, then DP, then PP."""

    def __init__(self, seed: int, layers: int, uneven: tuple[float, ...]) -> None:
        self.rng = rng = random.Random(seed)  # noqa: S311 (a workload, not a secret)
        self.tp, self.dp, self.pp = rng.choice(SHAPES)
        self.build = Builder(self.tp * self.dp * self.pp)
        self.layers = rng.randint(1, layers)
        self.direct_tp, self.direct_dp = rng.random() < 0.6, rng.random() < 0.4
        self.experts = self.dp > 1 and (self.tp == 1 or rng.random() < 0.25)
        self.uneven = rng.choice(uneven)
        self.unit_ns = rng.choice([20_000, 100_000, 400_000])
        self.size = rng.choice([10**5, 10**6, 8 * 10**6])

    def rank(self, t: int, d: int, p: int) -> int:
        return t + self.tp * (d + self.dp * p)

    def tensor_groups(self, p: int) -> list[list[int]]:
        return [[self.rank(t, d, p) for t in range(self.tp)] for d in range(self.dp)]

    def data_groups(self, p: int) -> list[list[int]]:
        return [[self.rank(t, d, p) for d in range(self.dp)] for t in range(self.tp)]

    def vary(self, value: float) -> int:
        return max(1, int(value * self.rng.uniform(1 - self.uneven, 1 + self.uneven)))

    def exchange(self, members: list[int], *, straight: bool) -> list[Flow]:
        return direct(members, self.size) if straight else ring(members, self.size, 1)

    def layer(self, p: int, scale: float) -> None:
        for members in self.tensor_groups(p):
            for r in members:
                self.build.compute(r, self.vary(self.unit_ns * scale))
        if self.tp > 1:
            for members in self.tensor_groups(p):
                self.build.collective(members, self.exchange(members, straight=self.direct_tp), 0)
        if self.experts:
            for members in self.data_groups(p):
                flows = [(s, d, self.vary(b), k, w) for s, d, b, k, w in direct(members, self.size)]
                self.build.collective(members, flows, 0)

    def gradients(self, p: int) -> None:
        """Reduced on a stream of their own, while the next layer computes."""
        for members in self.data_groups(p):
            after = {r: self.build.last[r, 0] for r in members}
            flows = self.exchange(members, straight=self.direct_dp)
            self.build.collective(members, flows, 1, after)

    def boundary(self, p: int, q: int) -> None:
        for t in range(self.tp):
            for d in range(self.dp):
                a, b = self.rank(t, d, p), self.rank(t, d, q)
                self.build.collective([a, b], [(a, b, self.size, 0, [])], 0)

    def close(self) -> TaskGraph:
        """The optimizer: after the gradients, before the next iteration."""
        for r in range(self.build.nodes):
            task = self.build.compute(r, self.unit_ns // 4)
            if (r, 1) in self.build.last:
                self.build.arc(self.build.last[r, 1], task, RECORDED)
        return self.build.graph()


def training(
    seed: int, *, layers: int = 4, uneven: tuple[float, ...] = (0.0, 0.0, 0.1, 0.4)
) -> TaskGraph:
    """A random training step of 4 to 8 ranks: TP, DP, PP and EP in random proportions.

    Compute and bytes are drawn so that communication matters (1 MB takes 10 us at 800 Gb/s). There
    are up to `layers` layers; what ranks compute, and experts get, differs by one of `uneven`.
    """
    step = _Step(seed, layers, uneven)
    for p in range(step.pp):
        for _ in range(step.layers):
            step.layer(p, 1.0)
        if p + 1 < step.pp:
            step.boundary(p, p + 1)
    for p in reversed(range(step.pp)):
        for _ in range(step.layers):
            step.layer(p, 2.0)
            if step.dp > 1:
                step.gradients(p)
        if p:
            step.boundary(p, p - 1)
    return step.close()


def random_dag(seed: int, *, nodes: int = 4, tasks: int = 30) -> TaskGraph:
    """An adversarial workload without symmetry, closed by a barrier of all ranks."""
    rng = random.Random(seed)  # noqa: S311 (a workload, not a secret)
    build = Builder(nodes)
    ids: list[int] = []
    for index in range(tasks):
        waits = rng.sample(ids, min(len(ids), rng.randint(0, 2)))
        if rng.random() < 0.4:
            task = build.compute(rng.randrange(nodes), rng.randint(5, 40) * 1000)
        else:
            src, dst = rng.sample(range(nodes), 2)
            task = build.message(src, dst, rng.randint(5, 60) * 100_000, build.op(), group=index)
        for other in waits:
            build.arc(other, task, RECORDED)
        ids.append(task)
    ends = [build.compute(r, 1000) for r in range(nodes)]
    for task in ids:
        for end in ends:
            build.arc(task, end, RECORDED)
    graph = build.graph()
    first = [t for t in ids if t not in set(graph.arcs.after[graph.arcs.distance == 0].tolist())]
    for end in ends:
        for task in first:
            build.arc(end, task, ITERATION, 1)
    return build.graph()


def chain_of_two(compute_ns: int = 300_000, size_bytes: int = 1_000_000) -> TaskGraph:
    """Three nodes pass data round and back, computing long enough between to hide any change."""
    build = Builder(3)
    for peer in (1, 2, 1, 2):
        for r in range(3):
            build.compute(r, compute_ns)
        flows = [(r, (r + peer) % 3, size_bytes, 0, []) for r in range(3)]
        build.collective([0, 1, 2], flows, 0)
    return build.graph()


def random_fabric(seed: int, nodes: int, *, plain: bool = False) -> Fabric:
    """1 to 3 planes, tau 1 us to 1 ms; unless `plain` also duplex, all-stop, uneven, delays."""
    rng = random.Random(seed)  # noqa: S311 (a workload, not a secret)
    planes, delay_ns = rng.randint(1, 3), rng.choice([1_000, 10_000, 100_000, 1_000_000])
    if plain:
        return rails(nodes=nodes, planes=planes, delay_ns=delay_ns)
    ports = rng.choice([1, 1, 1, 2])
    made = []
    for index in range(planes):
        packet = index > 0 and rng.random() < 0.2
        plane = Plane(
            node_of=tuple(range(nodes)) * ports,
            rate_bps=rng.choice([400, 800]) * 10**9,
            delay_ns=delay_ns,
            duplex=rng.random() < 0.3 and not packet,
            all_stop=rng.random() < 0.3 and not packet,
            kind="eps" if packet else "ocs",
        )
        made.append(plane)
    return Fabric(
        nodes=nodes,
        planes=tuple(made),
        control_ns=rng.choice([0, 0, 3_000]),
        notify_ns=rng.choice([0, 0, 2_000]),
        latency_ns=rng.choice([0, 500]),
    )
