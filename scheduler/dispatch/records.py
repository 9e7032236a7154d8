"""The memory a simulation begins with, and the circuits it leaves behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scheduler.dispatch import _kernels_columns as col
from scheduler.model.timeline import NONE, Circuits

if TYPE_CHECKING:
    from scheduler.dispatch._kernels_events import Progress
    from scheduler.dispatch._kernels_grants import Lines
    from scheduler.dispatch.layout import Layout
    from scheduler.model.taskgraph import Int64s

__all__ = ["circuits_of", "new_lines", "new_progress", "standing_at"]


def new_progress(layout: Layout) -> Progress:
    """Make the memory of an execution that has not begun."""
    from scheduler.dispatch import _kernels_events as events

    total, buffer_bytes = len(layout.work.kind), layout.nic_buffer_bytes
    times = np.full((3, total), NONE, np.int64)
    finite = buffer_bytes is not None
    node = np.full((layout.fabric.nodes if finite else 0, events.ROOM_COLUMNS), NONE, np.int64)
    node[:, events.ROOM_FREE] = buffer_bytes or 0
    return events.Progress(
        times=times,
        missing=layout.work.indegree.copy(),
        fresh=np.empty(total, np.int64),
        stack=np.empty(total, np.int64),
        heap=np.empty(((5 if finite else 3) * total + 1, 2), np.int64),
        tally=np.zeros(events.COUNTS, np.int64),
        admitted=np.full(total, NONE, np.int64) if finite else times[events.READY],
        room=events.Room(
            size=np.array([buffer_bytes or 0], np.int64),
            node=node,
            after=np.empty(total if finite else 0, np.int64),
        ),
    )


def new_lines(layout: Layout) -> tuple[Lines, Int64s, int]:
    """Make empty outputs, and a log that holds the initial circuits: lines, log, its length."""
    from scheduler.dispatch import _kernels_grants as grants

    port = np.full((len(layout.ports), grants.PORT_LINES), -1, np.int64)
    port[:, [grants.P_FREE, grants.P_UP, grants.P_SENDING, grants.P_TAKEN]] = 0
    standing = getattr(layout.program, "initial_circuits", ())
    size = len(standing)
    log = np.full((size + 64, grants.LOG_COLUMNS), NONE, np.int64)
    for row, (plane, src, dst) in enumerate(standing):
        log[row, : grants.LOG_DST + 1] = plane, src, dst
        log[row, grants.LOG_UP] = 0
        base = layout.planes[plane, col.PLANE_BASE]
        port[base + src, grants.P_CIRCUIT] = row
        duplex = layout.planes[plane, col.PLANE_DUPLEX]
        port[base + dst, grants.P_CIRCUIT if duplex else grants.P_INTO] = row
    total = len(layout.work.kind)
    lines = grants.Lines(
        port=port,
        after=np.empty(total, np.int64),
        port_of=np.full(total, NONE, np.int64),
        circuit_of=np.full(total, NONE, np.int64),
    )
    return lines, log, size


def circuits_of(log: Int64s) -> tuple[Circuits, Int64s]:
    """Return the circuits of a log that came up, by up_ns, and each log row's place among them."""
    from scheduler.dispatch import _kernels_grants as grants

    up, down = log[:, grants.LOG_UP], log[:, grants.LOG_DOWN]
    stood = np.flatnonzero((down == NONE) | (down >= up))
    order = stood[np.lexsort((stood, up[stood]))]
    place = np.full(len(log), NONE, np.int64)
    place[order] = np.arange(len(order))
    rows = np.ascontiguousarray(log[order].T)
    circuits = Circuits(
        plane=rows[grants.LOG_PLANE],
        src_port=rows[grants.LOG_SRC],
        dst_port=rows[grants.LOG_DST],
        request_ns=rows[grants.LOG_REQUEST],
        dark_ns=rows[grants.LOG_DARK],
        up_ns=rows[grants.LOG_UP],
        down_ns=rows[grants.LOG_DOWN],
        planned_up_ns=np.full(len(order), NONE, np.int64),
        fault=np.zeros(len(order), np.int64),
    )
    return circuits, place


def standing_at(layout: Layout, circuits: Circuits, port: Int64s, time_ns: Int64s) -> Int64s:
    """Return the circuit that each output (numbered over all planes) has at each time.

    It is the one that came up last at that output. Every output asked for has one.
    """
    base, total = layout.planes[circuits.plane, col.PLANE_BASE], len(circuits.plane)
    rows, output = np.arange(total), base + circuits.src_port
    back = layout.planes[circuits.plane, col.PLANE_DUPLEX] != 0
    rows = np.concatenate([rows, rows[back]])
    output = np.concatenate([output, (base + circuits.dst_port)[back]])
    span = int(max(circuits.up_ns.max(initial=0), time_ns.max(initial=0))) + 1
    keys = output * span + circuits.up_ns[rows]
    order = np.argsort(keys, kind="stable")
    found = np.searchsorted(keys[order], port * span + time_ns, side="right") - 1
    at: Int64s = rows[order][found]
    return at
