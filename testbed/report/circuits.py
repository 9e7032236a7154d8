"""Every circuit of a run by itself: what it carried, how much of its light was used, how late."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from scheduler.model.nic import wire_ns
from scheduler.model.timeline import NONE

if TYPE_CHECKING:
    from scheduler.model.timeline import Timeline
    from topologies import Fabric

__all__ = ["CircuitUse", "circuit_uses"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitUse:
    """All the times that one port of a plane was joined to another, `src` and `dst` their nodes.

    `made` counts the times, the one that stood at time 0 included. `used` is time with bits on the
    wire over time with light, per direction; None without any light. `late_p50_ns` and
    `late_most_ns` are of achieved minus planned up; None where nothing was planned.
    """

    plane: int
    src_port: int
    dst_port: int
    src: int
    dst: int
    made: int
    bytes: int
    lit_ns: int
    used: float | None
    late_p50_ns: float | None
    late_most_ns: int | None


def circuit_uses(fabric: Fabric, timeline: Timeline) -> list[CircuitUse]:
    """Return what became of every circuit, that of the most bytes first. O(circuits + transfers).

    On duplex planes a circuit is both its directions.
    """
    circuits, moved = timeline.circuits, timeline.transfers
    end_ns = int(timeline.end_ns.max(initial=0))
    down = np.where(circuits.down_ns == NONE, end_ns, circuits.down_ns)
    lit = (np.minimum(down, end_ns) - circuits.up_ns).clip(0)
    carried, busy = np.zeros((2, len(lit)), np.int64)
    rows = np.flatnonzero(moved.circuit != NONE)
    np.add.at(carried, moved.circuit[rows], moved.size_bytes[rows])
    taken = wire_ns(fabric, moved.plane[rows], moved.size_bytes[rows])
    np.add.at(busy, moved.circuit[rows], taken)
    late = circuits.up_ns - circuits.planned_up_ns
    known = (circuits.planned_up_ns != NONE) & (circuits.request_ns != NONE)
    by_ports: dict[tuple[int, int, int], list[int]] = {}
    ends = zip(
        circuits.plane.tolist(),
        circuits.src_port.tolist(),
        circuits.dst_port.tolist(),
        strict=True,
    )
    for row, (plane, src, dst) in enumerate(ends):
        pair = (min(src, dst), max(src, dst)) if fabric.planes[plane].duplex else (src, dst)
        by_ports.setdefault((plane, *pair), []).append(row)
    found = []
    for (plane, src, dst), mine in by_ports.items():
        errors = late[mine][known[mine]]
        light = int(lit[mine].sum()) * (2 if fabric.planes[plane].duplex else 1)
        found.append(
            CircuitUse(
                plane=plane,
                src_port=src,
                dst_port=dst,
                src=fabric.node_of(plane, src),
                dst=fabric.node_of(plane, dst),
                made=len(mine),
                bytes=int(carried[mine].sum()),
                lit_ns=int(lit[mine].sum()),
                used=int(busy[mine].sum()) / light if light else None,
                late_p50_ns=float(np.median(errors)) if len(errors) else None,
                late_most_ns=int(errors.max()) if len(errors) else None,
            )
        )
    return sorted(found, key=lambda use: (-use.bytes, use.plane, use.src_port, use.dst_port))
