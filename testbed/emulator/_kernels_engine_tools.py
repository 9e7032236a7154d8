"""Small parts of the engine: the timer heap, distributions, and what a frame's headers hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scheduler.kernel import lean_kernel
from testbed.emulator._kernels_engine_columns import (
    BUCKETS,
    COUNT,
    DUE,
    FULL,
    FULL_TABLE,
    HISTOGRAM_NS,
    MOST,
    NEVER,
    OUTCOME,
    SUM,
    TABLE_TIMERS,
    TIMERS,
    W_ARG,
    W_TIME,
    W_WHAT,
    Engine,
)
from testbed.emulator.frames import (
    BTH_BYTES,
    FIRST_QP,
    SEND_FIRST,
    SEND_LAST,
    SEND_MIDDLE,
    SEND_ONLY,
)

if TYPE_CHECKING:
    import numpy as np

    from scheduler.model.taskgraph import Int64s

    Octets = np.ndarray[Any, np.dtype[np.uint8]]


@lean_kernel
def observe(engine: Engine, quantity: int, value_ns: int) -> None:
    """Count one sample of a distribution; what is early counts as exact."""
    value_ns = max(value_ns, 0)
    engine.histograms[quantity, min(value_ns // HISTOGRAM_NS, BUCKETS - 1)] += 1
    engine.extremes[quantity, COUNT] += 1
    engine.extremes[quantity, SUM] += value_ns
    engine.extremes[quantity, MOST] = max(engine.extremes[quantity, MOST], value_ns)


@lean_kernel
def fill_up(engine: Engine, table: int) -> None:
    """Stop the run: `table` has no room left."""
    engine.counters[OUTCOME] = FULL
    engine.counters[FULL_TABLE] = table


@lean_kernel
def next_timer_ns(engine: Engine) -> int:
    """Return when the earliest timer is due."""
    if engine.counters[TIMERS] == 0:
        return NEVER
    return int(engine.timers[0, W_TIME])


@lean_kernel
def set_timer(engine: Engine, time_ns: int, what: int, arg: int) -> None:
    """Add a timer; equal times go by (what, arg)."""
    heap, at = engine.timers, engine.counters[TIMERS]
    if at == len(heap):
        fill_up(engine, TABLE_TIMERS)
        return
    engine.counters[TIMERS] = at + 1
    while at > 0:
        above = (at - 1) // 2
        if not earlier(time_ns, what, arg, heap[above]):
            break
        move_timer(heap[above], heap[at])
        at = above
    heap[at, W_TIME] = time_ns
    heap[at, W_WHAT] = what
    heap[at, W_ARG] = arg


@lean_kernel
def move_timer(source: Int64s, target: Int64s) -> None:
    """Copy a row of the heap, field by field: a slice would be copied by way of the heap."""
    target[W_TIME] = source[W_TIME]
    target[W_WHAT] = source[W_WHAT]
    target[W_ARG] = source[W_ARG]


@lean_kernel
def drop_timer(engine: Engine) -> None:
    """Remove the earliest timer."""
    heap, count = engine.timers, engine.counters[TIMERS] - 1
    engine.counters[TIMERS] = count
    time_ns, what, arg = heap[count, W_TIME], heap[count, W_WHAT], heap[count, W_ARG]
    at = 0
    while True:
        below = 2 * at + 1
        if below >= count:
            break
        if below + 1 < count:
            right = heap[below + 1]
            if earlier(right[W_TIME], right[W_WHAT], right[W_ARG], heap[below]):
                below += 1
        least = heap[below]
        if not earlier(least[W_TIME], least[W_WHAT], least[W_ARG], heap[count]):
            break
        move_timer(least, heap[at])
        at = below
    heap[at, W_TIME] = time_ns
    heap[at, W_WHAT] = what
    heap[at, W_ARG] = arg


@lean_kernel
def earlier(time_ns: int, what: int, arg: int, than: Int64s) -> bool:
    """Say whether a timer goes before the one in row `than`."""
    if time_ns != than[W_TIME]:
        return bool(time_ns < than[W_TIME])
    if what != than[W_WHAT]:
        return bool(what < than[W_WHAT])
    return bool(arg < than[W_ARG])


@lean_kernel
def put(buffer: Octets, at: int, width: int, value: int) -> None:
    """Write `value` big-endian into `width` bytes."""
    for k in range(width):
        buffer[at + k] = (value >> (8 * (width - 1 - k))) & 0xFF


@lean_kernel
def take(buffer: Octets, at: int, width: int) -> int:
    """Read `width` bytes big-endian."""
    value = 0
    for k in range(width):
        value = value << 8 | int(buffer[at + k])
    return value


@lean_kernel
def write_headers(
    buffer: Octets,
    port: int,
    psn: int,
    iteration: int,
    message: int,
    offset: int,
    length: int,
    size: int,
    serial: int,
) -> None:
    """Write BTH and message header, as `frames.pack` does, of one frame of a `size`-byte message.

    The partition key and the zeros are in `buffer` already.
    """
    last = offset + length == size
    if offset == 0:
        buffer[0] = SEND_ONLY if last else SEND_FIRST
    else:
        buffer[0] = SEND_LAST if last else SEND_MIDDLE
    put(buffer, 5, 3, port + FIRST_QP)
    put(buffer, 9, 3, psn)
    put(buffer, BTH_BYTES, 4, iteration)
    put(buffer, BTH_BYTES + 4, 4, message)
    put(buffer, BTH_BYTES + 8, 8, offset)
    put(buffer, BTH_BYTES + 16, 8, length)
    put(buffer, BTH_BYTES + 24, 8, serial)


@lean_kernel
def most_urgent(engine: Engine) -> int:
    """Return the output that should be looked at first."""
    port = 0
    for candidate in range(1, len(engine.ports)):
        if engine.ports[candidate, DUE] < engine.ports[port, DUE]:
            port = candidate
    return port
