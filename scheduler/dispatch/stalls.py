"""Saying why an execution can go no further."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scheduler.dispatch import _kernels_columns as col
from scheduler.model.taskgraph import KINDS, MESSAGE
from scheduler.model.timeline import NONE
from topologies.errors import StalledError

if TYPE_CHECKING:
    from scheduler.dispatch.layout import Layout
    from scheduler.model.taskgraph import Int64s, TaskGraph

__all__ = ["blocked", "stalled"]


def _sender(graph: TaskGraph, message: int) -> str:
    """Name the rank that sends a message: its own marker of the same operation comes before."""
    before = graph.arcs.before[graph.arcs.after == message]
    ranks = before[(graph.op[before] == graph.op[message]) & (graph.rank[before] >= 0)]
    names = sorted(set(graph.rank[ranks].tolist()))
    if names:
        return f"rank {names[0]}" if len(names) == 1 else f"ranks {names}"
    return f"node {graph.src[message]}"


def _what(graph: TaskGraph, message: int) -> str:
    what = f"operation {graph.op[message]} of {_sender(graph, message)} is blocked"
    return f"{what}: message {message} ({graph.size_bytes[message]} bytes)"


def blocked(layout: Layout, message: int, port: int, far: int, why: str) -> StalledError:
    """Describe an unrolled message that does not get from `port` to `far`, over all planes.

    `why` is what is wrong with the circuit between them.
    """
    graph = layout.graph
    iteration, base = divmod(message, graph.tasks)
    plane = int(layout.ports[port, col.PORT_PLANE])
    first = layout.port_base[plane]
    circuit = f"the circuit plane {plane} port {port - first} -> {far - first}"
    why = f"{circuit} (node {graph.src[base]} to {graph.dst[base]}) {why}"
    fix = "plan without that circuit, or let the fault end"
    return StalledError(_what(graph, base), f"iteration {iteration}", why, fix)


def _full(layout: Layout, times: Int64s, admitted: Int64s) -> StalledError | None:
    """Describe the first message that waits for room in a NIC, if one does, and who holds it."""
    graph, work = layout.graph, layout.work
    ready, _, end = times
    message = (work.kind == MESSAGE) & (end == NONE)
    waiting = np.flatnonzero(message & (ready != NONE) & (admitted == NONE))
    if len(waiting) == 0:
        return None
    first = int(waiting[np.argmin(ready[waiting])])
    iteration, base = divmod(first, graph.tasks)
    holding = np.flatnonzero(message & (admitted != NONE) & (work.src == work.src[first]))
    named = f"message {holding[0] % graph.tasks} to node {work.dst[holding[0]]}"
    more = f" and {len(holding) - 1} more" if len(holding) > 1 else ""
    nic = f"the NIC of node {work.src[first]} is full"
    held = f"its {layout.nic_buffer_bytes} bytes are held for {named}{more}"
    why = f"{nic}: {held}, whose circuits do not come"
    fix = f"give the NICs more buffer (the message has waited since {ready[first]} ns)"
    return StalledError(_what(graph, base), f"iteration {iteration}", why, fix)


def stalled(layout: Layout, times: Int64s, admitted: Int64s | None = None) -> StalledError:
    """Describe what blocks an execution whose tasks got as far as `times` (ready, start, end).

    Names the first message that waits for room in its NIC (`admitted` NONE), else the first that is
    ready and has not moved, else the first task never reached.
    """
    if admitted is not None and (full := _full(layout, times, admitted)) is not None:
        return full
    graph = layout.graph
    ready, start, end = times
    kind = layout.work.kind
    waiting = np.flatnonzero((kind == MESSAGE) & (ready != NONE) & (end == NONE))
    unreached = np.flatnonzero(end == NONE)
    if len(waiting) == 0:
        iteration, task = divmod(int(unreached[0]), graph.tasks)
        what = f"operation {graph.op[task]} ({KINDS[graph.kind[task]]} {task}) never began"
        why = "its dependencies form a cycle"
        return StalledError(what, f"iteration {iteration}", why, "correct the workload's deps")
    first = int(waiting[np.argmin(ready[waiting])])
    iteration, message = divmod(first, graph.tasks)
    src, dst = int(graph.src[message]), int(graph.dst[message])
    plane = int(layout.route.plane[message])
    base = layout.port_base[plane]
    circuit = (
        f"plane {plane} port {layout.route.src_port[message] - base} -> "
        f"{layout.route.dst_port[message] - base}"
        if plane >= 0
        else "any plane's"
    )
    what = _what(graph, message)
    why = f"the circuit {circuit} (node {src} to {dst}) does not come"
    moved = "has moved in part" if start[first] != NONE else f"has waited since {ready[first]} ns"
    fix = f"give the program that circuit in time (the message {moved})"
    return StalledError(what, f"iteration {iteration}", why, fix)
