"""What a report shows, as plain values: the same for HTML, Markdown, CSV and JSON."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from scheduler.model.nic import wire_ns
from scheduler.model.timeline import NONE
from testbed.files.excerpt import begin_times, choose_excerpt
from testbed.report.intervals import lanes_of
from topologies.units import format_bytes, format_duration, format_number

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scheduler.model.taskgraph import Int64s
    from scheduler.model.timeline import Timeline
    from testbed.files.excerpt import Excerpt
    from testbed.files.rundir import Run
    from testbed.files.tables import Table
    from testbed.report.intervals import Lane
    from topologies import Fabric

__all__ = ["MOST_INTERVALS", "Tile", "percent", "plane_shares", "tiles", "viewer_data"]

MOST_INTERVALS: Final = 150_000  # with as many points of queues: 10 MB, loaded in three seconds
_AT_BOUND: Final = 5e-5  # shown as 0.0 %
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
        if abs(ratio - 1) < _AT_BOUND:
            bound = "at the lower bound"
        if summary.remarks:
            bound = f"{100 * (1 - ratio):.2g} % below the lower bound: not settled yet"
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
         format_number, "per iteration, the first left out"),
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


def viewer_data(
    run: Run, asked: tuple[int, int] | None = None, *, most: int = MOST_INTERVALS
) -> tuple[dict[str, Any], Excerpt]:
    """Return what the page's viewer draws, lanes, queues and the ends of the iterations, and of it.

    `asked` is the stretch of virtual time to draw, in ns; None is all, or of a long run what
    `most` intervals show of its steady state.
    """
    timeline, fabric = run.timeline(), run.fabric()
    graph = run.expansion().graph
    queues = run.table("queues")
    excerpt = choose_excerpt(
        begin_times(graph, timeline), timeline, skip=run.manifest.skip, most=most, asked=asked
    )
    lanes = lanes_of(graph, fabric, timeline, run.manifest.rank_to_node, excerpt)
    ends = [int(end) for end in timeline.iteration_ends_ns if end != NONE]
    nic = run.table("nic")
    peaks = nic["peak_bytes"][nic["injection"] == run.manifest.injection.kind]
    duration = int(timeline.end_ns.max(initial=1))
    data = {
        "span": [min(excerpt.begin_ns, duration), min(excerpt.end_ns, duration)],
        "ends": ends,
        "skip": run.manifest.skip,
        "planes": len(fabric.planes),
        "lanes": [_lane_record(lane) for lane in lanes],
        "queues": _queue_lines(queues, fabric.nodes, excerpt, most),
        "busiest": int(np.argmax(peaks)) if len(peaks) else 0,
        "injection": run.manifest.injection.kind,
    }
    return data, excerpt


def _fullest(rows: Int64s, size_bytes: Int64s, crowd: int) -> Int64s:
    """Return of every `crowd` rows the one of most bytes.

    >>> _fullest(np.arange(5), np.array([1, 9, 3, 7, 2]), 2)
    array([1, 3, 4])
    """
    if crowd <= 1:
        return rows
    padded = np.pad(rows, (0, -len(rows) % crowd), "edge").reshape(-1, crowd)
    fullest = np.argmax(size_bytes[padded], axis=1)
    return np.take_along_axis(padded, fullest[:, None], axis=1)[:, 0]


def _queue_lines(
    queues: Table, nodes: int, excerpt: Excerpt, most: int
) -> list[list[dict[str, Any]]]:
    """Return the queues of each node in `excerpt`, thinned to about `most` points in all.

    Of neighbours that must make room the fullest stays, so that no peak is lost.
    """
    inside = (queues["t_ns"] >= excerpt.begin_ns) & (queues["t_ns"] < excerpt.end_ns)
    crowd = -(-int(inside.sum()) // most)
    found: list[list[dict[str, Any]]] = [[] for _ in range(nodes)]
    pair = queues["node"] * nodes + queues["dst"]
    order = np.argsort(pair, kind="stable")
    pairs, begins = np.unique(pair[order], return_index=True)
    for number, line in zip(pairs.tolist(), np.split(order, begins)[1:], strict=True):
        span = [excerpt.begin_ns, excerpt.end_ns]
        first, last = np.searchsorted(queues["t_ns"][line], span).tolist()
        rows = line[max(first - 1, 0) : last + 1]  # with what waits as it begins and ends
        if queues["bytes"][rows].any():
            rows = _fullest(rows, queues["bytes"], crowd)
            times, sizes = (
                _packed(queues["t_ns"][rows], "<f8"),
                _packed(queues["bytes"][rows], "<f8"),
            )
            node, dst = divmod(number, nodes)
            found[node].append({"dst": dst, "t": times, "bytes": sizes})
    return found
