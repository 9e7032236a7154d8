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

    def message(self, src: int, dst: int, size_bytes: int, op: int, group: int, step: int) -> int:
        self.rows.append((MESSAGE, op, -1, -1, -1, src, dst, size_bytes, 0, group, step))
        return len(self.rows) - 1

    def collective(
        self,
        members: list[int],
        flows: list[tuple[int, int, int, int, list[int]]],
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
            task = self.message(src, dst, size_bytes, op, steps[step], step)
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


def ring(
    members: list[int], size_bytes: int, phases: int
) -> list[tuple[int, int, int, int, list[int]]]:
    """Flows of a ring collective; size_bytes is one chunk."""
    n, flows = len(members), []
    for step in range(phases * (n - 1)):
        for i in range(n):
            waits = [(step - 1) * n + (i - 1) % n] if step else []
            flows.append((members[i], members[(i + 1) % n], size_bytes, step, waits))
    return flows


def direct(members: list[int], size_bytes: int) -> list[tuple[int, int, int, int, list[int]]]:
    """Flows in which everyone sends to everyone."""
    n = len(members)
    return [
        (members[i], members[(i + d) % n], size_bytes, d - 1, [])
        for d in range(1, n)
        for i in range(n)
    ]


def training(seed: int) -> TaskGraph:
    """A random training step of 4 to 8 ranks: TP, DP, PP and EP in random proportions.

    Ranks are numbered TP fastest, then DP, then PP. Compute and bytes are drawn so that
    communication matters (1 MB takes 10 us at 800 Gb/s).
    """
    rng = random.Random(seed)
    tp, dp, pp = rng.choice(
        [(4, 1, 1), (2, 2, 1), (4, 2, 1), (2, 4, 1), (2, 3, 1), (2, 2, 2), (1, 4, 2), (2, 1, 3),
         (3, 2, 1), (4, 1, 2), (1, 4, 1), (5, 1, 1), (1, 7, 1)]
    )  # fmt: skip
    nodes = tp * dp * pp
    build = Builder(nodes)
    layers, direct_tp, direct_dp = rng.randint(1, 4), rng.random() < 0.6, rng.random() < 0.4
    experts = tp == 1 or rng.random() < 0.25
    uneven = rng.choice([0.0, 0.0, 0.1, 0.4])
    unit_ns, size = rng.choice([20_000, 100_000, 400_000]), rng.choice([10**5, 10**6, 8 * 10**6])

    def rank(t: int, d: int, p: int) -> int:
        return t + tp * (d + dp * p)

    def group(direct_one: bool, members: list[int], size_bytes: int) -> list:  # noqa: FBT001
        return direct(members, size_bytes) if direct_one else ring(members, size_bytes, 1)

    def layer(p: int, scale: float) -> None:
        for d in range(dp):
            for t in range(tp):
                dur = unit_ns * scale * rng.uniform(1 - uneven, 1 + uneven)
                build.compute(rank(t, d, p), int(dur))
        if tp > 1:
            for d in range(dp):
                build.collective(
                    members := [rank(t, d, p) for t in range(tp)],
                    group(direct_tp, members, size),
                    0,
                )
        if experts:
            for t in range(tp):
                members = [rank(t, d, p) for d in range(dp)]
                if dp > 1:
                    flows = [
                        (s, d, max(1, int(size * rng.uniform(1 - uneven, 1 + uneven))), step, w)
                        for s, d, _, step, w in direct(members, size)
                    ]
                    build.collective(members, flows, 0)

    def boundary(p: int, q: int) -> None:
        for d in range(dp):
            for t in range(tp):
                a, b = rank(t, d, p), rank(t, d, q)
                build.collective([a, b], [(a, b, size, 0, [])], 0)

    for p in range(pp):
        for _ in range(layers):
            layer(p, 1.0)
        if p + 1 < pp:
            boundary(p, p + 1)
    for p in reversed(range(pp)):
        for _ in range(layers):
            layer(p, 2.0)
            if dp > 1:
                for t in range(tp):
                    members = [rank(t, d, p) for d in range(dp)]
                    after = {r: build.last[r, 0] for r in members}
                    build.collective(members, group(direct_dp, members, size), 1, after)
        if p:
            boundary(p, p - 1)
    for r in range(nodes):
        step = build.compute(r, unit_ns // 4)
        if (r, 1) in build.last:
            build.arc(build.last[r, 1], step, RECORDED)
    return build.graph()


def random_dag(seed: int, *, nodes: int = 4, tasks: int = 30) -> TaskGraph:
    """An adversarial workload without symmetry, closed by a barrier of all ranks."""
    rng = random.Random(seed)
    build = Builder(nodes)
    ids: list[int] = []
    for index in range(tasks):
        waits = rng.sample(ids, min(len(ids), rng.randint(0, 2)))
        if rng.random() < 0.4:
            task = build.compute(rng.randrange(nodes), rng.randint(5, 40) * 1000)
        else:
            src, dst = rng.sample(range(nodes), 2)
            task = build.message(src, dst, rng.randint(5, 60) * 100_000, build.op(), index, 0)
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
    rng = random.Random(seed)
    planes, delay_ns = rng.randint(1, 3), rng.choice([1_000, 10_000, 100_000, 1_000_000])
    if plain:
        return rails(nodes=nodes, planes=planes, delay_ns=delay_ns)
    ports = rng.choice([1, 1, 1, 2])
    made = [
        Plane(
            node_of=tuple(range(nodes)) * ports,
            rate_bps=rng.choice([400, 800]) * 10**9,
            delay_ns=delay_ns,
            duplex=rng.random() < 0.3,
            all_stop=rng.random() < 0.3,
            kind="eps" if index and rng.random() < 0.2 else "ocs",
        )
        for index in range(planes)
    ]
    return Fabric(
        nodes=nodes,
        planes=tuple(made),
        control_ns=rng.choice([0, 0, 3_000]),
        notify_ns=rng.choice([0, 0, 2_000]),
        latency_ns=rng.choice([0, 500]),
    )
