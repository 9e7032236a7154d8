"""The NICs: which frame each output sends next and when, and sending it.

An output takes the next frame into service and sends it when its last bit would have left. Ordered
and reactive programs grant messages to outputs, which send them in that order; under a timed
program the outputs of a node draw on its virtual output queues while their circuit stands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from scheduler.dispatch._kernels_columns import (
    EV_STARTED,
    PLANE_BASE,
    PLANE_RATE,
    R_KIND,
    R_LOOKAHEAD,
    R_TASKS,
    TIMED,
)
from scheduler.dispatch._kernels_rows import wire_ns
from scheduler.kernel import lean_kernel
from testbed.emulator._kernels_engine_columns import (
    AGAIN,
    BEGIN,
    CIRCUIT,
    DUE,
    ERRNO,
    F_AGAIN,
    F_DOOMED,
    F_FAR,
    F_LAST_BIT,
    F_LENGTH,
    F_OFFSET,
    F_PORT,
    F_PSN,
    F_SENT,
    F_SERIAL,
    F_TASK,
    F_TRANSFER,
    F_TRIES,
    FIRST_WINDOW,
    FLYING,
    FRAME_END,
    FRAMES_SENT,
    FREE,
    HEARD,
    IN_FLIGHT,
    IN_FLIGHT_AGAIN,
    LAST_BIT,
    LATENESS,
    LENGTH,
    MISSED,
    MISSING,
    MOST_WINDOWS,
    N_GUARD,
    N_IN_FLIGHT,
    N_NODES,
    N_NOTIFY,
    N_QUANTUM,
    N_RESEND,
    N_ZERO,
    NEVER,
    NEWEST,
    NEXT,
    NEXT_CHECK,
    NODE,
    NONE,
    PLANE,
    PORT,
    QUEUE,
    QUEUE_LAST,
    READY,
    RESENT,
    ROW,
    SEND_ERRORS,
    SENT,
    SERIAL,
    SIZE,
    START,
    T_BYTES,
    T_CIRCUIT,
    T_END,
    T_EXTENT,
    T_FAR,
    T_HELD,
    T_PORT,
    T_RESENT,
    T_SENT,
    T_START,
    T_TASK,
    T_WALL_SENT,
    TABLE_FLYING,
    TABLE_TRANSFERS,
    TRANSFERS,
    USES,
    WINDOWS,
    X_DOWN,
    X_DST,
    X_SRC,
    X_UP,
    Engine,
    Wire,
)
from testbed.emulator._kernels_engine_faults import doom, held_until, next_again, rate_at
from testbed.emulator._kernels_engine_tools import fill_up, observe, set_timer, write_headers
from testbed.emulator._kernels_libc import (
    MSG_DONTWAIT,
    errno,
    monotonic_ns,
    sendmmsg,
)
from testbed.emulator.frames import (
    BTH_BYTES,
    CRC_BYTES,
    LEAST_DATA_BYTES,
    PSN_MODULUS,
)

if TYPE_CHECKING:
    from scheduler.dispatch._kernels_columns import Core

__all__ = ["enqueue", "far_of", "join_voq", "launch", "read_clock", "serve", "take_up"]

ADDRESS_BYTES: Final = 16
BITS_NS: Final = 8_000_000_000


@lean_kernel
def read_clock(engine: Engine, wire: Wire) -> int:
    """Return the time since time zero."""
    return int(monotonic_ns(wire.timespec) - engine.numbers[N_ZERO])


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
def goes_before(engine: Engine, message: int, other: int) -> bool:
    """Say whether `message` was ready before `other`, or at the same time and has the lower id."""
    ready, others = engine.tasks[message, READY], engine.tasks[other, READY]
    return bool(ready < others or (ready == others and message < other))


@lean_kernel
def queue_of(engine: Engine, core: Core, port: int, circuit: int) -> int:
    """Return the virtual output queue that `port` serves by `circuit`."""
    near, far = engine.ports[port, NODE], engine.ports[far_of(engine, core, port, circuit), NODE]
    return int(near * engine.numbers[N_NODES] + far)


@lean_kernel
def far_of(engine: Engine, core: Core, port: int, circuit: int) -> int:
    """Return the port at the other end of `circuit`; on a duplex plane it is read both ways."""
    base, line = core.planes[engine.ports[port, PLANE], PLANE_BASE], engine.circuits[circuit]
    far = base + line[X_DST]
    return int(base + line[X_SRC] if far == port else far)


@lean_kernel
def head_of(engine: Engine, core: Core, port: int) -> int:
    """Return the message `port` sends from by the circuit it uses, or NONE."""
    if core.rule[R_KIND] == TIMED:
        return int(engine.voq[queue_of(engine, core, port, engine.ports[port, USES]), 0])
    return int(engine.ports[port, QUEUE])


@lean_kernel
def take_up(engine: Engine, core: Core, port: int, clock_ns: int) -> None:
    """Take the next frame of an idle output into service, or note when to look at it again."""
    line = engine.ports[port]
    if line[LENGTH] > 0:
        return
    line[AGAIN] = NONE
    if core.rule[R_KIND] == TIMED:
        take_queued(engine, core, port, clock_ns)
    elif line[IN_FLIGHT_AGAIN] == 0 or not take_again(engine, core, port, clock_ns):
        take_granted(engine, core, port)


@lean_kernel
def take_again(engine: Engine, core: Core, port: int, clock_ns: int) -> bool:
    """Take what is to be sent again, if the circuit that stands or comes leads there."""
    line, circuit = engine.ports[port], engine.ports[port, NEWEST]
    if circuit == NONE or engine.circuits[circuit, X_DOWN] != NONE:
        return False
    row = next_again(engine, port, far_of(engine, core, port, circuit))
    if row == NONE:
        return False
    begin_ns = max(engine.circuits[circuit, X_UP], line[FREE], clock_ns)
    line[AGAIN] = row
    line[USES] = circuit
    line[BEGIN] = held_until(engine, line[NODE], begin_ns)
    begin_frame(engine, core, port, NONE, engine.flying[row, F_LENGTH])
    return True


@lean_kernel
def take_granted(engine: Engine, core: Core, port: int) -> None:
    """Take from the first message granted, once it is ready."""
    line = engine.ports[port]
    line[DUE] = NEVER
    message = line[QUEUE]
    if message == NONE or engine.tasks[message, MISSING] > 0:
        return
    if line[IN_FLIGHT] >= engine.numbers[N_IN_FLIGHT]:
        return
    task = engine.tasks[message]
    line[USES] = task[CIRCUIT]
    begin_ns = max(task[READY], engine.circuits[task[CIRCUIT], X_UP], line[FREE])
    line[BEGIN] = held_until(engine, line[NODE], begin_ns)
    if task[SENT] == 0 and core.rule[R_LOOKAHEAD] > 0:
        told_ns = line[BEGIN] + engine.numbers[N_NOTIFY]
        set_timer(engine, told_ns, HEARD + EV_STARTED, message)
    length = min(task[SIZE] - task[SENT], engine.numbers[N_QUANTUM])
    begin_frame(engine, core, port, message, length)


@lean_kernel
def take_queued(engine: Engine, core: Core, port: int, clock_ns: int) -> None:
    """Take from the queue the output's circuit leads to what still fits before its end."""
    line, guard_ns = engine.ports[port], engine.numbers[N_GUARD]
    while line[WINDOWS] > 0:
        circuit = engine.windows[port, line[FIRST_WINDOW]]
        up_ns, down_ns = engine.circuits[circuit, X_UP], engine.circuits[circuit, X_DOWN]
        if down_ns == NONE:
            down_ns = NEVER
        end_ns = down_ns - guard_ns
        begin_ns = max(line[FREE], up_ns)
        if begin_ns < end_ns and clock_ns + guard_ns // 3 <= down_ns:
            message = engine.voq[queue_of(engine, core, port, circuit), 0]
            again = NONE
            if line[IN_FLIGHT_AGAIN] > 0:
                again = next_again(engine, port, far_of(engine, core, port, circuit))
            full = line[IN_FLIGHT] >= engine.numbers[N_IN_FLIGHT]
            if again == NONE and (message == NONE or full):
                line[DUE] = end_ns
                if clock_ns < end_ns:
                    return
            else:
                first_ns = clock_ns if again != NONE else engine.tasks[message, READY]
                begin_ns = held_until(engine, line[NODE], max(begin_ns, first_ns))
                if begin_ns > clock_ns:
                    line[DUE] = begin_ns
                    return
                rate_bps = core.planes[line[PLANE], PLANE_RATE]
                rate_bps = rate_at(engine, line[PLANE], rate_bps, begin_ns)
                length = int((end_ns - begin_ns) * (rate_bps / BITS_NS))
                if again != NONE:
                    whole = engine.flying[again, F_LENGTH]
                    length = whole if length >= whole else 0
                else:
                    task = engine.tasks[message]
                    length = min(length, task[SIZE] - task[SENT], engine.numbers[N_QUANTUM])
                if length > 0:
                    line[AGAIN] = again
                    line[USES] = circuit
                    line[BEGIN] = begin_ns
                    begin_frame(engine, core, port, message if again == NONE else NONE, length)
                    return
        line[FIRST_WINDOW] = (line[FIRST_WINDOW] + 1) % MOST_WINDOWS
        line[WINDOWS] -= 1
    line[DUE] = NEVER


