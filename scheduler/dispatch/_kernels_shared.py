"""The event loop of timed programs with packet planes, whose ports queues share max-min fairly.

Every queue (source, destination) that holds something is a flow on each packet plane that joins its
nodes, and takes whatever circuits connect it besides. A flow takes no more than one port's rate.
All flows of a plane grow together until a port is full, whose flows then stay as they are, and so
on (progressive filling: Bertsekas and Gallager, Data Networks, 1992). Rates change when a queue
begins or ends a message and when a circuit comes or goes. Bytes flow; frames do not matter here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from scheduler.dispatch._kernels_events import (
    END,
    ENDED,
    JOINED,
    KIND,
    N_FRESH,
    N_HEAP,
    START,
    Progress,
    begin_all,
    leaves,
    pop,
    push,
    take_in,
)
from scheduler.dispatch._kernels_grants import grown
from scheduler.dispatch._kernels_timed import (
    LANE_OFF,
    LANE_ON,
    LANE_PORT,
    LANE_RATE,
    PIECE_BYTES,
    PIECE_COLUMNS,
    PIECE_HOP,
    PIECE_LAST,
    PIECE_PORT,
    PIECE_START,
    PIECE_TASK,
    PIECE_TO,
    Queues,
    bytes_within,
    next_span,
)
from scheduler.kernel import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scheduler.dispatch.layout import Work
    from scheduler.model.taskgraph import Int64s

__all__ = ["Sharing", "run_shared"]

_NEVER: Final = 1 << 62
_DUST: Final = 1e-6  # bytes; what floating point leaves of a message


class Sharing(NamedTuple):
    """The packet planes, and what is under way.

    Per plane and node: `room`, how much its ports take together, bytes/ns, shape (planes, nodes),
    and `port`, the first of them, -1 none; `most` (planes,), what one port takes. Per queue: `src`,
    `dst` (nodes), `head`, `tail` (messages, -1 none), `left`, bytes of its head that have not left,
    `rate` and `sent` (planes, queues), bytes/ns now and bytes of its head. `after`, (total,), links
    the messages of a queue.
    """

    room: NDArray[np.float64]
    most: NDArray[np.float64]
    port: Int64s
    src: Int64s
    dst: Int64s
    head: Int64s
    tail: Int64s
    left: Int64s
    rate: NDArray[np.float64]
    sent: NDArray[np.float64]
    after: Int64s


@kernel
def fill(sharing: Sharing, plane: int) -> None:
    """Set the rates of one plane: max-min fair among the queues that hold something."""
    rate, src, dst = sharing.rate[plane], sharing.src, sharing.dst
    room = sharing.room[plane]
    out, into = room.copy(), room.copy()
    growing = np.zeros(len(rate), np.bool_)
    count = 0
    for q in range(len(rate)):
        rate[q] = 0.0
        if sharing.head[q] >= 0 and room[src[q]] > 0 and room[dst[q]] > 0:
            growing[q] = True
            count += 1
    level, most = 0.0, sharing.most[plane]
    while count > 0 and level < most:
        sending, receiving = np.zeros(len(room), np.int64), np.zeros(len(room), np.int64)
        for q in range(len(rate)):
            if growing[q]:
                sending[src[q]] += 1
                receiving[dst[q]] += 1
        step = most - level
        for node in range(len(room)):
            if sending[node] > 0:
                step = min(step, out[node] / sending[node])
            if receiving[node] > 0:
                step = min(step, into[node] / receiving[node])
        level += step
        for node in range(len(room)):
            out[node] -= step * sending[node]
            into[node] -= step * receiving[node]
        full = _DUST * most
        for q in range(len(rate)):
            if growing[q]:
                rate[q] = level
                if out[src[q]] <= full or into[dst[q]] <= full:
                    growing[q] = False
                    count -= 1


@kernel
def through_lanes(queues: Queues, queue: int, time_ns: int) -> int:
    """Return how many whole bytes the queue's lit circuits have sent since they began, by then."""
    amount = 0
    for lane in range(queues.lane_ptr[queue], queues.lane_ptr[queue + 1]):
        line = queues.lanes[lane]
        if line[LANE_ON] < time_ns:
            amount += bytes_within(time_ns - line[LANE_ON], line[LANE_RATE])
    return amount


