"""How a circuit is written into the crossbar: the one place that knows, for the engine and tests.

All functions take `CrossbarTables` and global port numbers, checked by the caller. Times are
CLOCK_MONOTONIC in ns. A frame sees the row before or after a write, never half of it: the value
goes first, the time after it, as a release store, always into the oldest entry, which no longer
holds. What a row held from that time on is cancelled afterwards.

One request is `darken_output(src)`, `darken_input(dst)` and `light(src, dst)`; per row at most
`DEPTH` - 2 entries may lie ahead, so that the entry which holds now is never the oldest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scheduler.kernel import kernel, register_warm_up
from testbed.emulator._kernels_libc import store_release_i64
from testbed.emulator.crossbar import NEVER, CrossbarTables
from testbed.emulator.crossbar_program import DEPTH

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["darken_input", "darken_output", "light", "put"]


@kernel
def put(rows: NDArray[np.int64], port: int, at_ns: int, value: int) -> None:
    """Let the row of `port` say `value` from `at_ns` on, whatever it was to say later."""
    oldest = 0
    for entry in range(DEPTH):
        t_ns = rows[port, 2 * entry]
        if t_ns == NEVER:
            oldest = entry
            break
        if t_ns < rows[port, 2 * oldest]:
            oldest = entry
    rows[port, 2 * oldest + 1] = value
    store_release_i64(rows[port, 2 * oldest :].ctypes.data, at_ns)
    for entry in range(DEPTH):
        if entry != oldest and at_ns <= rows[port, 2 * entry] < NEVER:
            store_release_i64(rows[port, 2 * entry :].ctypes.data, NEVER)


@kernel
def darken_output(tables: CrossbarTables, src_port: int, at_ns: int) -> None:
    """From `at_ns` on, drop what enters the switch from the output of `src_port`."""
    put(tables.table, src_port, at_ns, 0)


@kernel
def darken_input(tables: CrossbarTables, dst_port: int, at_ns: int) -> None:
    """From `at_ns` on, let nothing leave the switch to the input of `dst_port`."""
    put(tables.owner, dst_port, at_ns, 0)


@kernel
def light(tables: CrossbarTables, src_port: int, dst_port: int, up_ns: int) -> None:
    """From `up_ns` on, join the output of `src_port` to the input of `dst_port`.

    The receiving side goes first: a late write is dark for a moment, never a conflict.
    """
    put(tables.owner, dst_port, up_ns, src_port + 1)
    put(tables.table, src_port, up_ns, tables.ifindex[dst_port])


@register_warm_up
def _warm_up() -> None:
    rows: NDArray[Any] = np.full((2, 1, 2 * DEPTH), NEVER, np.int64)
    tables = CrossbarTables(rows[0], rows[1], np.ones(1, np.int64))
    darken_output(tables, 0, 0)
    darken_input(tables, 0, 0)
    light(tables, 0, 0, 1)
