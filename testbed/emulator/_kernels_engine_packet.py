"""Packet planes: an output sends a message once the input it goes to is its own.

Messages of one output go by when they were ready; an input belongs to one message at a time, and
the outputs that want it wait in turn at their hosts, as the simulator has it. So no more than a
frame or two ever waits in the switch, and none is dropped.
"""

from __future__ import annotations

from scheduler.kernel import lean_kernel
from testbed.emulator._kernels_engine_columns import (
    ADMITTED,
    CLEAR,
    FAR,
    FRAME_END,
    IDLE,
    NEXT,
    NONE,
    PORT,
    QUEUE,
    SENDS,
    STAGE,
    TAKEN,
    WAITING,
    WAITING_LAST,
    WAITING_NEXT,
    WAITS,
    Engine,
)
from testbed.emulator._kernels_engine_lines import goes_before

__all__ = ["ask", "give_up", "join"]


@lean_kernel
def join(engine: Engine, message: int) -> None:
    """Put a ready message into its output's queue, by (ready, id), and ask for its input.

    The first one that has asked stays the first.
    """
    port = engine.tasks[message, PORT]
    line, tasks = engine.ports[port], engine.tasks
    before, after = NONE, line[QUEUE]
    if line[STAGE] != IDLE:
        before, after = after, tasks[after, NEXT]
    while after != NONE and not goes_before(engine, message, after):
        before, after = after, tasks[after, NEXT]
    tasks[message, NEXT] = after
    if before == NONE:
        line[QUEUE] = message
    else:
        tasks[before, NEXT] = message
    ask(engine, port)


@lean_kernel
def ask(engine: Engine, port: int) -> None:
    """Let the first message of an idle output have its input, or wait for it."""
    line = engine.ports[port]
    if line[STAGE] != IDLE or line[QUEUE] == NONE:
        return
    target = engine.ports[engine.tasks[line[QUEUE], FAR]]
    if target[TAKEN] == 0:
        target[TAKEN] = 1
        line[STAGE] = SENDS
        line[ADMITTED] = target[CLEAR]
        return
    line[STAGE] = WAITS
    line[WAITING_NEXT] = NONE
    if target[WAITING] == NONE:
        target[WAITING] = port
    else:
        engine.ports[target[WAITING_LAST], WAITING_NEXT] = port
    target[WAITING_LAST] = port


@lean_kernel
def give_up(engine: Engine, port: int, message: int) -> int:
    """Give up the input of a message that is all sent; return the output it goes to, or NONE."""
    line = engine.ports[port]
    target = engine.ports[engine.tasks[message, FAR]]
    line[STAGE] = IDLE
    target[CLEAR] = line[FRAME_END]
    waiting = target[WAITING]
    if waiting == NONE:
        target[TAKEN] = 0
    else:
        target[WAITING] = engine.ports[waiting, WAITING_NEXT]
        engine.ports[waiting, STAGE] = SENDS
        engine.ports[waiting, ADMITTED] = line[FRAME_END]
    ask(engine, port)
    return int(waiting)
