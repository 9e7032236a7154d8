"""Simulating timed programs on fabrics with packet planes.

A packet plane joins all its nodes at any time, so every queue drains over it too, besides the
circuits of its slots. That holds for direct routing; two-hop routing does not use packet planes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from scheduler.dispatch._kernels_events import Progress
    from scheduler.dispatch._kernels_shared import Sharing
    from scheduler.dispatch._kernels_timed import Queues
    from scheduler.dispatch.layout import Layout
    from scheduler.model.taskgraph import Int64s

__all__ = ["has_packet_planes", "run_with_packets"]

_BITS_PER_BYTE_NS = 8e9


def has_packet_planes(layout: Layout) -> bool:
    """Say whether some plane is a packet switch."""
    return any(plane.kind == "eps" for plane in layout.fabric.planes)


def run_with_packets(layout: Layout, progress: Progress, queues: Queues) -> tuple[Int64s, int]:
    """Run a timed program with direct routing whose queues use packet planes besides circuits.

    Returns the pieces sent and how many there are.
    """
    from scheduler.dispatch import _kernels_timed as timed
    from scheduler.dispatch._kernels_events import START
    from scheduler.dispatch._kernels_shared import run_shared

    sharing = _sharing(layout, queues)
    latency_ns = layout.fabric.latency_ns
    pieces, size = run_shared(layout.work, progress, queues, sharing, latency_ns)
    moved, start_ns = pieces[:size, timed.PIECE_TASK], progress.times[START]
    start_ns[moved] = pieces[:size, timed.PIECE_START].max(initial=0)
    np.minimum.at(start_ns, moved, pieces[:size, timed.PIECE_START])  # its circuit came later
    return pieces, size


def _sharing(layout: Layout, queues: Queues) -> Sharing:
    from scheduler.dispatch._kernels_shared import Sharing

    graph, fabric = layout.graph, layout.fabric
    count = len(queues.lane_ptr) - 1
    src, dst = np.zeros(count, np.int64), np.zeros(count, np.int64)
    src[queues.of[graph.messages]] = graph.src[graph.messages]
    dst[queues.of[graph.messages]] = graph.dst[graph.messages]
    packet = [k for k, plane in enumerate(fabric.planes) if plane.kind == "eps"]
    rate = np.array([fabric.planes[k].rate_bps for k in packet]) / _BITS_PER_BYTE_NS
    room = np.zeros((len(packet), fabric.nodes))
    port = np.full((len(packet), fabric.nodes), -1, np.int64)
    for row, k in enumerate(packet):
        for node in range(fabric.nodes):
            own = fabric.ports_of(k, node)
            room[row, node] = len(own) * rate[row]
            if own:
                port[row, node] = layout.port_base[k] + own[0]
    nothing = np.full(count, -1, np.int64)
    return Sharing(
        room=room,
        most=rate,
        port=port,
        src=src,
        dst=dst,
        head=nothing,
        tail=nothing.copy(),
        left=np.zeros(count, np.int64),
        rate=np.zeros((len(packet), count)),
        sent=np.zeros((len(packet), count)),
        after=np.full(len(layout.work.kind), -1, np.int64),
    )
