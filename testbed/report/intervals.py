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
    from testbed.files.excerpt import Excerpt
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
    graph: TaskGraph,
    fabric: Fabric,
    timeline: Timeline,
    rank_to_node: Sequence[int],
    excerpt: Excerpt,
) -> list[Lane]:
    """Return every lane, ranks first, then planes, with the intervals that `excerpt` shows."""
    return [
        *_rank_lanes(graph, fabric, timeline, rank_to_node, excerpt),
        *_plane_lanes(fabric, timeline, excerpt),
    ]


def _rank_lanes(
    graph: TaskGraph,
    fabric: Fabric,
    timeline: Timeline,
    rank_to_node: Sequence[int],
    excerpt: Excerpt,
) -> Iterator[Lane]:
    moved = timeline.transfers
    task = excerpt.shows(timeline.ready_ns, timeline.end_ns)
    task = task[np.argsort(timeline.start_ns[task], kind="stable")]
    base = task % graph.tasks
    kind, rank, stream = graph.kind[base], graph.rank[base], graph.stream[base]
    op, src, dst = graph.op[base], graph.src[base], graph.dst[base]
    left = moved.start_ns + wire_ns(fabric, moved.plane, moved.size_bytes)  # the last bit
    sent = excerpt.shows(moved.start_ns, left)
    sender, carrier = moved.from_node[sent], moved.plane[sent]
    shown: set[int] = set()
    for number, node in enumerate(rank_to_node):
        group = f"rank {number}"
        work = (kind == COMPUTE) & (rank == number)
        for each in np.unique(stream[work]).tolist():
            mine = np.flatnonzero(work & (stream == each))
            rows = task[mine]
            name = "compute" if each == 0 else ("reduce" if each < 0 else f"stream {each}")
            yield Lane(
                group=group, name=name, kind="compute", plane=-1,
                start_ns=timeline.start_ns[rows], end_ns=timeline.end_ns[rows], dark=rows * 0,
                first=op[mine], second=rows, far=np.full(len(rows), NONE, np.int64),
            )  # fmt: skip
        message = task[(kind == MESSAGE) & ((src == node) | (dst == node))]
        busy = task[work & (stream >= 0)]
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
            rows = sent[(sender == node) & (carrier == plane)]
            yield Lane(
                group=group, name=f"sends, plane {plane}", kind="send", plane=plane,
                start_ns=moved.start_ns[rows], end_ns=left[rows], dark=rows * 0,
                first=moved.task[rows], second=moved.size_bytes[rows], far=moved.to_node[rows],
            )  # fmt: skip


def _plane_lanes(fabric: Fabric, timeline: Timeline, excerpt: Excerpt) -> Iterator[Lane]:
    circuits, last = timeline.circuits, int(timeline.end_ns.max(initial=0))
    down = np.where(circuits.down_ns == NONE, np.maximum(last, circuits.up_ns), circuits.down_ns)
    shining = excerpt.shows(circuits.up_ns, down)
    darkened = excerpt.shows(circuits.dark_ns, circuits.up_ns)
    for index, plane in enumerate(fabric.planes):
        if plane.kind != "ocs":
            continue
        for port in range(plane.ports):
            lit, dark = (
                rows[
                    (circuits.plane[rows] == index)
                    & (
                        (circuits.src_port[rows] == port)
                        | (plane.duplex & (circuits.dst_port[rows] == port))
                    )
                ]
                for rows in (shining, darkened)
            )
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
                first=rows[order],
                second=far[order],
                far=far[order],
            )
