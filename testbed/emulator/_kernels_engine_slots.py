"""What an output sends under a timed program, while its circuits stand.

With direct routing the outputs of a node draw on its virtual output queues; with two hops they ask
`_kernels_relays`, as the simulator does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scheduler.dispatch._kernels_columns import PLANE_RATE
from scheduler.dispatch._kernels_relays import (
    choose,
    give_back,
    has_room,
    link,
    new_chunk,
    promise,
    take,
)
from scheduler.kernel import lean_kernel
from testbed.emulator._kernels_engine_columns import (
    AGAIN,
    BEGIN,
    DIRECT,
    DST,
    DUE,
    F_LENGTH,
    FIRST_WINDOW,
    FRAME_HOP,
    FRAME_OFFSET,
    FRAME_SINCE,
    FRAME_TASK,
    FRAME_TO,
    FREE,
    IN_FLIGHT,
    IN_FLIGHT_AGAIN,
    MOST_WINDOWS,
    N_GUARD,
    N_IN_FLIGHT,
    N_NODES,
    N_QUANTUM,
    N_ROUTING,
    NEVER,
    NODE,
    NONE,
    PLANE,
    RELAYED,
    ROTORLB,
    SENT,
    SINCE,
    SIZE,
    TABLE_CHUNKS,
    USES,
    WINDOWS,
    X_DOWN,
    X_UP,
    Engine,
)
from testbed.emulator._kernels_engine_faults import held_until, next_again, rate_at
from testbed.emulator._kernels_engine_lines import begin_frame, far_of, queue_of
from testbed.emulator._kernels_engine_tools import fill_up, set_timer

if TYPE_CHECKING:
    from scheduler.dispatch._kernels_columns import Core

__all__ = ["put_back", "store", "take_queued"]

BITS_NS: Final = 8_000_000_000


@lean_kernel
def take_queued(engine: Engine, core: Core, port: int, clock_ns: int) -> None:
    """Take what still fits before the end of the output's circuit, or note when to look again."""
    line, guard_ns = engine.ports[port], engine.numbers[N_GUARD]
    while line[WINDOWS] > 0:
        circuit = engine.windows[port, line[FIRST_WINDOW]]
        up_ns, down_ns = engine.circuits[circuit, X_UP], engine.circuits[circuit, X_DOWN]
        if down_ns == NONE:
            down_ns = NEVER
        end_ns = down_ns - guard_ns
        if max(line[FREE], up_ns) < end_ns and clock_ns + guard_ns // 3 <= down_ns:
            line[USES] = circuit
            line[DUE] = end_ns
            again = NONE
            if line[IN_FLIGHT_AGAIN] > 0:
                again = next_again(engine, port, far_of(engine, core, port, circuit))
            full = line[IN_FLIGHT] >= engine.numbers[N_IN_FLIGHT]
            if again != NONE:
                taken = take_once_more(engine, core, port, again, clock_ns, end_ns)
            elif full:
                taken = clock_ns < end_ns
            elif engine.numbers[N_ROUTING] == DIRECT:
                taken = take_own(engine, core, port, clock_ns, end_ns)
            else:
                taken = take_chosen(engine, core, port, clock_ns, end_ns)
            if taken:
                return
        line[FIRST_WINDOW] = (line[FIRST_WINDOW] + 1) % MOST_WINDOWS
        line[WINDOWS] -= 1
    line[DUE] = NEVER


@lean_kernel
def begin_at(engine: Engine, port: int, first_ns: int) -> int:
    """Return when the output can begin, in the light, what it has from `first_ns` on."""
    line = engine.ports[port]
    begin_ns = max(line[FREE], engine.circuits[line[USES], X_UP], first_ns)
    return held_until(engine, line[NODE], begin_ns)


@lean_kernel
def room_within(engine: Engine, core: Core, port: int, begin_ns: int, end_ns: int) -> int:
    """Return how many bytes leave from `begin_ns` until `end_ns`."""
    plane = engine.ports[port, PLANE]
    rate_bps = rate_at(engine, plane, core.planes[plane, PLANE_RATE], begin_ns)
    return max(int((end_ns - begin_ns) * (rate_bps / BITS_NS)), 0)


