"""What every simulation loop is made of: a binary heap of events, and tasks that end and begin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from scheduler.kernel import lean_kernel

if TYPE_CHECKING:
    from scheduler.dispatch.layout import Work
    from scheduler.model.taskgraph import Int64s

__all__ = ["Progress", "begin_all", "finish", "pop", "push"]

# Events of one moment are taken in the order of their codes: kind * KIND + number.
KIND: Final = 1 << 56
ENDED: Final = 0  # task `number` ends: a compute is over, a message has arrived
KNOWN: Final = 1  # the dispatcher hears that message `number` arrived
FREED: Final = 2  # packet switch: port `number` has sent its last bit
JOINED: Final = 3  # message `number` takes its place in a queue
ASKED: Final = 4  # the dispatcher hears that message `number` is ready
BEGUN: Final = 5  # with lookahead: the dispatcher hears that message `number` began

READY: Final = 0  # rows of `times`
START: Final = 1
END: Final = 2

N_HEAP: Final = 0  # `tally`: events in the heap
N_FRESH: Final = 1  # messages in `fresh`
N_DONE: Final = 2  # tasks that have ended
COUNTS: Final = 3

COMPUTE: Final = 0
MESSAGE: Final = 1


class Progress(NamedTuple):
    """How far an execution is. `times` has shape (3, total): ready, start, end; -1 not yet.

    `missing` counts each task's unfinished predecessors, `fresh` lists messages that became ready
    and were not looked at, `stack` is scratch of shape (total,), `heap` holds rows (time, code).
    """

    times: Int64s
    missing: Int64s
    fresh: Int64s
    stack: Int64s
    heap: Int64s
    tally: Int64s


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
def begin(work: Work, progress: Progress, task: int, now_ns: int, depth: int) -> int:
    """Make a task ready now. One that takes no time ends too: it is put on the stack."""
    times, tally = progress.times, progress.tally
    times[READY, task] = now_ns
    if work.kind[task] == MESSAGE:
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
    """End a task now; messages that become ready by it are in `fresh`."""
    progress.stack[0] = task
    settle(work, progress, now_ns, 1)


@lean_kernel
def begin_all(work: Work, progress: Progress) -> None:
    """Begin at time zero the tasks that wait for nothing."""
    for task in range(len(work.kind)):
        if work.indegree[task] == 0:
            settle(work, progress, 0, begin(work, progress, task, 0, 0))
