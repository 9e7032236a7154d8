"""What can be seen of an execution from outside while it runs: circuits and queues, read only."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from scheduler.model.taskgraph import MESSAGE
from testbed.emulator import _kernels_engine_columns as e

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scheduler.model.taskgraph import Int64s
    from testbed.emulator.crossbar import CrossbarTables

__all__ = ["queued_bytes", "standing_circuits"]


def _newest(rows: Int64s, now_ns: int) -> Int64s:
    """Return, per port, the value of the latest entry whose time has come; 0 without one."""
    times, values = rows[:, 0::2], rows[:, 1::2]
    come = np.where(times <= now_ns, times, -1)
    place = come.argmax(axis=1)[:, np.newaxis]
    value = np.take_along_axis(values, place, axis=1)[:, 0]
    return np.where(np.take_along_axis(come, place, axis=1)[:, 0] < 0, 0, value)


def standing_circuits(tables: CrossbarTables, base: Sequence[int], now_ns: int) -> Int64s:
    """Return where every port's light arrives now, int64[ports]: a global port, -1 for nowhere.

    `base` holds each plane's first port and the number of ports. A circuit stands when both its
    ends say so at CLOCK_MONOTONIC `now_ns`, as for the frames that enter it.
    """
    leaves_by, owner = _newest(tables.table, now_ns), _newest(tables.owner, now_ns)
    ports = np.arange(len(leaves_by))
    found = np.full(len(ports), -1, np.int64)
    for first, end in pairwise(base):
        inside = slice(first, end)
        same = leaves_by[inside, np.newaxis] == tables.ifindex[np.newaxis, inside]
        same &= leaves_by[inside, np.newaxis] > 0
        far = first + same.argmax(axis=1)
        stands = same.any(axis=1) & (owner[far] == ports[inside] + 1)
        found[inside] = np.where(stands, far, -1)
    return found


def queued_bytes(tables: e.Engine, nodes: int) -> Int64s:
    """Return the virtual bytes in each node's network card, int64[nodes].

    A message is in the card of its source from when it is ready until its last byte is sent.
    """
    tasks = tables.tasks
    waiting = (tasks[:, e.KIND] == MESSAGE) & (tasks[:, e.MISSING] == 0)
    left = tasks[waiting, e.SIZE] - tasks[waiting, e.SENT]
    sums = np.bincount(tasks[waiting, e.SRC], weights=left, minlength=nodes)
    return np.rint(sums).astype(np.int64)