@lean_kernel
def continues(engine: Engine, core: Core, port: int, message: int) -> bool:
    """Say whether the frame in service goes on with the output's last transfer.

    A message that was granted its circuit stays one transfer whatever holds it up; a queue's goes
    on without a gap or is another.
    """
    line = engine.ports[port]
    if line[ROW] == NONE or (core.rule[R_KIND] == TIMED and line[BEGIN] != line[FREE]):
        return False
    row = engine.transfers[line[ROW]]
    return bool(row[T_TASK] == message and row[T_CIRCUIT] == line[USES])


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
def serve(engine: Engine, core: Core, wire: Wire, port: int, clock_ns: int) -> int:
    """Do what an output is due for; return the port a frame went to, or NONE.

    Under a timed program a frame woken too late for its slot is not sent: its bytes wait for the
    next circuit. Two outputs that drain one queue may find it empty at the end of a frame.
    """
    line = engine.ports[port]
    length = line[LENGTH]
    line[LENGTH] = 0
    if length == 0:
        take_up(engine, core, port, clock_ns)
        return NONE
    again, message = line[AGAIN], head_of(engine, core, port)
    if again == NONE and message == NONE:
        line[FREE] = line[FRAME_END]
        take_up(engine, core, port, clock_ns)
        return NONE
    now_ns = read_clock(engine, wire)
    down_ns = engine.circuits[line[USES], X_DOWN]
    late = down_ns != NONE and now_ns + engine.numbers[N_GUARD] // 3 > down_ns
    if late and core.rule[R_KIND] == TIMED:
        engine.counters[MISSED] += 1
        take_up(engine, core, port, now_ns)
        return NONE
    if again != NONE:
        row = send_again(engine, core, wire, port, again, now_ns)
    else:
        row = send_next(engine, core, wire, port, message, length, now_ns)
    if row == NONE:
        return NONE
    take_up(engine, core, port, clock_ns)
    return int(engine.flying[row, F_FAR])


