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
    finish,
    pop,
    push,
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
from scheduler.dispatch._kernels_rows import wire_ns
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
def sent_by(
    sharing: Sharing, queues: Queues, queue: int, since_ns: int, time_ns: int
) -> float:
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
    pieces: Int64s, size: int, task: int, port: int, to: int, amount: int, start_ns: int, last_ns: int
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
            amount = min(
                bytes_within(now_ns - line[LANE_ON], line[LANE_RATE]), sharing.left[queue]
            )
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
    progress: Progress, sharing: Sharing, queues: Queues, queue: int, now_ns: int, pieces: Int64s,
    size: int, latency_ns: int,
) -> int:
    """Note the pieces of a head that is gone, and take it off its queue."""
    task = sharing.head[queue]
    begun_ns = progress.times[START, task]
    total = sharing.left[queue]
    on_planes = 0.0
    for plane in range(len(sharing.rate)):
        on_planes += sharing.sent[plane, queue]
    if on_planes < 0.5:  # circuits alone: theirs are whole bytes and suffice
        size = close_lanes(sharing, queues, queue, now_ns, pieces, size)
        total = 0
    else:
        for lane in range(queues.lane_ptr[queue], queues.lane_ptr[queue + 1]):
            line = queues.lanes[lane]
            if line[LANE_ON] < now_ns:
                share = bytes_within(now_ns - line[LANE_ON], line[LANE_RATE])
                share = min(share, total)
                size = note(
                    pieces, size, task, line[LANE_PORT], sharing.dst[queue], share, line[LANE_ON],
                    now_ns,
                )  # fmt: skip
                total -= share
    last = -1
    for plane in range(len(sharing.rate)):
        if sharing.sent[plane, queue] >= 0.5:
            last = plane
    gone = 0.0
    given = 0
    for plane in range(len(sharing.rate)):
        gone += sharing.sent[plane, queue]
        if total <= 0 or sharing.sent[plane, queue] < 0.5:
            continue
        share = total - given if plane == last else min(int(gone), total) - given
        size = note(
            pieces, size, task, sharing.port[plane, sharing.src[queue]], sharing.dst[queue], share,
            begun_ns, now_ns,
        )  # fmt: skip
        given += share
    progress.times[END, task] = now_ns + latency_ns
    push(progress, now_ns + latency_ns, ENDED * KIND + task)
    sharing.head[queue] = sharing.after[task]
    return size
