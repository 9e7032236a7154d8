"""timeline.json: a run as Chrome trace events, which Perfetto and chrome://tracing open.

Every rank is a process: a thread per stream of computation, and one per plane for what its node
sends. Every plane is a process with a thread per port: circuits, and the dark time before them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from scheduler.model.nic import wire_ns
from scheduler.model.taskgraph import COMPUTE
from scheduler.model.timeline import NONE
from testbed.files.codec import write_chunks
from testbed.files.excerpt import begin_times, choose_excerpt

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from scheduler.model.taskgraph import Int64s, TaskGraph
    from scheduler.model.timeline import Timeline
    from testbed.files.excerpt import Excerpt
    from topologies import Fabric

__all__ = ["timeline_chunks", "trace_events", "write_timeline"]

_PLANE: Final = 1_000_000  # process ids of planes start here
_SENDS: Final = 10_000  # thread ids of a rank's sends start here
_MOST_EVENTS: Final = 250_000  # about 40 MB


def write_timeline(
    path: Path,
    graph: TaskGraph,
    fabric: Fabric,
    timeline: Timeline,
    rank_to_node: Sequence[int],
    *,
    skip: int = 0,
) -> None:
    """Write the trace; of a very long run a stretch, which the file then says."""
    write_chunks(path, timeline_chunks(graph, fabric, timeline, rank_to_node, skip=skip))


def timeline_chunks(
    graph: TaskGraph,
    fabric: Fabric,
    timeline: Timeline,
    rank_to_node: Sequence[int],
    *,
    skip: int = 0,
    asked: tuple[int, int] | None = None,
) -> Iterator[bytes]:
    """Yield the trace piece by piece: of the stretch `asked` for, of all where that is possible."""
    begins = begin_times(graph, timeline)
    excerpt = choose_excerpt(begins, timeline, skip=skip, most=_MOST_EVENTS, asked=asked)
    encode = msgspec.json.Encoder().encode
    yield b'{"displayTimeUnit":"ns","traceEvents":['
    separator = b"\n"
    for event in trace_events(graph, fabric, timeline, rank_to_node, excerpt):
        yield separator + encode(event)
        separator = b",\n"
    said: dict[str, Any] = {"format": "fluxbed-timeline", "complete": excerpt.whole}
    if not excerpt.whole:
        said |= {"begin_ns": excerpt.begin_ns, "end_ns": excerpt.end_ns}
    yield b'\n],"otherData":' + encode(said) + b"}\n"


def trace_events(
    graph: TaskGraph,
    fabric: Fabric,
    timeline: Timeline,
    rank_to_node: Sequence[int],
    excerpt: Excerpt,
) -> Iterator[dict[str, Any]]:
    """Yield the events of `excerpt`: names first, then circuits, then tasks in order of start."""
    yield from _names(graph, fabric, rank_to_node)
    yield from _circuits(fabric, timeline, excerpt)
    yield from _computations(graph, timeline, excerpt)
    yield from _sends(graph, fabric, timeline, rank_to_node, excerpt)


def _name(pid: int, name: str, tid: int | None = None) -> dict[str, Any]:
    kind = "process_name" if tid is None else "thread_name"
    thread = {} if tid is None else {"tid": tid}
    return {"ph": "M", "name": kind, "pid": pid, **thread, "args": {"name": name}}


def _span(pid: int, tid: int, name: str, begin: int, end: int, **args: int) -> dict[str, Any]:
    span = {"ph": "X", "name": name, "pid": pid, "tid": tid}
    return {**span, "ts": begin / 1000, "dur": (end - begin) / 1000, "args": args}


def _names(
    graph: TaskGraph, fabric: Fabric, rank_to_node: Sequence[int]
) -> Iterator[dict[str, Any]]:
    for rank, node in enumerate(rank_to_node):
        yield _name(rank, f"rank {rank} (node {node})")
        for stream in np.unique(graph.stream[(graph.rank == rank) & (graph.stream >= 0)]).tolist():
            yield _name(rank, f"stream {stream}", stream)
        for plane in range(len(fabric.planes)):
            yield _name(rank, f"sends on plane {plane}", _SENDS + plane)
    for number, switch in enumerate(fabric.planes):
        yield _name(_PLANE + number, f"plane {number} ({switch.kind})")
        for port, node in enumerate(switch.node_of):
            yield _name(_PLANE + number, f"port {port} (node {node})", port)


def _circuits(fabric: Fabric, timeline: Timeline, excerpt: Excerpt) -> Iterator[dict[str, Any]]:
    circuits, last = timeline.circuits, int(timeline.end_ns.max(initial=0))
    shown = excerpt.shows(
        np.where(circuits.dark_ns == NONE, circuits.up_ns, circuits.dark_ns),
        np.where(circuits.down_ns == NONE, last, circuits.down_ns),
    )
    columns = (shown, circuits.plane[shown], circuits.src_port[shown], circuits.dst_port[shown])
    times = (circuits.dark_ns[shown], circuits.up_ns[shown], circuits.down_ns[shown])
    for row, plane, src, dst, dark, up, down in _rows(*columns, *times):
        node = fabric.node_of(plane, dst)
        pid, name = _PLANE + plane, f"to port {dst} (node {node})"
        if dark != NONE:
            yield _span(pid, src, "dark", dark, up, circuit=row)
        yield _span(pid, src, name, up, max(up, last) if down == NONE else down, circuit=row)


def _computations(
    graph: TaskGraph, timeline: Timeline, excerpt: Excerpt
) -> Iterator[dict[str, Any]]:
    rows = excerpt.shows(timeline.start_ns, timeline.end_ns)
    rows = rows[graph.kind[rows % graph.tasks] == COMPUTE]
    rows = rows[np.argsort(timeline.start_ns[rows], kind="stable")]
    base = rows % graph.tasks
    columns = (rows, graph.rank[base], graph.stream[base], graph.op[base])
    for task, rank, stream, op, start, end in _rows(
        *columns, timeline.start_ns[rows], timeline.end_ns[rows]
    ):
        yield _span(rank, max(stream, 0), f"compute {op}", start, end, task=task)


def _sends(
    graph: TaskGraph,
    fabric: Fabric,
    timeline: Timeline,
    rank_to_node: Sequence[int],
    excerpt: Excerpt,
) -> Iterator[dict[str, Any]]:
    """Yield what is on the wire, from the first bit to the last: spans never overlap."""
    moved = timeline.transfers
    left = moved.start_ns + wire_ns(fabric, moved.plane, moved.size_bytes)
    first_rank = {node: rank for rank, node in reversed(list(enumerate(rank_to_node)))}
    rows = excerpt.shows(moved.start_ns, left)
    op = graph.op[moved.task[rows] % graph.tasks]
    columns = (moved.from_node, moved.to_node, moved.plane, moved.size_bytes, moved.start_ns, left)
    for task, number, source, target, plane, size, start, end in _rows(
        moved.task[rows], op, *(column[rows] for column in columns)
    ):
        if source in first_rank:
            pid, tid = first_rank[source], _SENDS + plane
            name = f"op {number} to node {target}"
            yield _span(pid, tid, name, start, end, task=task, bytes=size)


def _rows(*columns: Int64s) -> Iterator[tuple[int, ...]]:
    return zip(*(column.tolist() for column in columns), strict=True)