@lean_kernel
def send_again(engine: Engine, core: Core, wire: Wire, port: int, row: int, now_ns: int) -> int:
    """Send the frame in `row` of `flying` once more, unless it has arrived after all.

    Its time on the wire is spent either way. Returns `row`.
    """
    line, frame = engine.ports[port], engine.flying[row]
    line[FREE] = line[FRAME_END]
    if line[ROW] != NONE:
        hold(engine, core, port)
    if frame[F_PORT] != port or frame[F_AGAIN] == 0:
        return row
    frame[F_AGAIN] = 0
    line[IN_FLIGHT_AGAIN] -= 1
    frame[F_LAST_BIT] = line[FRAME_END]
    task = engine.tasks[frame[F_TASK]]
    task[LAST_BIT] = max(task[LAST_BIT], line[FRAME_END])
    engine.counters[RESENT] += 1
    engine.transfers[frame[F_TRANSFER], T_RESENT] += 1
    observe(engine, LATENESS, now_ns - line[FRAME_END])
    launch(engine, core, wire, row, now_ns)
    return row


@lean_kernel
def hold(engine: Engine, core: Core, port: int) -> None:
    """Note how far behind line rate the output's latest transfer is."""
    line = engine.ports[port]
    row = engine.transfers[line[ROW]]
    rate_bps = core.planes[line[PLANE], PLANE_RATE]
    row[T_HELD] = line[FREE] - row[T_START] - wire_ns(row[T_BYTES], rate_bps)


