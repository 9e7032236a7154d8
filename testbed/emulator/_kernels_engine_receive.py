"""What comes in: frames received and accounted for, and those that did not come sent again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from scheduler.dispatch._kernels_columns import PLANE_OPTICAL, R_KIND, R_TASKS, TIMED
from scheduler.kernel import lean_kernel
from testbed.emulator._kernels_engine_columns import (
    ARRIVAL,
    CULPRIT,
    CULPRIT_ROW,
    DISCARDED,
    DISORDER,
    DST,
    DUPLICATES,
    E_LENGTH,
    E_OFFSET,
    E_TASK,
    E_TRANSFER,
    ENDED,
    EXTENTS,
    F_AGAIN,
    F_FAR,
    F_LAST_BIT,
    F_LENGTH,
    F_OFFSET,
    F_PORT,
    F_SENT,
    F_SERIAL,
    F_TASK,
    F_TRANSFER,
    F_TRIES,
    FIRST_WINDOW,
    FLYING,
    FOREIGN,
    FRAMES_RECEIVED,
    GO_BACK,
    GOT,
    HOP,
    IN_FLIGHT,
    IN_FLIGHT_AGAIN,
    LAST_BIT,
    LOST,
    MOST_TRIES,
    N_GUARD,
    N_IN_FLIGHT,
    N_LATENCY,
    N_NODES,
    N_NOTIFY,
    N_RESEND,
    NEVER,
    NEWEST,
    NEXT_CHECK,
    NODE,
    NONE,
    OUTCOME,
    PLANE,
    SEEN_DARK,
    SIZE,
    SPOILT,
    T_END,
    T_EXTENT,
    T_RECEIVED,
    T_WALL_RECEIVED,
    TABLE_EXTENTS,
    TRANSIT,
    WINDOWS,
    X_DOWN,
    X_UP,
    Engine,
    Wire,
)
from testbed.emulator._kernels_engine_faults import flag_path, passes, spoilt, survived
from testbed.emulator._kernels_engine_lines import far_of, read_clock
from testbed.emulator._kernels_engine_nic import take_up
from testbed.emulator._kernels_engine_slots import store
from testbed.emulator._kernels_engine_tools import fill_up, observe, set_timer, take
from testbed.emulator._kernels_libc import MSG_DONTWAIT, MSG_TRUNC, recvmmsg
from testbed.emulator.frames import BTH_BYTES, CRC_BYTES, FIRST_QP, HEADER_BYTES, PSN_MODULUS

if TYPE_CHECKING:
    from scheduler.dispatch._kernels_columns import Core
    from scheduler.model.taskgraph import Int64s

__all__ = ["go_back", "receive", "resend", "wake"]

DARK_FRAMES: Final = 2  # a column of the crossbar's counters


@lean_kernel
def resend(engine: Engine, core: Core, counted: Int64s, clock_ns: int) -> None:
    """Go back to what is in flight for too long, and note when to look next.

    `counted` are the crossbar's counters. A frame whose circuit is gone for good is given up after
    as many tries as one that is lost again and again.
    """
    engine.counters[NEXT_CHECK] = NEVER
    left = engine.counters[FLYING]
    for row in range(len(engine.flying)):
        if left == 0:
            break
        frame = engine.flying[row]
        if frame[F_SERIAL] == NONE:
            continue
        left -= 1
        due_ns = frame[F_SENT] + engine.numbers[N_RESEND]
        if clock_ns < due_ns:
            engine.counters[NEXT_CHECK] = min(engine.counters[NEXT_CHECK], due_ns)
            continue
        port, far = frame[F_PORT], frame[F_FAR]
        if frame[F_AGAIN] == 0:
            flag_path(engine, port, far, counted[port, DARK_FRAMES])
            take_up(engine, core, port, clock_ns)
        elif core.rule[R_KIND] != TIMED and not leads_to(engine, core, port, far, clock_ns):
            frame[F_TRIES] += 1
        frame[F_SENT] = clock_ns
        due_ns = clock_ns + engine.numbers[N_RESEND]
        engine.counters[NEXT_CHECK] = min(engine.counters[NEXT_CHECK], due_ns)
        plane = engine.ports[port, PLANE]
        if frame[F_TRIES] >= MOST_TRIES and not passes(engine, plane, port, far, clock_ns):
            engine.counters[OUTCOME] = LOST
            engine.counters[CULPRIT] = frame[F_TASK]
            engine.counters[CULPRIT_ROW] = frame[F_TRANSFER]
            return


@lean_kernel
def go_back(engine: Engine, core: Core, port: int, far: int, clock_ns: int) -> None:
    """Let `port` send again all that `far` has not received from it, in order."""
    flag_path(engine, port, far, engine.ports[port, SEEN_DARK])
    take_up(engine, core, port, clock_ns)


@lean_kernel
def leads_to(engine: Engine, core: Core, port: int, far: int, clock_ns: int) -> bool:
    """Say whether a frame sent now by `port` reaches `far`."""
    line = engine.ports[port]
    circuit = line[NEWEST]
    if core.planes[line[PLANE], PLANE_OPTICAL] == 0:
        return True
    if core.rule[R_KIND] == TIMED:
        if line[WINDOWS] == 0:
            return False
        circuit = engine.windows[port, line[FIRST_WINDOW]]
    if circuit == NONE:
        return False
    if far_of(engine, core, port, circuit) != far or clock_ns < engine.circuits[circuit, X_UP]:
        return False
    down_ns = engine.circuits[circuit, X_DOWN]
    return bool(down_ns == NONE or clock_ns + engine.numbers[N_GUARD] // 3 <= down_ns)


@lean_kernel
def receive(engine: Engine, core: Core, wire: Wire, port: int) -> None:
    """Take in all that has arrived at `port`; messages that are complete are listed as ended."""
    most = len(wire.receive_headers)
    while True:
        count = recvmmsg(
            wire.fds[port],
            wire.receive_headers.ctypes.data,
            np.uint32(most),
            MSG_DONTWAIT | MSG_TRUNC,
            0,
        )
        if count <= 0:
            return
        now_ns = read_clock(engine, wire)
        for k in range(count):
            size = int(wire.receive_headers[k]["len"])
            land(engine, core, port, wire.receive_buffers[k], size, now_ns)
        if count < most:
            return


@lean_kernel
def land(engine: Engine, core: Core, port: int, buffer: Any, size: int, now_ns: int) -> None:  # noqa: ANN401
    """Account for one received datagram of `size` bytes."""
    if size < BTH_BYTES + HEADER_BYTES + CRC_BYTES:
        engine.counters[FOREIGN] += 1
        return
    serial = take(buffer, BTH_BYTES + 24, 8)
    frame = engine.flying[serial % len(engine.flying)]
    sender = take(buffer, 5, 3) - FIRST_QP
    if frame[F_SERIAL] != serial:
        engine.counters[DUPLICATES] += 1
        return
    task = take(buffer, BTH_BYTES, 4) * core.rule[R_TASKS] + take(buffer, BTH_BYTES + 4, 4)
    offset, length = take(buffer, BTH_BYTES + 8, 8), take(buffer, BTH_BYTES + 16, 8)
    same = frame[F_TASK] == task and frame[F_OFFSET] == offset and frame[F_LENGTH] == length
    if not same or frame[F_PORT] != sender or frame[F_FAR] != port:
        engine.counters[FOREIGN] += 1
        return
    if spoilt(engine, frame):
        engine.counters[SPOILT] += 1
        return
    survived(engine, frame)
    psn, expected = take(buffer, 9, 3), engine.psn[sender, port, 1]
    if psn != expected:
        refuse(engine, sender, port, psn, expected, now_ns)
        return
    engine.psn[sender, port, 1] = (psn + 1) % PSN_MODULUS
    if not record_extent(engine, frame[F_TRANSFER], task, offset, length):
        return
    leave_flight(engine, core, sender, frame, now_ns)
    engine.counters[FRAMES_RECEIVED] += 1
    transfer = engine.transfers[frame[F_TRANSFER]]
    transfer[T_RECEIVED] += 1
    transfer[T_WALL_RECEIVED] += size - BTH_BYTES - CRC_BYTES
    observe(engine, TRANSIT, now_ns - frame[F_LAST_BIT])
    arrival_ns = max(now_ns, frame[F_LAST_BIT] + engine.numbers[N_LATENCY])
    transfer[T_END] = max(transfer[T_END], arrival_ns)
    node = engine.ports[port, NODE]
    if node == engine.tasks[task, DST]:
        come_home(engine, task, length, arrival_ns, now_ns)
    elif store(engine, node, task, offset, length, arrival_ns, now_ns):
        wake(engine, core, node, now_ns)


@lean_kernel
def come_home(engine: Engine, task: int, length: int, arrival_ns: int, now_ns: int) -> None:
    """Account for bytes that have reached their destination."""
    line = engine.tasks[task]
    line[ARRIVAL] = max(line[ARRIVAL], arrival_ns)
    line[GOT] += length
    if line[GOT] == line[SIZE]:
        observe(engine, HOP, now_ns - line[LAST_BIT])
        engine.ended[engine.counters[ENDED]] = task
        engine.counters[ENDED] += 1


@lean_kernel
def wake(engine: Engine, core: Core, node: int, clock_ns: int) -> None:
    """Let the idle outputs of a node that has something new to send take it up."""
    for plane in range(len(core.planes)):
        row = plane * engine.numbers[N_NODES] + node
        for at in range(engine.node_port_ptr[row], engine.node_port_ptr[row + 1]):
            take_up(engine, core, engine.node_port[at], clock_ns)


@lean_kernel
def leave_flight(engine: Engine, core: Core, port: int, frame: Int64s, now_ns: int) -> None:
    """Free the row of a frame that has arrived, and let its output go on if it was full."""
    line = engine.ports[port]
    frame[F_SERIAL] = NONE
    engine.counters[FLYING] -= 1
    if frame[F_AGAIN] != 0:
        frame[F_AGAIN] = 0
        line[IN_FLIGHT_AGAIN] -= 1
    line[IN_FLIGHT] -= 1
    if line[IN_FLIGHT] + 1 == engine.numbers[N_IN_FLIGHT]:
        take_up(engine, core, port, now_ns)


@lean_kernel
def refuse(engine: Engine, sender: int, port: int, psn: int, expected: int, now_ns: int) -> None:
    """Throw a frame away that is not the next of its path, and ask for that one, once."""
    if (psn - expected) % PSN_MODULUS >= PSN_MODULUS // 2:
        engine.counters[DISORDER] += 1
        return
    engine.counters[DISCARDED] += 1
    if engine.asked[sender, port] != expected:
        engine.asked[sender, port] = expected
        path = sender * len(engine.ports) + port
        set_timer(engine, now_ns + engine.numbers[N_NOTIFY], GO_BACK, path)


@lean_kernel
def record_extent(engine: Engine, transfer: int, task: int, offset: int, length: int) -> bool:
    """Record received bytes; False where there is no room to."""
    row = engine.transfers[transfer]
    if row[T_EXTENT] != NONE:
        extent = engine.extents[row[T_EXTENT]]
        if extent[E_OFFSET] + extent[E_LENGTH] == offset:
            extent[E_LENGTH] += length
            return True
    number = engine.counters[EXTENTS]
    if number == len(engine.extents):
        fill_up(engine, TABLE_EXTENTS)
        return False
    engine.counters[EXTENTS] = number + 1
    extent = engine.extents[number]
    extent[E_TASK] = task
    extent[E_OFFSET] = offset
    extent[E_LENGTH] = length
    extent[E_TRANSFER] = transfer
    row[T_EXTENT] = number
    return True
