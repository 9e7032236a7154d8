"""Simulating timed programs: their windows as arrays, the event loop, and the records."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from scheduler.dispatch import _kernels_columns as col
from scheduler.dispatch.layout import new_state
from scheduler.dispatch.records import circuits_of, new_lines, new_progress, standing_at
from scheduler.dispatch.shared import has_packet_planes, run_with_packets
from scheduler.dispatch.stalls import stalled
from scheduler.model.program import TimedProgram
from scheduler.model.taskgraph import csr
from scheduler.model.timeline import NONE, Timeline, Transfers
from topologies.errors import UsageError

if TYPE_CHECKING:
    from scheduler.dispatch._kernels_events import Progress
    from scheduler.dispatch._kernels_relays import Relays
    from scheduler.dispatch._kernels_timed import Queues
    from scheduler.dispatch._kernels_twohop import Outputs
    from scheduler.dispatch.layout import Layout
    from scheduler.model.taskgraph import Int64s

__all__ = ["Windows", "new_relays", "run_timed", "simulate_timed", "slot_windows"]


class Windows(NamedTuple):
    """When ports may send, a row per slot and connected port: shape (windows,) each.

    `on_ns` and `off_ns` count from the cycle's begin, guard excluded; `src_port`, `dst_port` are
    numbered over all planes.
    """

    src_port: Int64s
    dst_port: Int64s
    on_ns: Int64s
    off_ns: Int64s


def _lit_after(
    program: TimedProgram, wanted: Int64s, starts: Int64s, delay_ns: int, *, all_stop: bool
) -> Int64s:
    """Return when each slot's circuits are lit, ns after its start, shape (slots, ports).

    `wanted` has shape (slots, ports), `starts` (slots + 1,). Without `partial` it is the delay;
    with it, what remains of the delay since the circuit was made, 0 for one that goes on for ever.
    """
    lit = np.full(wanted.shape, delay_ns, np.int64)
    if not program.partial:
        return lit
    changed = wanted != np.roll(wanted, 1, axis=0)
    if all_stop:
        changed |= changed.any(axis=1, keepdims=True)
    lit[:, ~changed.any(axis=0)] = 0
    lengths = np.diff(starts)
    for _ in range(2):  # twice around the cycle: a circuit may come from before its begin
        for slot in range(len(wanted)):
            rest = np.maximum(lit[slot - 1] - lengths[slot - 1], 0)
            lit[slot] = np.where(changed[slot], delay_ns, rest)
    return lit


def slot_windows(layout: Layout, guard_ns: int) -> Windows:
    """Return every window of the cycle in which at least one byte can be sent."""
    program = layout.program
    assert isinstance(program, TimedProgram)
    parts = [np.zeros((4, 0), np.int64)]
    for index, plane in enumerate(layout.fabric.planes):
        slots = program.planes[index]
        if not slots:
            continue
        wanted = np.array([slot.dst_ports for slot in slots], np.int64)
        offsets = [slot.offset_ns for slot in slots]
        starts = np.array([*offsets, offsets[0] + program.period_ns], np.int64)
        lit = _lit_after(program, wanted, starts, plane.delay_ns, all_stop=plane.all_stop)
        slot, port = np.nonzero(wanted >= 0)
        base = layout.planes[index, col.PLANE_BASE]
        on_ns, off_ns = starts[slot] + lit[slot, port], starts[slot + 1] - guard_ns
        keep = off_ns - on_ns >= plane.transfer_ns(1)
        columns = [base + port, base + wanted[slot, port], on_ns, off_ns]
        parts.append(np.array(columns, np.int64)[:, keep])
    return Windows(*np.concatenate(parts, axis=1))


def _queues(layout: Layout, guard_ns: int) -> Queues:
    """Group the windows by the pairs of nodes that messages need."""
    from scheduler.dispatch import _kernels_timed as timed

    graph, nodes = layout.graph, layout.fabric.nodes
    pairs, inverse = np.unique(
        graph.src[graph.messages] * nodes + graph.dst[graph.messages], return_inverse=True
    )
    of = np.full(graph.tasks, NONE, np.int64)
    of[graph.messages] = inverse
    windows = slot_windows(layout, guard_ns)
    owner = layout.ports[:, col.PORT_NODE]
    pair = owner[windows.src_port] * nodes + owner[windows.dst_port]
    queue = np.searchsorted(pairs, pair)
    used = queue < len(pairs)
    used[used] = pairs[queue[used]] == pair[used]
    queue = queue[used]
    lanes, table, owners = _lanes(layout, queue, Windows(*(c[used] for c in windows)))
    return timed.Queues(
        of=of,
        lane_ptr=csr(owners, owners, len(pairs))[0],
        lanes=lanes,
        windows=table,
        cycle=layout.rule[[col.R_PERIOD, col.R_PHASE]],
    )


def _lanes(layout: Layout, owner: Int64s, windows: Windows) -> tuple[Int64s, Int64s, Int64s]:
    """Group windows by owner and port, in time: lanes, table of windows, owner of each lane."""
    from scheduler.dispatch import _kernels_timed as timed

    order = np.lexsort((windows.on_ns, windows.src_port, owner))
    owner, port = owner[order], windows.src_port[order]
    first = np.flatnonzero(np.diff(owner, prepend=-1) | np.diff(port, prepend=-1))
    lanes = np.zeros((len(first), timed.LANE_COLUMNS), np.int64)
    plane = layout.ports[port[first], col.PORT_PLANE]
    lanes[:, timed.LANE_FIRST] = first
    lanes[:, timed.LANE_COUNT] = np.diff(np.append(first, len(owner)))
    lanes[:, timed.LANE_PORT] = port[first]
    lanes[:, timed.LANE_RATE] = layout.planes[plane, col.PLANE_RATE]
    lanes[:, timed.LANE_COLD] = layout.rule[col.R_CONTROL] + layout.planes[plane, col.PLANE_DELAY]
    lanes[:, timed.LANE_NEXT] = NONE
    table = np.column_stack([windows.on_ns, windows.off_ns, windows.dst_port])[order]
    return lanes, table, owner[first]


def _two_hops(layout: Layout, guard_ns: int) -> tuple[Queues, Outputs, Relays]:
    """Make the lanes and the empty queues of two-hop routing: a lane per port."""
    from scheduler.dispatch import _kernels_timed as timed
    from scheduler.dispatch._kernels_twohop import Outputs

    total = len(layout.work.kind)
    port_node = np.ascontiguousarray(layout.ports[:, col.PORT_NODE])
    windows = slot_windows(layout, guard_ns)
    apart = port_node[windows.src_port] != port_node[windows.dst_port]
    windows = Windows(*(column[apart] for column in windows))
    lanes, table, lane_node = _lanes(layout, port_node[windows.src_port], windows)
    queues = timed.Queues(
        of=np.zeros(0, np.int64),
        lane_ptr=np.zeros(1, np.int64),
        lanes=lanes,
        windows=table,
        cycle=layout.rule[[col.R_PERIOD, col.R_PHASE]],
    )
    pointers, listed = csr(lane_node, np.arange(len(lanes)), layout.fabric.nodes)
    outputs = Outputs(
        moved=np.zeros(total, np.int64),
        own=np.zeros((0 if layout.nic_buffer_bytes is None else total, 2), np.int64),
        node_lane_ptr=pointers,
        node_lane=listed,
        lane_node=lane_node,
        port_node=port_node,
    )
    return queues, outputs, new_relays(layout, guard_ns, chunks=64)


def new_relays(layout: Layout, guard_ns: int, *, chunks: int) -> Relays:
    """Make the empty queues of two-hop routing, with room for so many chunks at once."""
    from scheduler.dispatch import _kernels_relays as relays

    nodes, owner = layout.fabric.nodes, layout.ports[:, col.PORT_NODE]
    windows = slot_windows(layout, guard_ns)
    near, far = owner[windows.src_port], owner[windows.dst_port]
    joined = np.zeros((nodes, nodes), np.int64)
    joined[near[near != far], far[near != far]] = 1
    pair = np.zeros((nodes * nodes, relays.PAIR_COLUMNS), np.int64)
    pair[:, relays.HEAD : relays.TAIL] = NONE
    pair[:, relays.JOINED_AT_TIMES] = joined.ravel()
    pair[:, relays.REACHED] = ((joined + joined @ joined) > 0).ravel()
    rows = np.full((chunks, relays.CHUNK_COLUMNS), NONE, np.int64)
    rows[:-1, relays.CH_NEXT] = np.arange(1, chunks)
    return relays.Relays(
        pair=pair,
        node=np.zeros((nodes, relays.NODE_COLUMNS), np.int64),
        chunks=rows,
        free=np.zeros(1, np.int64),
    )


def run_timed(
    layout: Layout, *, quantum_bytes: int, guard_ns: int | None
) -> tuple[Progress, Int64s]:
    """Run a timed program: what became of its tasks, and the pieces that were sent."""
    from scheduler.dispatch import _kernels_timed as timed

    program = layout.program
    assert isinstance(program, TimedProgram)
    guard = program.guard_ns if guard_ns is None else guard_ns
    if quantum_bytes < 0 or guard < 0:
        what = f"quantum_bytes={quantum_bytes}, guard_ns={guard}"
        raise UsageError(what, "simulation", "neither can be negative", "use 0 or more")
    progress = new_progress(layout)
    latency_ns = layout.fabric.latency_ns
    if program.routing == "direct":
        queues = _queues(layout, guard)
        if has_packet_planes(layout):
            pieces, size = run_with_packets(layout, progress, queues)
        else:
            pieces, size = timed.run_direct(
                layout.work, progress, queues, latency_ns, quantum_bytes
            )
    else:
        from scheduler.dispatch._kernels_twohop import run_two_hops

        queues, outputs, relays = _two_hops(layout, guard)
        admission = program.routing == "rotorlb"
        pieces, size = run_two_hops(
            layout.work, progress, queues, outputs, relays, latency_ns, quantum_bytes, admission
        )
    if progress.tally[-1] < len(layout.work.kind):
        raise stalled(layout, progress.times, progress.admitted)
    return progress, pieces[:size]


def _log(layout: Layout, until_ns: int) -> Int64s:
    """Return the log of the circuits that are up by `until_ns`; later changes are not in it."""
    from scheduler.dispatch import _kernels_grants as grants
    from scheduler.dispatch._kernels_timed import log_circuits

    most = int(layout.planes[:, col.PLANE_SLOTS].max())
    state = new_state(layout, horizon_ns=int(layout.rule[col.R_PERIOD]) // max(most, 1))
    lines, log, _ = new_lines(layout)
    log, size = log_circuits(state, lines, log, until_ns)
    log = log[:size][log[:size, grants.LOG_UP] <= until_ns]
    log[log[:, grants.LOG_DOWN] > until_ns, grants.LOG_DOWN] = NONE
    return log


def simulate_timed(layout: Layout, *, quantum_bytes: int, guard_ns: int | None) -> Timeline:
    """Run a timed program and keep records."""
    from scheduler.dispatch import _kernels_timed as timed

    assert isinstance(layout.program, TimedProgram)
    progress, pieces = run_timed(layout, quantum_bytes=quantum_bytes, guard_ns=guard_ns)
    ready, start, end = progress.times
    until_ns = int(end.max())
    circuits, _ = circuits_of(_log(layout, until_ns))
    order = np.lexsort((pieces[:, timed.PIECE_PORT], pieces[:, timed.PIECE_TASK]))
    order = order[np.argsort(pieces[order, timed.PIECE_START], kind="stable")]
    task, port, size_bytes, start_ns, last_ns, hop, to_node = np.ascontiguousarray(pieces[order].T)
    plane = layout.ports[port, col.PORT_PLANE]
    if layout.program.routing == "direct":
        hop, to_node = np.zeros(len(task), np.int64), layout.work.dst[task]
    optical = layout.planes[plane, col.PLANE_OPTICAL] != 0
    circuit = np.full(len(task), NONE, np.int64)
    circuit[optical] = standing_at(layout, circuits, port[optical], start_ns[optical])
    transfers = Transfers(
        task=task,
        hop=hop,
        from_node=layout.ports[port, col.PORT_NODE],
        to_node=to_node,
        plane=plane,
        circuit=circuit,
        size_bytes=size_bytes,
        start_ns=start_ns,
        end_ns=last_ns + layout.fabric.latency_ns,
    )
    return Timeline(
        iterations=layout.iterations,
        ready_ns=ready,
        start_ns=start,
        end_ns=end,
        transfers=transfers,
        circuits=circuits,
    )