@kernel
def sent_by(sharing: Sharing, queues: Queues, queue: int, since_ns: int, time_ns: int) -> float:
    """Return how much of the head is gone by `time_ns` if nothing changes after `since_ns`."""
    amount = float(through_lanes(queues, queue, time_ns))
    for plane in range(len(sharing.rate)):
        amount += sharing.sent[plane, queue] + sharing.rate[plane, queue] * (time_ns - since_ns)
    return amount


@kernel
def done_ns(sharing: Sharing, queues: Queues, queue: int, since_ns: int, until_ns: int) -> int:
    """Return the first moment by which the head is gone, no later than `until_ns`; else that."""
    left = sharing.left[queue] - _DUST
    if sent_by(sharing, queues, queue, since_ns, until_ns) < left:
        return until_ns
    low, high = since_ns, until_ns  # gone by high
    while low < high:
        middle = (low + high) >> 1
        if sent_by(sharing, queues, queue, since_ns, middle) >= left:
            high = middle
        else:
            low = middle + 1
    return high


@kernel
def note(
    pieces: Int64s,
    size: int,
    task: int,
    port: int,
    to: int,
    amount: int,
    start_ns: int,
    last_ns: int,
) -> int:
    """Append a piece, unless it is empty."""
    if amount <= 0:
        return size
    piece = pieces[size]
    piece[PIECE_TASK] = task
    piece[PIECE_PORT] = port
    piece[PIECE_BYTES] = amount
    piece[PIECE_START] = start_ns
    piece[PIECE_LAST] = last_ns
    piece[PIECE_HOP] = 0
    piece[PIECE_TO] = to
    return size + 1


@kernel
def close_lanes(
    sharing: Sharing, queues: Queues, queue: int, now_ns: int, pieces: Int64s, size: int
) -> int:
    """End the pieces of lit lanes at `now_ns`, and look for their next light from then on."""
    for lane in range(queues.lane_ptr[queue], queues.lane_ptr[queue + 1]):
        line = queues.lanes[lane]
        if line[LANE_ON] < now_ns:
            amount = min(bytes_within(now_ns - line[LANE_ON], line[LANE_RATE]), sharing.left[queue])
            size = note(
                pieces, size, sharing.head[queue], line[LANE_PORT], sharing.dst[queue], amount,
                line[LANE_ON], now_ns,
            )  # fmt: skip
            sharing.left[queue] -= amount
        next_span(queues, lane, now_ns)
    return size


@kernel
def begin_head(
    work: Work, progress: Progress, sharing: Sharing, queues: Queues, queue: int, now_ns: int
) -> None:
    """Let the head of a queue begin."""
    sharing.left[queue] = work.size_bytes[sharing.head[queue]]
    sharing.sent[:, queue] = 0.0
    for lane in range(queues.lane_ptr[queue], queues.lane_ptr[queue + 1]):
        next_span(queues, lane, now_ns)
    progress.times[START, sharing.head[queue]] = now_ns


@kernel
def end_head(
    progress: Progress,
    sharing: Sharing,
    queues: Queues,
    queue: int,
    now_ns: int,
    pieces: Int64s,
    size: int,
) -> int:
    """Note the pieces of a head that is gone, and take it off its queue.

    Circuits sent whole bytes; of the rest each plane has what it sent, rounded, and the last one
    what remains.
    """
    task = sharing.head[queue]
    size = close_lanes(sharing, queues, queue, now_ns, pieces, size)
    rest, last = sharing.left[queue], -1
    for plane in range(len(sharing.rate)):
        if sharing.sent[plane, queue] > 0:
            last = plane
    for plane in range(last + 1):
        amount = rest if plane == last else min(rest, int(sharing.sent[plane, queue] + 0.5))
        size = note(
            pieces, size, task, sharing.port[plane, sharing.src[queue]], sharing.dst[queue], amount,
            progress.times[START, task], now_ns,
        )  # fmt: skip
        rest -= amount
    sharing.head[queue] = sharing.after[task]
    return size


