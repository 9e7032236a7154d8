"""What a report shows, as plain values: the same for HTML, Markdown, CSV and JSON."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from scheduler.model.nic import wire_ns
from scheduler.model.timeline import NONE
from testbed.report.intervals import lanes_of
from topologies.units import format_bytes, format_duration

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scheduler.model.timeline import Timeline
    from testbed.files.rundir import Run
    from testbed.report.intervals import Lane
    from topologies import Fabric

__all__ = ["Tile", "percent", "plane_shares", "tiles", "viewer_data"]

_FAR: Final = 2.0  # from this ratio on, percent say less than a factor


@dataclass(frozen=True, slots=True)
class Tile:
    """One number of the summary: its key there, a name, the number, and it as people read it."""

    key: str
    name: str
    value: float | str | None
    text: str
    note: str = ""


def percent(value: float) -> str:
    """Write a fraction for people.

    >>> percent(0.1234)
    '12.3 %'
    """
    return f"{100 * value:.3g} %"


def tiles(run: Run) -> list[Tile]:
    """Return the numbers that come first, in order; unknown ones say so."""
    summary = run.summary
    lost = "every byte arrived" if summary.lost_bytes == 0 else ""
    bound = "the plan states no lower bound"
    if summary.lower_bound_ns and summary.iteration_ns:
        ratio = summary.iteration_ns / summary.lower_bound_ns
        near = ratio < _FAR
        bound = f"{100 * (ratio - 1):.2g} % above" if near else f"{ratio:.3g} times"
        bound += " the lower bound"
    injection = run.manifest.injection
    window = f"window {format_duration(injection.feedback_ns)} + {injection.mtu_bytes} B"
    rows: list[tuple[str, str, Any, Any, str]] = [
        ("iteration_ns", "Iteration", summary.iteration_ns, format_duration, bound),
        ("exposed_comm_ns", "Exposed communication", summary.exposed_comm_ns, format_duration,
         "a message outstanding, no compute: mean per rank and iteration"),
        ("nic_peak_bytes_eager", "NIC peak, eager", summary.nic_peak_bytes_eager, format_bytes,
         "largest of any node"),
        ("nic_peak_bytes_paced", "NIC peak, paced", summary.nic_peak_bytes_paced, format_bytes,
         window),
        ("reconfigurations", "Reconfigurations", summary.reconfigurations,
         lambda value: f"{value:.4g}", "per iteration, the first left out"),
        ("circuit_utilisation", "Circuits in use", summary.circuit_utilisation, percent,
         "of the time with light"),
        ("dark_fraction", "Dark", summary.dark_fraction, percent, "of the optical port-time"),
        ("lost_bytes", "Lost", summary.lost_bytes, format_bytes, lost),
    ]  # fmt: skip
    return [
        Tile(key, name, value, "unknown" if value is None else write(value), note)
        for key, name, value, write, note in rows
    ]


def plane_shares(fabric: Fabric, timeline: Timeline) -> list[dict[str, float]]:
    """Return what each optical plane's port-time was used for, as fractions by name."""
    moved, circuits = timeline.transfers, timeline.circuits
    duration = max(int(timeline.end_ns.max(initial=0)), 1)
    down = np.where(circuits.down_ns == NONE, duration, circuits.down_ns)
    busy = wire_ns(fabric, moved.plane, moved.size_bytes)
    shares = []
    for index, plane in enumerate(fabric.planes):
        if plane.kind != "ocs":
            continue
        ways = 2 if plane.duplex else 1
        total = plane.ports * duration
        mine = circuits.plane == index
        made = mine & (circuits.dark_ns != NONE)
        up = np.minimum(down, duration) - np.minimum(circuits.up_ns, duration)
        dark = np.minimum(circuits.up_ns, duration) - np.minimum(circuits.dark_ns, duration)
        sending = int(busy[moved.plane == index].sum()) / total
        lit = ways * int(up[mine].clip(0).sum()) / total
        darkness = ways * int(dark[made].sum()) / total
        shares.append(
            {
                "plane": float(index),
                "sending": sending,
                "lit and idle": max(lit - sending, 0.0),
                "dark": darkness,
                "unconnected": max(1 - lit - darkness, 0.0),
            }
        )
    return shares


def _packed(values: NDArray[Any], kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(values, kind).tobytes()).decode()


def _lane_record(lane: Lane) -> dict[str, Any]:
    return {
        "group": lane.group,
        "name": lane.name,
        "kind": lane.kind,
        "plane": lane.plane,
        "count": len(lane.start_ns),
        "start": _packed(lane.start_ns, "<f8"),
        "length": _packed(lane.end_ns - lane.start_ns, "<f8"),
        "dark": _packed(lane.dark, "<u1"),
        "first": _packed(lane.first, "<i4"),
        "second": _packed(lane.second, "<f8"),
        "far": _packed(lane.far, "<i4"),
    }


def viewer_data(run: Run) -> dict[str, Any]:
    """Return what the page's viewer draws: lanes, queues and the ends of the iterations."""
    timeline, fabric = run.timeline(), run.fabric()
    graph = run.expansion().graph
    lanes = lanes_of(graph, fabric, timeline, run.manifest.rank_to_node)
    queues = run.table("queues")
    nodes = []
    for node in range(fabric.nodes):
        series = []
        for dst in np.unique(queues["dst"][queues["node"] == node]).tolist():
            rows = (queues["node"] == node) & (queues["dst"] == dst)
            if queues["bytes"][rows].any():
                times, sizes = queues["t_ns"][rows], queues["bytes"][rows]
                series.append(
                    {"dst": dst, "t": _packed(times, "<f8"), "bytes": _packed(sizes, "<f8")}
                )
        nodes.append(series)
    ends = [int(end) for end in timeline.iteration_ends_ns if end != NONE]
    nic = run.table("nic")
    peaks = nic["peak_bytes"][nic["injection"] == run.manifest.injection.kind]
    return {
        "duration": int(timeline.end_ns.max(initial=1)),
        "ends": ends,
        "skip": run.manifest.skip,
        "planes": len(fabric.planes),
        "lanes": [_lane_record(lane) for lane in lanes],
        "queues": nodes,
        "busiest": int(np.argmax(peaks)) if len(peaks) else 0,
        "injection": run.manifest.injection.kind,
    }