@lean_kernel
def send_next(
    engine: Engine, core: Core, wire: Wire, port: int, message: int, length: int, now_ns: int
) -> int:
    """Send the frame in service; return its row in `flying`, or NONE where a table is full."""
    line, task = engine.ports[port], engine.tasks[message]
    length = min(length, task[SIZE] - task[SENT])
    far = far_of(engine, core, port, line[USES])
    if not continues(engine, core, port, message) and not open_transfer(
        engine, port, far, message, line[BEGIN]
    ):
        return NONE
    row = free_row(engine)
    if row == NONE:
        return NONE
    if task[SENT] == 0:
        task[START] = line[BEGIN]
    frame = engine.flying[row]
    frame[F_TASK] = message
    frame[F_OFFSET] = task[SENT]
    frame[F_LENGTH] = length
    frame[F_PORT] = port
    frame[F_FAR] = far
    frame[F_TRANSFER] = line[ROW]
    frame[F_LAST_BIT] = line[FRAME_END]
    frame[F_TRIES] = 0
    frame[F_PSN] = engine.psn[port, far, 0]
    frame[F_AGAIN] = 0
    frame[F_DOOMED] = NONE
    engine.psn[port, far, 0] = (frame[F_PSN] + 1) % PSN_MODULUS
    line[IN_FLIGHT] += 1
    engine.transfers[line[ROW], T_BYTES] += length
    task[SENT] += length
    task[LAST_BIT] = max(task[LAST_BIT], line[FRAME_END])
    line[FREE] = line[FRAME_END]
    hold(engine, core, port)
    if task[SENT] == task[SIZE]:
        leave_queue(engine, core, port)
    observe(engine, LATENESS, now_ns - line[FRAME_END])
    launch(engine, core, wire, row, now_ns)
    return row


@lean_kernel
def leave_queue(engine: Engine, core: Core, port: int) -> None:
    """Take the message that is all sent off the head of its queue."""
    if core.rule[R_KIND] == TIMED:
        ends = engine.voq[queue_of(engine, core, port, engine.ports[port, USES])]
        ends[0] = engine.tasks[ends[0], NEXT]
    else:
        line = engine.ports[port]
        line[QUEUE] = engine.tasks[line[QUEUE], NEXT]


@lean_kernel
def open_transfer(engine: Engine, port: int, far: int, message: int, begin_ns: int) -> bool:
    """Begin a transfer; False where there is no room to record it."""
    number = engine.counters[TRANSFERS]
    if number == len(engine.transfers):
        fill_up(engine, TABLE_TRANSFERS)
        return False
    engine.counters[TRANSFERS] = number + 1
    row = engine.transfers[number]
    row[T_TASK] = message
    row[T_PORT] = port
    row[T_FAR] = far
    row[T_CIRCUIT] = engine.ports[port, USES]
    row[T_START] = begin_ns
    row[T_END] = NONE
    row[T_EXTENT] = NONE
    engine.ports[port, ROW] = number
    return True


@lean_kernel
def free_row(engine: Engine) -> int:
    """Number a new frame and return its row in `flying`, or NONE where all are taken."""
    rows, serial = len(engine.flying), engine.counters[SERIAL]
    for candidate in range(serial, serial + rows):
        row = candidate % rows
        if engine.flying[row, F_SERIAL] == NONE:
            engine.flying[row, F_SERIAL] = candidate
            engine.counters[SERIAL] = candidate + 1
            engine.counters[FLYING] += 1
            return row
    fill_up(engine, TABLE_FLYING)
    return NONE


@lean_kernel
def launch(engine: Engine, core: Core, wire: Wire, row: int, now_ns: int) -> None:
    """Hand the frame in `row` of `flying` to the kernel; it has arrived when the call returns."""
    frame = engine.flying[row]
    port, far, message = frame[F_PORT], frame[F_FAR], frame[F_TASK]
    transfer = engine.transfers[frame[F_TRANSFER]]
    exact = int(np.ceil(frame[F_LENGTH] / engine.scale[0]))
    most = len(wire.send_buffer) - BTH_BYTES - CRC_BYTES
    data = min(max((exact + 3) // 4 * 4, LEAST_DATA_BYTES), most)
    write_headers(
        wire.send_buffer,
        port,
        frame[F_PSN],
        message // core.rule[R_TASKS],
        message % core.rule[R_TASKS],
        frame[F_OFFSET],
        frame[F_LENGTH],
        engine.tasks[message, SIZE],
        frame[F_SERIAL],
    )
    wire.send_vector[0]["len"] = BTH_BYTES + data + CRC_BYTES
    wire.send_header[0]["name"] = wire.addresses.ctypes.data + ADDRESS_BYTES * far
    frame[F_SENT] = now_ns
    frame[F_TRIES] += 1
    engine.counters[NEXT_CHECK] = min(
        engine.counters[NEXT_CHECK], now_ns + engine.numbers[N_RESEND]
    )
    done = sendmmsg(wire.fds[port], wire.send_header.ctypes.data, np.uint32(1), MSG_DONTWAIT)
    if done != 1:
        engine.counters[SEND_ERRORS] += 1
        engine.counters[ERRNO] = errno()
        return
    engine.counters[FRAMES_SENT] += 1
    if len(engine.faults) > 0:
        doom(engine, engine.ports[port, PLANE], frame, now_ns)
    transfer[T_SENT] += 1
    transfer[T_WALL_SENT] += data
