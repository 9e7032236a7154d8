"""What an output is: its queues, the circuit it leaves by, and when its frame's last bit leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.dispatch._kernels_columns import PLANE_BASE, PLANE_RATE, R_KIND, TIMED
from scheduler.dispatch._kernels_rows import wire_ns
from scheduler.kernel import lean_kernel
from testbed.emulator._kernels_engine_columns import (
    BEGIN,
    CIRCUIT,
    DIRECT,
    DUE,
    FRAME_END,
    FRAME_HOP,
    FRAME_TO,
    FREE,
    LENGTH,
    N_NODES,
    N_ROUTING,
    N_ZERO,
    NEXT,
    NODE,
    NONE,
    PLANE,
    PORT,
    QUEUE,
    QUEUE_LAST,
    READY,
    ROW,
    SENT,
    SINCE,
    T_BYTES,
    T_CIRCUIT,
    T_HELD,
    T_HOP,
    T_START,
    T_TASK,
    USES,
    X_DST,
    X_SRC,
    Engine,
    Wire,
)
from testbed.emulator._kernels_engine_faults import rate_at
from testbed.emulator._kernels_libc import monotonic_ns

if TYPE_CHECKING:
    from scheduler.dispatch._kernels_columns import Core

__all__ = [
    "begin_frame",
    "continues",
    "enqueue",
    "far_of",
    "goes_before",
    "hold",
    "join_voq",
    "queue_of",
    "read_clock",
]


@lean_kernel
def read_clock(engine: Engine, wire: Wire) -> int:
    """Return the time since time zero."""
    return int(monotonic_ns(wire.timespec) - engine.numbers[N_ZERO])


@lean_kernel
def far_of(engine: Engine, core: Core, port: int, circuit: int) -> int:
    """Return the port at the other end of `circuit`; on a duplex plane it is read both ways."""
    base, line = core.planes[engine.ports[port, PLANE], PLANE_BASE], engine.circuits[circuit]
    far = base + line[X_DST]
    return int(base + line[X_SRC] if far == port else far)


@lean_kernel
def goes_before(engine: Engine, message: int, other: int) -> bool:
    """Say whether `message` was ready before `other`, or at the same time and has the lower id.

    Where NICs let messages in, it is when they did that counts.
    """
    tasks = engine.tasks
    column = READY if tasks[message, SINCE] == NONE else SINCE
    ready, others = tasks[message, column], tasks[other, column]
    return bool(ready < others or (ready == others and message < other))


@lean_kernel
def join_voq(engine: Engine, message: int, queue: int) -> None:
    """Put a ready message into its virtual output queue, which is ordered by (ready, id)."""
    tasks, ends = engine.tasks, engine.voq[queue]
    before, after = NONE, ends[0]
    if after != NONE and not goes_before(engine, message, ends[1]):
        before, after = ends[1], NONE  # almost always: it is the latest
    while after != NONE and (tasks[after, SENT] > 0 or not goes_before(engine, message, after)):
        before, after = after, tasks[after, NEXT]
    tasks[message, NEXT] = after
    if before == NONE:
        ends[0] = message
    else:
        tasks[before, NEXT] = message
    if after == NONE:
        ends[1] = message


@lean_kernel
def queue_of(engine: Engine, core: Core, port: int, circuit: int) -> int:
    """Return the virtual output queue that `port` serves by `circuit`."""
    near, far = engine.ports[port, NODE], engine.ports[far_of(engine, core, port, circuit), NODE]
    return int(near * engine.numbers[N_NODES] + far)


@lean_kernel
def enqueue(engine: Engine, message: int, port: int, circuit: int) -> None:
    """Put a granted message behind the others of its output."""
    engine.tasks[message, PORT] = port
    engine.tasks[message, CIRCUIT] = circuit
    line = engine.ports[port]
    if line[QUEUE] == NONE:
        line[QUEUE] = message
    else:
        engine.tasks[line[QUEUE_LAST], NEXT] = message
    line[QUEUE_LAST] = message


@lean_kernel
def continues(engine: Engine, core: Core, port: int, message: int) -> bool:
    """Say whether the frame in service goes on with the output's last transfer.

    A message that was granted its circuit stays one transfer whatever holds it up; a queue's goes
    on without a gap or is another. What passes a relay is a transfer frame by frame: each is there
    and gone at its own time.
    """
    line = engine.ports[port]
    if line[ROW] == NONE or (core.rule[R_KIND] == TIMED and line[BEGIN] != line[FREE]):
        return False
    if engine.numbers[N_ROUTING] != DIRECT and passes_relay(engine, core, port):
        return False
    row = engine.transfers[line[ROW]]
    same = row[T_TASK] == message and row[T_CIRCUIT] == line[USES]
    return bool(same and row[T_HOP] == 0)


@lean_kernel
def passes_relay(engine: Engine, core: Core, port: int) -> bool:
    """Say whether the frame in service comes from a relay or goes to one."""
    line = engine.ports[port]
    far = far_of(engine, core, port, line[USES])
    return bool(line[FRAME_HOP] != 0 or engine.ports[far, NODE] != line[FRAME_TO])


@lean_kernel
def begin_frame(engine: Engine, core: Core, port: int, message: int, length: int) -> None:
    """Fix when the last bit of the frame in service leaves; `message` is NONE for one sent again.

    The frames of a transfer end where its bytes do at line rate, so that what is rounded does not
    add up, but for what held them up.
    """
    line = engine.ports[port]
    rate_bps = core.planes[line[PLANE], PLANE_RATE]
    if continues(engine, core, port, message):
        row = engine.transfers[line[ROW]]
        waited_ns = row[T_HELD] + line[BEGIN] - line[FREE]
        end_ns = row[T_START] + waited_ns + wire_ns(row[T_BYTES] + length, rate_bps)
    else:
        end_ns = line[BEGIN] + wire_ns(length, rate_bps)
    now_bps = rate_at(engine, line[PLANE], rate_bps, line[BEGIN])
    if now_bps != rate_bps:
        end_ns += wire_ns(length, now_bps) - wire_ns(length, rate_bps)
    line[FRAME_END] = end_ns
    line[LENGTH] = length
    line[DUE] = end_ns


@lean_kernel
def hold(engine: Engine, core: Core, port: int) -> None:
    """Note how far behind line rate the output's latest transfer is."""
    line = engine.ports[port]
    row = engine.transfers[line[ROW]]
    rate_bps = core.planes[line[PLANE], PLANE_RATE]
    row[T_HELD] = line[FREE] - row[T_START] - wire_ns(row[T_BYTES], rate_bps)
