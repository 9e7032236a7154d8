"""Phases of a workload as coflows, and ordered programs written phase by phase.

A *phase* is the messages of one collective step (of all groups that are alike): they do not wait
for each other. Coflow schedulers see one phase at a time and no computation.
"""

from __future__ import annotations

from collections import defaultdict
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from scheduler.model.program import Entry, OrderedProgram
from scheduler.model.taskgraph import csr
from scheduler.policies.blocks import numbered, shapes
from scheduler.policies.ordered import first_circuits
from topologies.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scheduler.model.taskgraph import Int64s, TaskGraph
    from topologies.fabric import Fabric

__all__ = ["PacketPlanes", "Pair", "Sequence", "Switch", "flows", "phases", "switches"]

Pair = tuple[int, int]


def phases(graph: TaskGraph) -> list[Int64s]:
    """Return the messages of each phase, in an order in which none waits for a later one.

    Messages are of one phase if they are equally deep in the graph and their groups have the same
    size and stride. Of the phases whose predecessors are placed, the one that could begin first (if
    ports took no time) goes next. Raises `UsageError` where tasks wait for themselves.
    """
    messages = graph.messages
    if len(messages) == 0:
        return []
    try:
        order = graph.topological_order()
    except ValueError as error:
        fix = "correct the dependencies"
        raise UsageError("the tasks form a circle", "workload", str(error), fix) from error
    depth, head = _depth_and_head(graph, order)
    _, size, stride, _ = shapes(graph)
    phase = numbered(depth[messages], size, stride)
    count = int(phase.max()) + 1
    # Every other task is a phase without messages.
    of = np.full(graph.tasks, -1, np.int64)
    of[messages] = phase
    others = np.flatnonzero(of < 0)
    of[others] = count + np.arange(len(others))
    first = np.full(count + len(others), np.iinfo(np.int64).max)
    np.minimum.at(first, of, head)
    members = csr(phase, messages, count)
    turns = [int(k) for k in _ranked(graph, of, first) if k < count]
    return [members[1][members[0][k] : members[0][k + 1]] for k in turns]


def _depth_and_head(graph: TaskGraph, order: Int64s) -> tuple[Int64s, Int64s]:
    """Return how many tasks, and how many ns of computation, lead to each task."""
    inside = graph.arcs.distance == 0
    pointers, listed = (
        column.tolist()
        for column in csr(graph.arcs.before[inside], graph.arcs.after[inside], graph.tasks)
    )
    depth, head = [0] * graph.tasks, [0] * graph.tasks
    lasts = graph.dur_ns.tolist()
    for task in order.tolist():
        end = head[task] + lasts[task]
        for after in listed[pointers[task] : pointers[task + 1]]:
            depth[after] = max(depth[after], depth[task] + 1)
            head[after] = max(head[after], end)
    return np.array(depth, np.int64), np.array(head, np.int64)


def _ranked(graph: TaskGraph, of: Int64s, first: Int64s) -> list[int]:
    """Order the nodes that tasks were contracted to: dependencies first, then by `first`."""
    inside = graph.arcs.distance == 0
    count = len(first)
    arcs = np.unique(of[graph.arcs.before[inside]] * count + of[graph.arcs.after[inside]])
    before, after = arcs // count, arcs % count
    missing = np.bincount(after, minlength=count).tolist()
    pointers, listed = (column.tolist() for column in csr(before, after, count))
    keys = first.tolist()
    heap: list[tuple[int, int]] = []
    for node in range(count):
        if missing[node] == 0:
            heappush(heap, (keys[node], node))
    ranked = []
    while heap:
        _, node = heappop(heap)
        ranked.append(node)
        for other in listed[pointers[node] : pointers[node + 1]]:
            missing[other] -= 1
            if missing[other] == 0:
                heappush(heap, (keys[other], other))
    return ranked


