"""NICs with a finite send buffer: which messages are let in, and when.

The rules of `scheduler.model.admission`, on what really happened: messages of a node are let in by
(ready, id), each holds its bytes, or the whole buffer, until its last bit has left.
"""

from __future__ import annotations

from scheduler.kernel import lean_kernel
from testbed.emulator._kernels_engine_columns import (
    BEHIND,
    CROWDED,
    N_BUFFER,
    N_STEP,
    NONE,
    READY,
    ROOM_BYTES,
    ROOM_HEAD,
    ROOM_LAST,
    ROOM_SINCE,
    SINCE,
    SIZE,
    SRC,
    Engine,
)
from testbed.emulator._kernels_engine_lines import goes_before

__all__ = ["ask_for_room", "give_room", "let_in_next"]


@lean_kernel
def held_by(engine: Engine, message: int) -> int:
    """Return the bytes of its NIC's buffer that a message holds while it is in."""
    return int(min(engine.tasks[message, SIZE], engine.numbers[N_BUFFER]))


@lean_kernel
def ask_for_room(engine: Engine, message: int) -> None:
    """Let a ready message wait at its NIC, by (ready, id); it is let in before the turn is over."""
    tasks, room = engine.tasks, engine.rooms[engine.tasks[message, SRC]]
    before, after = NONE, room[ROOM_HEAD]
    while after != NONE and not goes_before(engine, message, after):
        before, after = after, tasks[after, BEHIND]
    tasks[message, BEHIND] = after
    if before == NONE:
        room[ROOM_HEAD] = message
    else:
        tasks[before, BEHIND] = message
    engine.counters[CROWDED] = 1


@lean_kernel
def let_in_next(engine: Engine, node: int) -> int:
    """Let in the first message that waits at a NIC, if there is room; return it, or NONE.

    The thread may hear of a message after it let in one that was ready later: then the message was
    not known to be ready before, and is recorded so, for the order in the records to be the one
    that was kept.
    """
    tasks, room = engine.tasks, engine.rooms[node]
    message, last = room[ROOM_HEAD], room[ROOM_LAST]
    if message == NONE or held_by(engine, message) > room[ROOM_BYTES]:
        return NONE
    room[ROOM_HEAD] = tasks[message, BEHIND]
    room[ROOM_BYTES] -= held_by(engine, message)
    if last != NONE:
        least_ns = tasks[last, READY] + (engine.numbers[N_STEP] if message < last else 0)
        tasks[message, READY] = max(tasks[message, READY], least_ns)
    room[ROOM_LAST] = message
    tasks[message, SINCE] = max(tasks[message, READY], room[ROOM_SINCE])
    return int(message)


@lean_kernel
def give_room(engine: Engine, message: int, last_bit_ns: int) -> None:
    """Take back the room of a message whose last bit leaves, for those that wait."""
    room = engine.rooms[engine.tasks[message, SRC]]
    room[ROOM_BYTES] += held_by(engine, message)
    room[ROOM_SINCE] = max(room[ROOM_SINCE], last_bit_ns)
    engine.counters[CROWDED] = 1