@lean_kernel
def take_once_more(
    engine: Engine, core: Core, port: int, row: int, clock_ns: int, end_ns: int
) -> bool:
    """Take a frame to be sent again; False where it fits no more before `end_ns`."""
    line = engine.ports[port]
    begin_ns = begin_at(engine, port, clock_ns)
    if begin_ns > clock_ns:
        line[DUE] = begin_ns
        return True
    length = engine.flying[row, F_LENGTH]
    if room_within(engine, core, port, begin_ns, end_ns) < length:
        return False
    line[AGAIN] = row
    line[BEGIN] = begin_ns
    begin_frame(engine, core, port, NONE, length)
    return True


@lean_kernel
def take_own(engine: Engine, core: Core, port: int, clock_ns: int, end_ns: int) -> bool:
    """Take from the node's queue for where the circuit leads; False: not before `end_ns`."""
    line = engine.ports[port]
    message = engine.voq[queue_of(engine, core, port, line[USES]), 0]
    if message == NONE:
        return bool(clock_ns < end_ns)
    task = engine.tasks[message]
    begin_ns = begin_at(engine, port, task[SINCE])
    if begin_ns > clock_ns:
        line[DUE] = begin_ns
        return True
    room = room_within(engine, core, port, begin_ns, end_ns)
    length = min(room, task[SIZE] - task[SENT], engine.numbers[N_QUANTUM])
    if length <= 0:
        return False
    line[BEGIN] = begin_ns
    begin_frame(engine, core, port, message, length)
    return True


# --- two hops


@lean_kernel
def take_chosen(engine: Engine, core: Core, port: int, clock_ns: int, end_ns: int) -> bool:
    """Take what `_kernels_relays` chooses; False where nothing fits before `end_ns` any more."""
    line, relays = engine.ports[port], engine.relays
    begin_ns = begin_at(engine, port, 0)
    if begin_ns > clock_ns:
        line[DUE] = begin_ns
        return True
    x, y = line[NODE], engine.ports[far_of(engine, core, port, line[USES]), NODE]
    room = room_within(engine, core, port, begin_ns, end_ns)
    if room == 0:
        return False
    whole = room_within(engine, core, port, engine.circuits[line[USES], X_UP], end_ns)
    admission = engine.numbers[N_ROUTING] == ROTORLB
    d, length, hop = choose(relays, x, y, room, whole, engine.numbers[N_QUANTUM], admission)
    if length < 1:
        return bool(clock_ns < end_ns)
    task, offset, since_ns = take(relays, x, d, hop, length)
    if d != y:
        promise(relays, y, d, length)
    line[FRAME_TASK] = task
    line[FRAME_OFFSET] = offset
    line[FRAME_HOP] = hop
    line[FRAME_TO] = d
    line[FRAME_SINCE] = since_ns
    line[BEGIN] = max(begin_ns, since_ns)
    begin_frame(engine, core, port, task, length)
    return True


@lean_kernel
def put_back(engine: Engine, core: Core, port: int, length: int) -> None:
    """Put what the frame in service carries back where it came from: it was not sent."""
    line, relays = engine.ports[port], engine.relays
    if not has_room(relays):
        fill_up(engine, TABLE_CHUNKS)
        return
    y, d = engine.ports[far_of(engine, core, port, line[USES]), NODE], line[FRAME_TO]
    if d != y:
        promise(relays, y, d, -length)
    hop, task, offset = line[FRAME_HOP], line[FRAME_TASK], line[FRAME_OFFSET]
    give_back(relays, line[NODE], d, hop, task, offset, length, line[FRAME_SINCE])


@lean_kernel
def store(
    engine: Engine, node: int, task: int, offset: int, length: int, arrival_ns: int, now_ns: int
) -> bool:
    """Let bytes wait at the relay they came to; False while their latency is not over."""
    relays = engine.relays
    if not has_room(relays):
        fill_up(engine, TABLE_CHUNKS)
        return False
    chunk = new_chunk(relays, task, offset, length, arrival_ns)
    if arrival_ns > now_ns:
        set_timer(engine, arrival_ns, RELAYED, chunk * engine.numbers[N_NODES] + node)
        return False
    link(relays, node, engine.tasks[task, DST], 1, chunk)
    return True