def flows(graph: TaskGraph, messages: Int64s) -> dict[Pair, list[int]]:
    """Group messages by (source, destination), largest first in each."""
    found: dict[Pair, list[int]] = defaultdict(list)
    order = messages[np.argsort(-graph.size_bytes[messages], kind="stable")]
    columns = (order, graph.src[order], graph.dst[order])
    for message, src, dst in zip(*(column.tolist() for column in columns), strict=True):
        found[src, dst].append(message)
    return dict(found)


class Switch(NamedTuple):
    """One port of every node on an optical plane: `port[node]`."""

    plane: int
    port: dict[int, int]
    rate_bps: int
    delay_ns: int
    duplex: bool

    def joins(self, pair: Pair) -> bool:
        """Say whether both nodes have a port."""
        return pair[0] in self.port and pair[1] in self.port

    def circuit(self, pair: Pair) -> tuple[int, int, int]:
        """Return (plane, src_port, dst_port)."""
        return self.plane, self.port[pair[0]], self.port[pair[1]]


def switches(fabric: Fabric) -> list[Switch]:
    """Return the optical planes as switches of one port a node: k-th ports make the k-th one."""
    found = []
    for index, plane in enumerate(fabric.planes):
        if plane.kind != "ocs":
            continue
        columns: list[dict[int, int]] = []
        used: dict[int, int] = defaultdict(int)
        for port, node in enumerate(plane.node_of):
            if used[node] == len(columns):
                columns.append({})
            columns[used[node]][node] = port
            used[node] += 1
        found += [
            Switch(index, column, plane.rate_bps, plane.delay_ns, plane.duplex)
            for column in columns
        ]
    return found


class PacketPlanes:
    """The packet switches of a fabric: the way of last resort."""

    def __init__(self, fabric: Fabric) -> None:
        self._ports = [
            (k, {node: port for port, node in reversed(list(enumerate(plane.node_of)))})
            for k, plane in enumerate(fabric.planes)
            if plane.kind == "eps"
        ]

    def route(self, pair: Pair, where: str) -> tuple[int, int, int]:
        """Return (plane, src_port, dst_port); raises `UsageError` where there is none."""
        for plane, ports in self._ports:
            if pair[0] in ports and pair[1] in ports:
                return plane, ports[pair[0]], ports[pair[1]]
        what = f"node {pair[0]} has no way to node {pair[1]}"
        raise UsageError(what, where, "no plane has a port of both", "join them by a plane")


class Sequence:
    """Entries plane by plane, in the order given: an ordered program in the making.

    On an all-stop plane, entries that follow each other in one phase are one configuration as long
    as their ports are free in it.
    """

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._entries: list[list[Entry]] = [[] for _ in fabric.planes]
        self._matchings: list[list[int]] = [[] for _ in fabric.planes]
        self._held: list[set[tuple[str, int]]] = [set() for _ in fabric.planes]

    def next_phase(self) -> None:
        """Begin configurations anew."""
        for held in self._held:
            held.clear()

    def add(self, plane: int, src_port: int, dst_port: int, messages: Iterable[int]) -> None:
        """Append an entry."""
        listed = tuple(messages)
        if not listed:
            return
        ends = {("out", src_port), ("in", dst_port)}
        if self._fabric.planes[plane].duplex:
            ends |= {("out", dst_port), ("in", src_port)}
        held, numbers = self._held[plane], self._matchings[plane]
        number = numbers[-1] if numbers else 0
        if numbers and (not held or held & ends):
            number += 1
            held.clear()
        held |= ends
        numbers.append(number)
        self._entries[plane].append(Entry(src_port, dst_port, listed))

    def program(self) -> OrderedProgram:
        """Return the program; the circuits that come first stand from the start."""
        rows = [
            (plane, entry.src_port, entry.dst_port, number)
            for plane, (entries, numbers) in enumerate(
                zip(self._entries, self._matchings, strict=True)
            )
            for entry, number in zip(entries, numbers, strict=True)
        ]
        columns = np.array(rows, np.int64).reshape(-1, 4).T
        initial = first_circuits(self._fabric, columns[:3], columns[3])
        return OrderedProgram.from_entries(self._entries, initial, self._matchings)