@kernel
def next_change_ns(sharing: Sharing, queues: Queues, since_ns: int) -> int:
    """Return when the first head is gone or the first circuit of an active queue comes or goes."""
    change_ns = _NEVER
    for queue in range(len(sharing.head)):
        if sharing.head[queue] < 0:
            continue
        for lane in range(queues.lane_ptr[queue], queues.lane_ptr[queue + 1]):
            line = queues.lanes[lane]
            change_ns = min(
                change_ns, line[LANE_ON] if line[LANE_ON] > since_ns else line[LANE_OFF]
            )
    for queue in range(len(sharing.head)):
        if sharing.head[queue] < 0:
            continue
        total = 0.0
        for plane in range(len(sharing.rate)):
            total += sharing.rate[plane, queue]
        if total > 0:  # no later than the planes alone would need
            left = sharing.left[queue]
            for plane in range(len(sharing.rate)):
                left -= sharing.sent[plane, queue]
            change_ns = min(change_ns, since_ns + int(max(left, 0.0) / total) + 1)
    for queue in range(len(sharing.head)):
        if sharing.head[queue] >= 0 and change_ns < _NEVER:
            change_ns = done_ns(sharing, queues, queue, since_ns, change_ns)
    return change_ns


@kernel
def advance(sharing: Sharing, since_ns: int, now_ns: int) -> None:
    """Let the packet planes send until now."""
    for plane in range(len(sharing.rate)):
        for queue in range(len(sharing.head)):
            if sharing.head[queue] >= 0:
                sharing.sent[plane, queue] += sharing.rate[plane, queue] * (now_ns - since_ns)


@kernel
def run_shared(
    work: Work, progress: Progress, queues: Queues, sharing: Sharing, latency_ns: int
) -> tuple[Int64s, int]:
    """Run until nothing happens any more; returns the pieces sent and how many there are.

    Every change costs O(flows * ports that fill), so this is a reference and not made for scale.
    """
    pieces, size, tasks = np.empty((64, PIECE_COLUMNS), np.int64), 0, len(queues.of)
    lanes = len(queues.lanes) + len(sharing.rate)
    since_ns = now_ns = 0
    begin_all(work, progress)
    while True:
        for k in range(progress.tally[N_FRESH]):
            push(progress, now_ns, JOINED * KIND + progress.fresh[k])
        progress.tally[N_FRESH] = 0
        event_ns = progress.heap[0, 0] if progress.tally[N_HEAP] > 0 else _NEVER
        if event_ns > now_ns:  # all that happens now has happened: time goes on
            for plane in range(len(sharing.rate)):
                fill(sharing, plane)
            now_ns = min(event_ns, next_change_ns(sharing, queues, since_ns))
            if now_ns == _NEVER:
                return pieces, size
            advance(sharing, since_ns, now_ns)
            for queue in range(len(sharing.head)):
                task = sharing.head[queue]
                if task < 0:
                    continue
                pieces = grown(pieces, size, lanes)
                if sent_by(sharing, queues, queue, now_ns, now_ns) >= sharing.left[queue] - _DUST:
                    size = end_head(progress, sharing, queues, queue, now_ns, pieces, size)
                    progress.times[END, task] = now_ns + latency_ns
                    push(progress, now_ns + latency_ns, ENDED * KIND + task)
                    leaves(progress, task, now_ns)
                    if sharing.head[queue] >= 0:
                        begin_head(work, progress, sharing, queues, queue, now_ns)
                    continue
                for lane in range(queues.lane_ptr[queue], queues.lane_ptr[queue + 1]):
                    if queues.lanes[lane, LANE_OFF] <= now_ns:
                        size = close_lanes(sharing, queues, queue, now_ns, pieces, size)
                        break
            since_ns = now_ns
            continue
        now_ns, code = pop(progress)
        kind, task = code // KIND, code % KIND
        if take_in(work, progress, kind, task, now_ns):
            continue
        queue = queues.of[task % tasks]
        sharing.after[task] = -1
        if sharing.head[queue] < 0:
            sharing.head[queue] = task
            begin_head(work, progress, sharing, queues, queue, now_ns)
        else:
            sharing.after[sharing.tail[queue]] = task
        sharing.tail[queue] = task
