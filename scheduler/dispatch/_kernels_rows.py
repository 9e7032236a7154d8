"""Writing rows of `actions`, and what the parts of the dispatcher share."""

from __future__ import annotations

from scheduler.dispatch._kernels_columns import (
    A_AT,
    A_COUNT,
    A_DST,
    A_FIRST,
    A_OP,
    A_PLANE,
    A_SRC,
    C_GRANTED,
    C_ROWS,
    DROP,
    KEEP,
    MAKE,
    PLANE_BASE,
    PLANE_DELAY,
    PLANE_DUPLEX,
    R_CONTROL,
    R_PORTS,
    SIDE_PEER,
    SIDE_UP,
    Core,
)
from scheduler.kernel import lean_kernel

__all__ = ["connect", "grant_row", "wire_ns", "write_row"]


@lean_kernel
def write_row(core: Core, op: int, plane: int, src_port: int, dst_port: int, at_ns: int) -> None:
    """Append a row without grants to `actions`."""
    row = core.actions[core.cursor[C_ROWS]]
    row[A_OP] = op
    row[A_PLANE] = plane
    row[A_SRC] = src_port
    row[A_DST] = dst_port
    row[A_FIRST] = core.cursor[C_GRANTED]
    row[A_COUNT] = 0
    row[A_AT] = at_ns
    core.cursor[C_ROWS] += 1


@lean_kernel
def grant_row(core: Core, plane: int, src_port: int, dst_port: int, at_ns: int) -> int:
    """Return the row that grants to (src_port, dst_port): the last one if it fits, else a KEEP."""
    last = core.cursor[C_ROWS] - 1
    if last >= 0:
        row = core.actions[last]
        same = row[A_PLANE] == plane and row[A_SRC] == src_port and row[A_DST] == dst_port
        if same and row[A_OP] != DROP:
            return int(last)
    write_row(core, KEEP, plane, src_port, dst_port, at_ns)
    return int(last + 1)


@lean_kernel
def release(core: Core, plane: int, side: int, at_ns: int) -> None:
    """Take the light from `side` and its far end, whose output is told unless it is `side`'s own.

    Both sides of the displaced circuit are left without a peer.
    """
    far = core.sides[side, SIDE_PEER]
    if far < 0:
        return
    ports, base = core.rule[R_PORTS], core.planes[plane, PLANE_BASE]
    if far < ports:
        write_row(core, DROP, plane, far - base, side % ports - base, at_ns)
    core.sides[far, SIDE_PEER] = -1
    core.sides[side, SIDE_PEER] = -1


@lean_kernel
def connect(core: Core, plane: int, src_port: int, dst_port: int, at_ns: int) -> None:
    """Make a circuit: DROP rows for the outputs that lose their light by it, then a MAKE row."""
    ports, row = core.rule[R_PORTS], core.planes[plane]
    out_side = row[PLANE_BASE] + src_port
    in_side = row[PLANE_BASE] + dst_port
    if row[PLANE_DUPLEX] == 0:
        in_side += ports
    release(core, plane, out_side, at_ns)
    release(core, plane, in_side, at_ns)
    core.sides[out_side, SIDE_PEER] = in_side
    core.sides[in_side, SIDE_PEER] = out_side
    up_ns = at_ns + core.rule[R_CONTROL] + row[PLANE_DELAY]
    core.sides[out_side, SIDE_UP] = up_ns
    core.sides[in_side, SIDE_UP] = up_ns
    write_row(core, MAKE, plane, src_port, dst_port, at_ns)


@lean_kernel
def wire_ns(size_bytes: int, rate_bps: int) -> int:
    """Return how long so many bytes take at a rate, rounded up to a whole ns.

    A long division in base 1000, so nothing overflows below 2**53 bit/s and 2**60 bytes.
    """
    time, rest = divmod(size_bytes * 8, rate_bps)
    for _ in range(3):
        digit, rest = divmod(rest * 1000, rate_bps)
        time = time * 1000 + digit
    return time + (rest > 0)
