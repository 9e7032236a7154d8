"""The lanes of a run's timeline: intervals of every rank and of every plane's ports.

A lane is one row on the screen; its intervals do not overlap. Colours are named by what they mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from scheduler.model.metrics import merged
from scheduler.model.nic import wire_ns
from scheduler.model.taskgraph import COMPUTE, MESSAGE
from scheduler.model.timeline import NONE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scheduler.model.taskgraph import Int64s, TaskGraph
    from scheduler.model.timeline import Timeline
    from topologies import Fabric

__all__ = ["Lane", "lanes_of", "without"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A row of intervals [start_ns, end_ns), ordered; all arrays of shape (intervals,).

    `kind` is compute, send, wait or circuit, `plane` the plane of sends and circuits (-1: none).
    `dark` marks circuits being made. `first`, `second` and `far` are what to say about an interval:
    op and task; message, bytes and the node they go to; or circuit and the port it leads to, twice.
    """

    group: str
    name: str
    kind: str
    plane: int
    start_ns: Int64s
    end_ns: Int64s
    dark: Int64s
    first: Int64s
    second: Int64s
    far: Int64s


def without(
    begin: Int64s, end: Int64s, other_begin: Int64s, other_end: Int64s
) -> tuple[Int64s, Int64s]:
    """Return the parts of merged intervals that no other one covers.

    >>> without(np.array([0]), np.array([10]), np.array([2]), np.array([5]))
    (array([0, 5]), array([ 2, 10]))
    """
    times = np.concatenate([begin, end, other_begin, other_end])
    change = np.repeat([1, -1, -4, 4], [len(begin), len(end), len(other_begin), len(other_end)])
    order = np.argsort(times, kind="stable")
    times, level = times[order], np.cumsum(change[order])
    inside = np.flatnonzero((level[:-1] == 1) & (times[1:] > times[:-1]))
    return merged(times[inside], times[inside + 1])


def lanes_of(
    graph: TaskGraph, fabric: Fabric, timeline: Timeline, rank_to_node: Sequence[int]
) -> list[Lane]:
    """Return every lane, ranks first, then planes."""
    return [
        *_rank_lanes(graph, fabric, timeline, rank_to_node),
        *_plane_lanes(fabric, timeline),
    ]


def _rank_lanes(
    graph: TaskGraph, fabric: Fabric, timeline: Timeline, rank_to_node: Sequence[int]
) -> Iterator[Lane]:
    moved, n = timeline.transfers, timeline.iterations
    kind, rank, stream = (np.tile(c, n) for c in (graph.kind, graph.rank, graph.stream))
    op, src, dst = (np.tile(c, n) for c in (graph.op, graph.src, graph.dst))
    done = timeline.end_ns != NONE
    left = moved.start_ns + wire_ns(fabric, moved.plane, moved.size_bytes)  # the last bit
    shown: set[int] = set()
    for number, node in enumerate(rank_to_node):
        group = f"rank {number}"
        work = done & (kind == COMPUTE) & (rank == number)
        for each in np.unique(stream[work]).tolist():
            rows = np.flatnonzero(work & (stream == each))
            rows = rows[np.argsort(timeline.start_ns[rows], kind="stable")]
            name = "compute" if each == 0 else ("reduce" if each < 0 else f"stream {each}")
            yield Lane(
                group=group, name=name, kind="compute", plane=-1,
                start_ns=timeline.start_ns[rows], end_ns=timeline.end_ns[rows], dark=rows * 0,
                first=op[rows], second=rows, far=np.full(len(rows), NONE, np.int64),
            )  # fmt: skip
        message = done & (kind == MESSAGE) & ((src == node) | (dst == node))
        busy = work & (stream >= 0)
        begin, end = without(
            *merged(timeline.ready_ns[message], timeline.end_ns[message]),
            *merged(timeline.start_ns[busy], timeline.end_ns[busy]),
        )
        none = np.full(len(begin), NONE, np.int64)
        yield Lane(
            group=group, name="waits", kind="wait", plane=-1, start_ns=begin, end_ns=end,
            dark=none * 0, first=none, second=none, far=none,
        )  # fmt: skip
        if node in shown:
            continue
        shown.add(node)
        for plane in range(len(fabric.planes)):
            rows = np.flatnonzero((moved.from_node == node) & (moved.plane == plane))
            yield Lane(
                group=group, name=f"sends, plane {plane}", kind="send", plane=plane,
                start_ns=moved.start_ns[rows], end_ns=left[rows], dark=rows * 0,
                first=moved.task[rows], second=moved.size_bytes[rows], far=moved.to_node[rows],
            )  # fmt: skip


def _plane_lanes(fabric: Fabric, timeline: Timeline) -> Iterator[Lane]:
    circuits, last = timeline.circuits, int(timeline.end_ns.max(initial=0))
    down = np.where(circuits.down_ns == NONE, np.maximum(last, circuits.up_ns), circuits.down_ns)
    made = circuits.dark_ns != NONE
    number = np.arange(len(circuits.plane))
    for index, plane in enumerate(fabric.planes):
        if plane.kind != "ocs":
            continue
        for port in range(plane.ports):
            mine = (circuits.plane == index) & (circuits.src_port == port)
            if plane.duplex:
                mine |= (circuits.plane == index) & (circuits.dst_port == port)
            lit, dark = np.flatnonzero(mine), np.flatnonzero(mine & made)
            rows = np.concatenate([lit, dark])
            start = np.concatenate([circuits.up_ns[lit], circuits.dark_ns[dark]])
            order = np.argsort(start, kind="stable")
            far = np.where(
                circuits.src_port[rows] == port, circuits.dst_port[rows], circuits.src_port[rows]
            )
            yield Lane(
                group=f"plane {index}",
                name=f"port {port}",
                kind="circuit",
                plane=index,
                start_ns=start[order],
                end_ns=np.concatenate([down[lit], circuits.up_ns[dark]])[order],
                dark=np.repeat([0, 1], [len(lit), len(dark)])[order],
                first=number[rows][order],
                second=far[order],
                far=far[order],
            )
