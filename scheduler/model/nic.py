"""What waits in the network cards: exact accounting over the times of a finished execution.

One NIC per node with a virtual output queue (VOQ) per destination, transit included. Nothing here
changes the timing: it follows from when messages became ready and when their bytes left.

Every ns, in whole units of nanobits:

- *eager*: the node takes in bytes of its ready messages at its aggregate port rate (the sum of its
  ports' rates). Messages on the wire come first, each at the rate at which it leaves; what is left
  of the rate goes, first ready first in, to the messages that wait, and their bytes wait in the
  NIC.
- *paced*: a VOQ that is being served holds rate * feedback_ns + one MTU of what it has left to
  send; everything else stays in GPU memory.

Bytes in transit (two-hop routing) are in the relay's NIC from the moment they arrive until they
leave, under either injection. Bytes that a receiver holds because earlier ones of their message are
still under way (earlier: sent earlier by the source) are its reorder bytes, not in any VOQ.

Where NICs have a finite buffer (`scheduler.model.admission`), bytes come in from when it lets their
message in; of one larger than the buffer, eager injection takes in what fits, and the rest passes
through as it is sent. The paced window is held outside it: GPU memory has no limit here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

import numpy as np

from scheduler.model.admission import as_admitted
from scheduler.model.reorder import reorder_peaks
from scheduler.model.taskgraph import MESSAGE
from scheduler.model.timeline import NONE
from topologies.errors import FabricError

if TYPE_CHECKING:
    from scheduler.model.taskgraph import Int64s, TaskGraph
    from scheduler.model.timeline import Timeline
    from topologies.fabric import Fabric

__all__ = ["FEEDBACK_NS", "MTU_BYTES", "Injection", "NicAccount", "account_nics", "wire_ns"]

Injection: TypeAlias = Literal["eager", "paced"]

FEEDBACK_NS: Final = 2_000
MTU_BYTES: Final = 4_096
_NANOBITS_PER_BYTE: Final = 8 * 10**9
_LARGEST: Final = 2**61


@dataclass(frozen=True, slots=True, kw_only=True)
class NicAccount:
    """Peaks per node, shape (nodes,), and the queue series, shape (points,); all int64.

    `inject_ns`, shape (iterations * tasks,), is when each message's first byte came in (NONE for
    what is no message or never came).

    `peak_bytes` is the most a NIC held, transit included, first at `peak_ns`; `transit_peak_bytes`
    and `reorder_peak_bytes` are the most of those kinds alone. The series has the turning points
    of every VOQ (`node`, `dst`) in order of time, from its first use: straight lines between them
    are exact to 1 ns and every local maximum is a point. Bytes are rounded up.
    """

    injection: Injection
    peak_bytes: Int64s
    peak_ns: Int64s
    transit_peak_bytes: Int64s
    reorder_peak_bytes: Int64s
    inject_ns: Int64s
    node: Int64s
    dst: Int64s
    t_ns: Int64s
    bytes: Int64s


class _Parts(NamedTuple):
    """Bytes that come in together, and the transfers that send them.

    Per part: `task`, the unrolled message it is of, `ready_ns` and `size_bytes`. Part k is message
    k for every unrolled task k. Per SEND: `row` of the transfers, `part`, `start_ns`, `sent_bytes`.
    """

    task: Int64s
    ready_ns: Int64s
    size_bytes: Int64s
    row: Int64s
    part: Int64s
    start_ns: Int64s
    sent_bytes: Int64s


class _Flows(NamedTuple):
    """Bytes crossing ports, ordered by node and start; kernel arguments of the same names."""

    node: Int64s
    kind: Int64s
    start_ns: Int64s
    message: Int64s
    dst: Int64s
    size_bytes: Int64s
    rate_bps: Int64s


def wire_ns(fabric: Fabric, plane: Int64s, size_bytes: Int64s) -> Int64s:
    """Time on the wire of each transfer, latency excluded: ceil(bytes * 8e9 / rate_bps)."""
    out = np.zeros(len(plane), np.int64)
    for index, each in enumerate(fabric.planes):
        chosen = plane == index
        grain = math.gcd(_NANOBITS_PER_BYTE, each.rate_bps)
        out[chosen] = -(
            -size_bytes[chosen] * (_NANOBITS_PER_BYTE // grain) // (each.rate_bps // grain)
        )
    return out


def node_rates_bps(fabric: Fabric) -> Int64s:
    """Aggregate port rate of every node, shape (nodes,)."""
    rates = np.zeros(fabric.nodes, np.int64)
    for plane in fabric.planes:
        np.add.at(rates, np.asarray(plane.node_of, np.int64), plane.rate_bps)
    return rates


def _grain(fabric: Fabric, largest_bytes: int) -> int:
    """The unit of amounts, in nanobits; raises `FabricError` where 64 bits cannot count in it."""
    grain = math.gcd(_NANOBITS_PER_BYTE, *(plane.rate_bps for plane in fabric.planes))
    if largest_bytes * (_NANOBITS_PER_BYTE // grain) > _LARGEST:
        what = f"{largest_bytes} bytes cannot be counted exactly at these rates"
        why = f"the rates have no common divisor with 8 Gbps above {grain} bps"
        raise FabricError(what, "NIC accounting", why, "use rates in whole Mbps")
    return grain


def account_nics(
    graph: TaskGraph,
    fabric: Fabric,
    timeline: Timeline,
    injection: Injection = "eager",
    *,
    feedback_ns: int = FEEDBACK_NS,
    mtu_bytes: int = MTU_BYTES,
    nic_buffer_bytes: int | None = None,
) -> NicAccount:
    """Account for every NIC of a finished (or failed) execution.

    Messages that never became ready are not counted; those never sent stay in the queue. Raises
    `FabricError` when the rates have no common unit that 64 bits can count. O(transfers * log) in
    time and independent of how long the execution lasts.
    """
    from scheduler.model._kernels_nic import account_node

    tasks = graph.tasks
    timeline = as_admitted(graph, fabric, timeline, nic_buffer_bytes)
    parts = _parts(graph, fabric, timeline, nic_buffer_bytes if injection == "eager" else None)
    ready, task = parts.ready_ns, parts.task
    reached = np.flatnonzero((graph.kind[task % tasks] == MESSAGE) & (ready != NONE))
    source = graph.src[task[reached] % tasks]
    order = np.lexsort((reached, ready[reached], source))
    reached, source = reached[order], source[order]
    begins = np.searchsorted(source, np.arange(fabric.nodes + 1))
    place = np.full(len(ready), NONE, np.int64)
    place[reached] = np.arange(len(reached)) - begins[source]
    size = parts.size_bytes[reached]
    dst = graph.dst[task[reached] % tasks]
    flows = _flows(graph, fabric, timeline, parts, place)
    starts = np.searchsorted(flows.node, np.arange(fabric.nodes + 1))
    largest = np.bincount(source, size, fabric.nodes)
    largest += np.bincount(flows.node, flows.size_bytes, fabric.nodes)
    grain = _grain(fabric, int(largest.max()) + mtu_bytes)
    per_byte, node_rates = _NANOBITS_PER_BYTE // grain, node_rates_bps(fabric)

    inject = np.full(len(ready), NONE, np.int64)
    peaks = np.zeros((fabric.nodes, 3), np.int64)
    points: list[Int64s] = []
    for node in range(fabric.nodes):
        mine = slice(begins[node], begins[node + 1])
        cross = slice(starts[node], starts[node + 1])
        queues, voq = np.unique(np.concatenate([dst[mine], flows.dst[cross]]), return_inverse=True)
        count = begins[node + 1] - begins[node]
        entered = np.empty(count, np.int64)
        series = np.empty((8 * len(voq) + 2 * len(queues), 3), np.int64)
        while True:
            rows = account_node(
                int(node_rates[node]) // grain,
                int(injection == "paced"),
                feedback_ns,
                mtu_bytes * per_byte,
                ready[reached[mine]],
                size[mine] * per_byte,
                voq[:count],
                flows.kind[cross],
                flows.start_ns[cross],
                flows.message[cross],
                voq[count:],
                flows.size_bytes[cross] * per_byte,
                flows.rate_bps[cross] // grain,
                len(queues),
                peaks[node],
                entered,
                series,
            )
            if rows <= len(series):
                break
            series = np.empty((rows, 3), np.int64)
        inject[reached[mine]] = entered
        kept = series[:rows]
        points.append(np.column_stack([np.full(rows, node), queues[kept[:, 0]], kept[:, 1:]]))
    every = np.concatenate(points)
    every = every[np.argsort(every[:, 2], kind="stable")]
    return NicAccount(
        injection=injection,
        peak_bytes=-(-peaks[:, 0] // per_byte),
        peak_ns=peaks[:, 1].copy(),
        transit_peak_bytes=-(-peaks[:, 2] // per_byte),
        reorder_peak_bytes=reorder_peaks(graph, fabric, timeline),
        inject_ns=inject[: len(timeline.ready_ns)],
        node=every[:, 0].copy(),
        dst=every[:, 1].copy(),
        t_ns=every[:, 2].copy(),
        bytes=-(-every[:, 3] // per_byte),
    )


def _parts(
    graph: TaskGraph, fabric: Fabric, timeline: Timeline, nic_buffer_bytes: int | None
) -> _Parts:
    """Divide messages larger than the buffer: its size comes in at once, and leaves last."""
    moved, start = timeline.transfers, _in_turn(fabric, timeline)
    sizes = graph.sizes_bytes(timeline.iterations)
    ready = timeline.ready_ns.copy()
    np.minimum.at(ready, moved.task, moved.start_ns)
    task = np.arange(len(ready))
    row = np.flatnonzero(moved.hop == 0)
    part, begins, sent = moved.task[row], start[row], moved.size_bytes[row]
    if nic_buffer_bytes is None or sizes.max(initial=0) <= nic_buffer_bytes:
        return _Parts(task, ready, sizes, row, part, begins, sent)
    order = np.lexsort((row, begins, part))
    row, part, begins, sent = row[order], part[order], begins[order], sent[order]
    before = np.cumsum(sent) - sent
    before -= before[np.searchsorted(part, part)]
    through = np.clip(sizes[part] - nic_buffer_bytes - before, 0, sent)
    first, last = np.flatnonzero(through), np.flatnonzero(sent > through)
    follow = begins + np.where(through > 0, wire_ns(fabric, moved.plane[row], through), 0)
    return _Parts(
        task=np.concatenate([task, part[first]]),
        ready_ns=np.concatenate([ready, begins[first]]),
        size_bytes=np.concatenate([np.minimum(sizes, nic_buffer_bytes), through[first]]),
        row=np.concatenate([row[last], row[first]]),
        part=np.concatenate([part[last], len(task) + np.arange(len(first))]),
        start_ns=np.concatenate([follow[last], begins[first]]),
        sent_bytes=np.concatenate([(sent - through)[last], through[first]]),
    )


def _flows(
    graph: TaskGraph, fabric: Fabric, timeline: Timeline, parts: _Parts, place: Int64s
) -> _Flows:
    """Everything that crosses a port; `place` maps parts of messages to their order at a node."""
    from scheduler.model._kernels_nic import ARRIVE, FORWARD, SEND

    moved = timeline.transfers
    target = graph.dst[moved.task % graph.tasks]
    groups = (
        (SEND, parts.row, moved.from_node),
        (FORWARD, np.flatnonzero(moved.hop > 0), moved.from_node),
        (ARRIVE, np.flatnonzero((moved.hop == 0) & (moved.to_node != target)), moved.to_node),
    )
    rows = np.concatenate([chosen for _, chosen, _ in groups])
    kind = np.concatenate([np.full(len(chosen), code, np.int64) for code, chosen, _ in groups])
    node = np.concatenate([owner[chosen] for _, chosen, owner in groups])
    start = _in_turn(fabric, timeline)[rows] + np.where(kind == ARRIVE, fabric.latency_ns, 0)
    start[: len(parts.row)] = parts.start_ns
    size, message = moved.size_bytes[rows], np.full(len(rows), NONE, np.int64)
    size[: len(parts.row)], message[: len(parts.row)] = parts.sent_bytes, place[parts.part]
    order = np.lexsort((rows, start, node))
    rows, kind = rows[order], kind[order]
    rates = np.asarray([plane.rate_bps for plane in fabric.planes], np.int64)
    return _Flows(
        node=node[order],
        kind=kind,
        start_ns=start[order],
        message=message[order],
        dst=target[rows],
        size_bytes=size[order],
        rate_bps=rates[moved.plane[rows]],
    )


def _in_turn(fabric: Fabric, timeline: Timeline) -> Int64s:
    """Start times such that no output sends two things at once, shape (transfers,).

    Those of an emulation are rounded to whole ns, so a transfer may seem to begin just before the
    one ahead of it has left; it would then be counted as served twice.
    """
    moved, circuits = timeline.transfers, timeline.circuits
    rows = np.flatnonzero(moved.circuit != NONE)
    start = moved.start_ns.copy()
    if not len(rows):
        return start
    plane, circuit = moved.plane[rows], moved.circuit[rows]
    base = np.cumsum([0, *(each.ports for each in fabric.planes)])
    owner = np.concatenate([np.asarray(each.node_of, np.int64) for each in fabric.planes])
    there, back = base[plane] + circuits.src_port[circuit], base[plane] + circuits.dst_port[circuit]
    output = np.where(owner[there] == moved.from_node[rows], there, back)
    order = np.lexsort((rows, moved.start_ns[rows], output))
    rows, output = rows[order], output[order]
    lasts = wire_ns(fabric, moved.plane[rows], moved.size_bytes[rows])
    before = np.cumsum(lasts) - lasts  # start - before never falls along an output
    first = np.searchsorted(output, output)
    before -= before[first]
    apart = int(start.max()) + int(lasts.sum()) + 1
    start[rows] = (
        np.maximum.accumulate(moved.start_ns[rows] - before + output * apart)
        - output * apart
        + before
    )
    return start
