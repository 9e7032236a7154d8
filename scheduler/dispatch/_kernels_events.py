"""What every simulation loop is made of: a binary heap of events, and tasks that end and begin.

With a finite send buffer per NIC, a message that is ready first waits for room in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from scheduler.kernel import lean_kernel

if TYPE_CHECKING:
    from scheduler.dispatch.layout import Work
    from scheduler.model.taskgraph import Int64s

__all__ = [
    "Progress",
    "Room",
    "admit",
    "begin_all",
    "finish",
    "leaves",
    "pop",
    "push",
    "take_in",
]

# Events of one moment are taken in the order of their codes: kind * KIND + number.
KIND: Final = 1 << 56
ENDED: Final = 0  # task `number` ends: a compute is over, a message has arrived
LEFT: Final = 1  # finite NIC buffer: the last bit of message `number` has left its source
WAITS: Final = 2  # finite NIC buffer: message `number` is ready and asks for room
KNOWN: Final = 3  # the dispatcher hears that message `number` arrived
FREED: Final = 4  # packet switch: port `number` has sent its last bit
JOINED: Final = 5  # message `number` takes its place in a queue
ASKED: Final = 6  # the dispatcher hears that message `number` is ready
BEGUN: Final = 7  # with lookahead: the dispatcher hears that message `number` began

READY: Final = 0  # rows of `times`
START: Final = 1
END: Final = 2

N_HEAP: Final = 0  # `tally`: events in the heap
N_FRESH: Final = 1  # messages in `fresh`
N_DONE: Final = 2  # tasks that have ended
COUNTS: Final = 3

COMPUTE: Final = 0
MESSAGE: Final = 1


ROOM_FREE: Final = 0  # columns of `room.node`: bytes of the NIC's buffer that nothing holds
ROOM_HEAD: Final = 1  # messages that wait for room, FIFO, -1 none
ROOM_TAIL: Final = 2
ROOM_COLUMNS: Final = 3


class Room(NamedTuple):
    """The send buffers of the NICs: `size` int64[1] is how large each is, 0 without end.

    `node` has a row per node, and `after` (total,) links the messages that wait for room; both are
    empty where buffers are without end.
    """

    size: Int64s
    node: Int64s
    after: Int64s


class Progress(NamedTuple):
    """How far an execution is. `times` has shape (3, total): ready, start, end; -1 not yet.

    `admitted`, (total,), is since when each message may be sent, -1 not yet: when its NIC had room
    for it, or, where NICs have room without end, the row `ready` itself. `missing` counts each
    task's unfinished predecessors, `fresh` lists messages that may be sent since and were not
    looked at, `stack` is scratch of shape (total,), `heap` holds rows (time, code).
    """

    times: Int64s
    missing: Int64s
    fresh: Int64s
    stack: Int64s
    heap: Int64s
    tally: Int64s
    admitted: Int64s
    room: Room


@lean_kernel
def push(progress: Progress, time_ns: int, code: int) -> None:
    """Add an event to the heap."""
    heap, at = progress.heap, progress.tally[N_HEAP]
    progress.tally[N_HEAP] = at + 1
    while at > 0:
        up = (at - 1) >> 1
        if heap[up, 0] < time_ns or (heap[up, 0] == time_ns and heap[up, 1] <= code):
            break
        heap[at, 0] = heap[up, 0]
        heap[at, 1] = heap[up, 1]
        at = up
    heap[at, 0] = time_ns
    heap[at, 1] = code


@lean_kernel
def pop(progress: Progress) -> tuple[int, int]:
    """Take the earliest event off the heap: its time and code. The heap is not empty."""
    heap = progress.heap
    first_ns, first = heap[0, 0], heap[0, 1]
    size = progress.tally[N_HEAP] - 1
    progress.tally[N_HEAP] = size
    time_ns, code = heap[size, 0], heap[size, 1]
    at, down = 0, 1
    while down < size:
        right = down + 1
        if right < size and (
            heap[right, 0] < heap[down, 0]
            or (heap[right, 0] == heap[down, 0] and heap[right, 1] < heap[down, 1])
        ):
            down = right
        if time_ns < heap[down, 0] or (time_ns == heap[down, 0] and code <= heap[down, 1]):
            break
        heap[at, 0] = heap[down, 0]
        heap[at, 1] = heap[down, 1]
        at, down = down, 2 * down + 1
    heap[at, 0] = time_ns
    heap[at, 1] = code
    return first_ns, first


@lean_kernel
def needs(work: Work, progress: Progress, message: int) -> int:
    """Return the bytes of buffer a message holds: a large one all there are."""
    return int(min(work.size_bytes[message], progress.room.size[0]))


@lean_kernel
def admit(work: Work, progress: Progress, node: int, now_ns: int) -> None:
    """Let in the messages that wait at a NIC, first in first, while there is room: into `fresh`."""
    line, tally = progress.room.node[node], progress.tally
    while line[ROOM_HEAD] >= 0 and needs(work, progress, line[ROOM_HEAD]) <= line[ROOM_FREE]:
        message = line[ROOM_HEAD]
        line[ROOM_HEAD] = progress.room.after[message]
        line[ROOM_FREE] -= needs(work, progress, message)
        progress.admitted[message] = now_ns
        progress.fresh[tally[N_FRESH]] = message
        tally[N_FRESH] += 1


@lean_kernel
def wait_for_room(work: Work, progress: Progress, message: int, now_ns: int) -> None:
    """Put a message that is ready behind those that wait at its NIC; it may be let in at once."""
    line = progress.room.node[work.src[message]]
    progress.room.after[message] = -1
    if line[ROOM_HEAD] < 0:
        line[ROOM_HEAD] = message
    else:
        progress.room.after[line[ROOM_TAIL]] = message
    line[ROOM_TAIL] = message
    admit(work, progress, work.src[message], now_ns)


@lean_kernel
def give_room(work: Work, progress: Progress, message: int, now_ns: int) -> None:
    """Take back the room of a message that has left, for those that wait."""
    node = work.src[message]
    progress.room.node[node, ROOM_FREE] += needs(work, progress, message)
    admit(work, progress, node, now_ns)


@lean_kernel
def leaves(progress: Progress, message: int, last_ns: int) -> None:
    """Note when the last bit of a message leaves its NIC, if anything could wait for its room."""
    if progress.room.size[0] > 0:
        push(progress, last_ns, LEFT * KIND + message)


@lean_kernel
def begin(work: Work, progress: Progress, task: int, now_ns: int, depth: int) -> int:
    """Make a task ready now. One that takes no time ends too: it is put on the stack."""
    times, tally = progress.times, progress.tally
    times[READY, task] = now_ns
    if work.kind[task] == MESSAGE:
        if progress.room.size[0] > 0:
            push(progress, now_ns, WAITS * KIND + task)
            return depth
        progress.fresh[tally[N_FRESH]] = task
        tally[N_FRESH] += 1
        return depth
    times[START, task] = now_ns
    times[END, task] = now_ns + work.dur_ns[task]
    if work.kind[task] == COMPUTE and work.dur_ns[task] > 0:
        push(progress, times[END, task], ENDED * KIND + task)
        return depth
    times[END, task] = now_ns
    progress.stack[depth] = task
    return depth + 1


@lean_kernel
def settle(work: Work, progress: Progress, now_ns: int, depth: int) -> None:
    """End every task on the stack, and those that end with them."""
    while depth > 0:
        depth -= 1
        task = progress.stack[depth]
        progress.tally[N_DONE] += 1
        for at in range(work.successor_ptr[task], work.successor_ptr[task + 1]):
            after = work.successor[at]
            progress.missing[after] -= 1
            if progress.missing[after] == 0:
                depth = begin(work, progress, after, now_ns, depth)


@lean_kernel
def finish(work: Work, progress: Progress, task: int, now_ns: int) -> None:
    """End a task now; messages that become ready by it are in `fresh`, or ask for room."""
    progress.stack[0] = task
    settle(work, progress, now_ns, 1)


@lean_kernel
def begin_all(work: Work, progress: Progress) -> None:
    """Begin at time zero the tasks that wait for nothing."""
    for task in range(len(work.kind)):
        if work.indegree[task] == 0:
            settle(work, progress, 0, begin(work, progress, task, 0, 0))


@lean_kernel
def take_in(work: Work, progress: Progress, kind: int, task: int, now_ns: int) -> bool:
    """End a task, take room back or ask for it, as every loop does; False for other events."""
    if kind == ENDED:
        finish(work, progress, task, now_ns)
    elif kind == LEFT:
        give_room(work, progress, task, now_ns)
    elif kind == WAITS:
        wait_for_room(work, progress, task, now_ns)
    else:
        return False
    return True
