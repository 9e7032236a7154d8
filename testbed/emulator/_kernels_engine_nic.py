"""The NICs: which frame each output sends next and when, and sending it.

An output takes the next frame into service and sends it when its last bit would have left. Ordered
and reactive programs grant messages to outputs, which send them in that order; on packet planes
`_kernels_engine_packet` says when, and under a timed program `_kernels_engine_slots`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from scheduler.dispatch._kernels_columns import (
    EV_STARTED,
    PLANE_OPTICAL,
    R_KIND,
    R_LOOKAHEAD,
    R_TASKS,
    TIMED,
)
from scheduler.kernel import lean_kernel
from testbed.emulator._kernels_engine_columns import (
    ADMITTED,
    AGAIN,
    BEGIN,
    CIRCUIT,
    DIRECT,
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
    FAR,
    FLYING,
    FRAME_END,
    FRAME_HOP,
    FRAME_OFFSET,
    FRAME_TASK,
    FRAMES_SENT,
    FREE,
    HEARD,
    IN_FLIGHT,
    IN_FLIGHT_AGAIN,
    LAST_BIT,
    LATENESS,
    LENGTH,
    MISSED,
    N_BUFFER,
    N_GUARD,
    N_IN_FLIGHT,
    N_NOTIFY,
    N_QUANTUM,
    N_RESEND,
    N_ROUTING,
    NEVER,
    NEWEST,
    NEXT,
    NEXT_CHECK,
    NODE,
    NONE,
    PLANE,
    QUEUE,
    RESENT,
    ROW,
    SEND_ERRORS,
    SENDS,
    SENT,
    SERIAL,
    SINCE,
    SIZE,
    STAGE,
    START,
    T_BYTES,
    T_CIRCUIT,
    T_END,
    T_EXTENT,
    T_FAR,
    T_HOP,
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
    X_DOWN,
    X_UP,
    Engine,
    Wire,
)
from testbed.emulator._kernels_engine_faults import doom, held_until, next_again
from testbed.emulator._kernels_engine_lines import (
    begin_frame,
    continues,
    far_of,
    hold,
    queue_of,
    read_clock,
)
from testbed.emulator._kernels_engine_packet import give_up
from testbed.emulator._kernels_engine_room import give_room
from testbed.emulator._kernels_engine_slots import put_back, take_queued
from testbed.emulator._kernels_engine_tools import fill_up, observe, set_timer, write_headers
from testbed.emulator._kernels_libc import (
    MSG_DONTWAIT,
    errno,
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

__all__ = ["launch", "serve", "take_up"]

ADDRESS_BYTES: Final = 16
BITS_NS: Final = 8_000_000_000


@lean_kernel
def head_of(engine: Engine, core: Core, port: int) -> int:
    """Return the message `port` sends from by the circuit it uses, or NONE."""
    if engine.numbers[N_ROUTING] != DIRECT:
        return int(engine.ports[port, FRAME_TASK])
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
    """Take what is to be sent again, if the circuit that stands or comes leads there.

    A packet plane leads everywhere.
    """
    line, circuit = engine.ports[port], engine.ports[port, NEWEST]
    far, begin_ns = NONE, max(line[FREE], clock_ns)
    if core.planes[line[PLANE], PLANE_OPTICAL] != 0:
        if circuit == NONE or engine.circuits[circuit, X_DOWN] != NONE:
            return False
        far = far_of(engine, core, port, circuit)
        begin_ns = max(begin_ns, engine.circuits[circuit, X_UP])
    row = next_again(engine, port, far)
    if row == NONE:
        return False
    line[AGAIN] = row
    line[USES] = circuit
    line[BEGIN] = held_until(engine, line[NODE], begin_ns)
    begin_frame(engine, core, port, NONE, engine.flying[row, F_LENGTH])
    return True


@lean_kernel
def take_granted(engine: Engine, core: Core, port: int) -> None:
    """Take from the first message granted, once its NIC has let it in."""
    line = engine.ports[port]
    line[DUE] = NEVER
    message = line[QUEUE]
    if message == NONE or engine.tasks[message, SINCE] == NONE:
        return
    if line[IN_FLIGHT] >= engine.numbers[N_IN_FLIGHT]:
        return
    task, optical = engine.tasks[message], engine.tasks[message, FAR] == NONE
    line[USES] = task[CIRCUIT]
    begin_ns = max(task[SINCE], line[FREE])
    if optical:
        begin_ns = max(begin_ns, engine.circuits[task[CIRCUIT], X_UP])
    elif line[STAGE] == SENDS:
        begin_ns = max(begin_ns, line[ADMITTED])
    else:
        return
    line[BEGIN] = held_until(engine, line[NODE], begin_ns)
    if optical and task[SENT] == 0 and core.rule[R_LOOKAHEAD] > 0:
        told_ns = line[BEGIN] + engine.numbers[N_NOTIFY]
        set_timer(engine, told_ns, HEARD + EV_STARTED, message)
    length = min(task[SIZE] - task[SENT], engine.numbers[N_QUANTUM])
    begin_frame(engine, core, port, message, length)


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
    if core.rule[R_KIND] == TIMED and too_late(engine, line[USES], now_ns):
        engine.counters[MISSED] += 1
        if again == NONE and engine.numbers[N_ROUTING] != DIRECT:
            put_back(engine, core, port, length)
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
def too_late(engine: Engine, circuit: int, now_ns: int) -> bool:
    """Say whether a frame sent now might come after the end of `circuit`."""
    down_ns = engine.circuits[circuit, X_DOWN]
    return bool(down_ns != NONE and now_ns + engine.numbers[N_GUARD] // 3 > down_ns)


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
def send_next(
    engine: Engine, core: Core, wire: Wire, port: int, message: int, length: int, now_ns: int
) -> int:
    """Send the frame in service; return its row in `flying`, or NONE where a table is full."""
    line, task = engine.ports[port], engine.tasks[message]
    offset, hop = task[SENT], 0
    if engine.numbers[N_ROUTING] == DIRECT:
        length = min(length, task[SIZE] - offset)
    else:
        offset, hop = line[FRAME_OFFSET], line[FRAME_HOP]
    far = task[FAR]
    if far == NONE:
        far = far_of(engine, core, port, line[USES])
    if not continues(engine, core, port, message) and not open_transfer(
        engine, port, far, message, line[BEGIN]
    ):
        return NONE
    row = free_row(engine)
    if row == NONE:
        return NONE
    if task[START] == NONE or line[BEGIN] < task[START]:
        task[START] = line[BEGIN]
    frame = engine.flying[row]
    frame[F_TASK] = message
    frame[F_OFFSET] = offset
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
    if hop == 0:
        task[SENT] += length
    engine.transfers[line[ROW], T_HOP] = hop
    task[LAST_BIT] = max(task[LAST_BIT], line[FRAME_END])
    line[FREE] = line[FRAME_END]
    hold(engine, core, port)
    if hop == 0 and task[SENT] == task[SIZE]:
        if engine.numbers[N_BUFFER] > 0:
            give_room(engine, message, line[FRAME_END])
        if engine.numbers[N_ROUTING] == DIRECT:
            leave_queue(engine, core, port, message, now_ns)
    observe(engine, LATENESS, now_ns - line[FRAME_END])
    launch(engine, core, wire, row, now_ns)
    return row


@lean_kernel
def leave_queue(engine: Engine, core: Core, port: int, message: int, clock_ns: int) -> None:
    """Take the message that is all sent off the head of its queue."""
    if core.rule[R_KIND] == TIMED:
        ends = engine.voq[queue_of(engine, core, port, engine.ports[port, USES])]
        ends[0] = engine.tasks[ends[0], NEXT]
    else:
        line = engine.ports[port]
        line[QUEUE] = engine.tasks[message, NEXT]
        if engine.tasks[message, FAR] != NONE:
            follower = give_up(engine, port, message)
            if follower != NONE:
                take_up(engine, core, follower, clock_ns)


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
