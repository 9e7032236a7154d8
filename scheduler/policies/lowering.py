"""A problem as the arrays Flux's kernels work on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scheduler.model.taskgraph import MESSAGE, csr, grouped
from scheduler.policies._kernels_flux import (
    ALL_STOP,
    DIRECTED,
    DUPLEX,
    NEVER,
    PACKET,
    Instance,
)
from topologies.errors import UsageError

if TYPE_CHECKING:
    from scheduler.model.problem import Problem
    from scheduler.model.taskgraph import Int64s, TaskGraph
    from topologies.fabric import Fabric, Plane

__all__ = ["lower", "wire_ns"]


def wire_ns(plane: Plane, size_bytes: Int64s) -> Int64s:
    """Return each message's time on the wire of `plane`, shape (messages,)."""
    sizes, inverse = np.unique(size_bytes, return_inverse=True)
    times = np.array([plane.transfer_ns(size) for size in sizes.tolist()], np.int64)
    return times[inverse].astype(np.int64)


def lower(problem: Problem, *, reuse: bool = True, early: bool = True) -> Instance:
    """Build the arrays of `problem`; raises `UsageError` for a message no plane can carry."""
    graph, fabric = problem.graph, problem.fabric
    inside = graph.arcs.distance == 0
    pred_ptr, order = grouped(graph.arcs.after, graph.tasks)
    succ_ptr, succ = csr(graph.arcs.before[inside], graph.arcs.after[inside], graph.tasks)
    missing = np.bincount(graph.arcs.after[inside], minlength=graph.tasks).astype(np.int64)
    port_ptr, ports, base = _ports(fabric)
    known_ns, heard_ns = _known_and_heard(problem)
    return Instance(
        kind=graph.kind,
        src=graph.src,
        dst=graph.dst,
        dur_ns=graph.dur_ns,
        pred_ptr=pred_ptr,
        pred=graph.arcs.before[order],
        pred_distance=graph.arcs.distance[order],
        succ_ptr=succ_ptr,
        succ=succ,
        missing=missing,
        wire_ns=_wires(graph, fabric),
        delay_ns=_delays(problem),
        mode=np.array([_mode(plane) for plane in fabric.planes], np.int64),
        port_ptr=port_ptr,
        port=ports,
        port_base=base,
        nodes=fabric.nodes,
        latency_ns=fabric.latency_ns,
        known_ns=known_ns,
        heard_ns=heard_ns,
        reuse=reuse,
        early=early,
    )


def _mode(plane: Plane) -> int:
    if plane.kind == "eps":
        return PACKET
    return (DUPLEX if plane.duplex else DIRECTED) | (ALL_STOP if plane.all_stop else 0)


def _delays(problem: Problem) -> Int64s:
    """From the request to light, on each plane."""
    control_ns = problem.fabric.control_ns
    return np.array([control_ns + plane.delay_ns for plane in problem.fabric.planes], np.int64)


def _known_and_heard(problem: Problem) -> tuple[int, int]:
    """From a message's last bit, and from its first, until its ports may be asked to change.

    The dispatcher hears of a message's end, or with lookahead of its beginning, and then asks up to
    `lookahead_ns` before it would have heard of the end, but for nothing that takes the light away
    before the last bit has left: see `predicted_free_ns` in the dispatcher.
    """
    fabric = problem.fabric
    delivery_ns = fabric.latency_ns + fabric.notify_ns
    if problem.lookahead_ns == 0:
        return delivery_ns, 0
    return max(-fabric.control_ns, delivery_ns - problem.lookahead_ns), fabric.notify_ns


def _ports(fabric: Fabric) -> tuple[Int64s, Int64s, Int64s]:
    """Global ports of each (plane, node): pointers, ports; and the first port of each plane."""
    sizes = [plane.ports for plane in fabric.planes]
    base = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    rows = np.concatenate(
        [np.array(plane.node_of) + k * fabric.nodes for k, plane in enumerate(fabric.planes)]
    )
    pointers, ports = csr(rows, np.arange(base[-1]), len(sizes) * fabric.nodes)
    return pointers, ports, base


def _wires(graph: TaskGraph, fabric: Fabric) -> Int64s:
    """Time on the wire, shape (planes, tasks); `NEVER` where the plane does not join the pair."""
    messages = graph.messages
    src, dst = graph.src[messages], graph.dst[messages]
    wires = np.full((len(fabric.planes), graph.tasks), NEVER, np.int64)
    joined = np.zeros(len(messages), bool)
    for k, plane in enumerate(fabric.planes):
        present = np.zeros(fabric.nodes, bool)
        present[list(plane.node_of)] = True
        both = present[src] & present[dst]
        wires[k, messages[both]] = wire_ns(plane, graph.size_bytes[messages[both]])
        joined |= both
    if not joined.all():
        lost = int(messages[~joined][0])
        what = f"message {lost} from node {graph.src[lost]} to node {graph.dst[lost]} has no way"
        why = "no plane has a port of both"
        raise UsageError(what, fabric.name or "fabric", why, "use a topology that joins them")
    assert (graph.kind[messages] == MESSAGE).all()
    return wires
