"""The event loop of timed programs with direct routing, and the log of their circuits.

In a slot a port leads to one destination, so every queue (source, destination) has its windows to
itself: when a message joins, all of its future is known, and idle slots cost nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from scheduler.dispatch._kernels_columns import EV_START, EV_TICK, R_HORIZON
from scheduler.dispatch._kernels_dispatch import dispatch
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
from scheduler.dispatch._kernels_grants import carry_out, grown
from scheduler.dispatch._kernels_rows import wire_ns
from scheduler.kernel import kernel, lean_kernel

if TYPE_CHECKING:
    from scheduler.dispatch._kernels_columns import State
    from scheduler.dispatch._kernels_grants import Lines
    from scheduler.dispatch.layout import Work
    from scheduler.model.taskgraph import Int64s

__all__ = ["PIECE_COLUMNS", "Queues", "bytes_within", "log_circuits", "run_direct", "window"]

# `lanes`: a port that connects a queue's pair at times.
LANE_FIRST: Final = 0  # its windows in `windows`, by time within the cycle
LANE_COUNT: Final = 1
LANE_PORT: Final = 2
LANE_RATE: Final = 3  # bit/s
LANE_COLD: Final = 4  # nothing is lit before, ns after time zero
LANE_FREE: Final = 5  # when its last piece has left, ns
LANE_ON: Final = 6  # scratch: its present or next window
LANE_OFF: Final = 7
LANE_AT: Final = 8  # and its row in `windows`
LANE_NEXT: Final = 9  # two hops: when it is served next, -1 never
LANE_COLUMNS: Final = 10

# Pieces of messages as they leave: last bit, latency excluded.
PIECE_TASK: Final = 0
PIECE_PORT: Final = 1
PIECE_BYTES: Final = 2
PIECE_START: Final = 3
PIECE_LAST: Final = 4
PIECE_HOP: Final = 5  # two hops only, like the next: 1 from a relay, else 0
PIECE_TO: Final = 6  # the node it goes to
PIECE_COLUMNS: Final = 7


class Queues(NamedTuple):
    """The virtual output queues that messages use.

    `of` is each base message's queue; queue q owns lanes `lane_ptr[q]:lane_ptr[q+1]`; `windows`
    holds (on, off, dst_port): ns after the cycle's begin, guard excluded; `cycle` is [period_ns,
    phase_ns].
    """

    of: Int64s
    lane_ptr: Int64s
    lanes: Int64s
    windows: Int64s
    cycle: Int64s


@lean_kernel
def bytes_within(time_ns: int, rate_bps: int) -> int:
    """Return how many whole bytes leave in `time_ns`: the most whose `wire_ns` fits."""
    size = int(time_ns * (rate_bps / 8e9))
    while size > 0 and wire_ns(size, rate_bps) > time_ns:
        size -= 1
    while wire_ns(size + 1, rate_bps) <= time_ns:
        size += 1
    return size


@lean_kernel
def window(queues: Queues, lane: int, now_ns: int) -> None:
    """Set the lane's LANE_ON and LANE_OFF to the first window that ends after `now_ns`.

    One that ends before anything can be lit is none.
    """
    line, windows = queues.lanes[lane], queues.windows
    now_ns = max(now_ns, line[LANE_COLD])
    period_ns, phase_ns = queues.cycle[0], queues.cycle[1]
    first, last = line[LANE_FIRST], line[LANE_FIRST] + line[LANE_COUNT] - 1
    cycle = (now_ns - phase_ns) // period_ns
    base_ns = phase_ns + cycle * period_ns
    at = last  # the last window of the cycle before may reach into this one
    if windows[last, 1] - period_ns > now_ns - base_ns:
        base_ns -= period_ns
    elif windows[last, 1] <= now_ns - base_ns:
        base_ns += period_ns
        at = first
    else:  # the first window whose end lies after now
        low, high = first, last
        while low < high:
            middle = (low + high) >> 1
            if windows[middle, 1] > now_ns - base_ns:
                high = middle
            else:
                low = middle + 1
        at = low
    line[LANE_AT] = at
    line[LANE_ON] = max(base_ns + windows[at, 0], line[LANE_COLD])
    line[LANE_OFF] = base_ns + windows[at, 1]


@lean_kernel
def record(
    pieces: Int64s, size: int, task: int, lane: Int64s, amount: int, start_ns: int, last_ns: int
) -> int:
    """Note a piece; one that goes on where the message's last one on that port ended joins it.

    One that begins with its span never does: it may have another circuit.
    """
    port = lane[LANE_PORT]
    newest = size - 1 if lane[LANE_ON] != start_ns else -1
    for back in range(newest, max(size - 9, -1), -1):
        piece = pieces[back]
        if piece[PIECE_TASK] != task:
            break
        if piece[PIECE_PORT] == port and piece[PIECE_LAST] == start_ns:
            piece[PIECE_BYTES] += amount
            piece[PIECE_LAST] = last_ns
            return size
    piece = pieces[size]
    piece[PIECE_TASK] = task
    piece[PIECE_PORT] = port
    piece[PIECE_BYTES] = amount
    piece[PIECE_START] = start_ns
    piece[PIECE_LAST] = last_ns
    return size + 1


@lean_kernel
def sent_by(queues: Queues, first: int, last: int, begun_ns: int, time_ns: int) -> int:
    """Return how many bytes the spans that began by `begun_ns` have sent by `time_ns`."""
    amount = 0
    for lane in range(first, last):
        line = queues.lanes[lane]
        if line[LANE_ON] <= begun_ns:
            amount += bytes_within(time_ns - line[LANE_ON], line[LANE_RATE])
    return amount


@lean_kernel
def finish_ns(queues: Queues, first: int, last: int, left: int, now_ns: int) -> int:
    """Return when the spans that have begun will have sent `left` bytes; none ends before."""
    rate_bps = 0
    for lane in range(first, last):
        if queues.lanes[lane, LANE_ON] <= now_ns:
            rate_bps += queues.lanes[lane, LANE_RATE]
    rest = left - sent_by(queues, first, last, now_ns, now_ns) - (last - first)
    time_ns = now_ns + (wire_ns(rest, rate_bps) if rest > 0 else 0)  # no later than the answer
    while sent_by(queues, first, last, now_ns, time_ns) < left:
        time_ns += 1
    return time_ns


@lean_kernel
def next_span(queues: Queues, lane: int, now_ns: int) -> None:
    """Set the lane's LANE_ON and LANE_OFF to what is left of its next window from `now_ns` on."""
    window(queues, lane, now_ns)
    queues.lanes[lane, LANE_ON] = max(queues.lanes[lane, LANE_ON], now_ns)


@kernel
def drain_fluid(
    queues: Queues, queue: int, task: int, left: int, ready_ns: int, pieces: Int64s, size: int
) -> tuple[int, int, Int64s, int]:
    """Send a message as a stream of bytes over every lane that is lit, until it has left.

    Each lane sends the whole bytes that fit into the time it is lit; of the last bytes the first
    lanes take theirs first. Returns start, end, pieces, how many.
    """
    lanes, first, last = queues.lanes, queues.lane_ptr[queue], queues.lane_ptr[queue + 1]
    start_ns, now_ns = 1 << 62, max(ready_ns, lanes[first, LANE_FREE])
    for lane in range(first, last):
        next_span(queues, lane, now_ns)
    while left > 0:
        change_ns = 1 << 62
        for lane in range(first, last):
            edge = LANE_OFF if lanes[lane, LANE_ON] <= now_ns else LANE_ON
            change_ns = min(change_ns, lanes[lane, edge])
        done = sent_by(queues, first, last, now_ns, change_ns) >= left
        end_ns = finish_ns(queues, first, last, left, now_ns) if done else change_ns
        pieces = grown(pieces, size, last - first)
        for lane in range(first, last):
            line = lanes[lane]
            if line[LANE_ON] > now_ns or not (done or line[LANE_OFF] <= end_ns):
                continue
            amount = min(left, bytes_within(end_ns - line[LANE_ON], line[LANE_RATE]))
            if amount > 0:
                start_ns = min(start_ns, line[LANE_ON])
                size = record(pieces, size, task, line, amount, line[LANE_ON], end_ns)
                left -= amount
            next_span(queues, lane, end_ns)
        now_ns = end_ns
    lanes[first, LANE_FREE] = now_ns
    return start_ns, now_ns, pieces, size


@kernel
def drain_frames(
    queues: Queues,
    queue: int,
    task: int,
    left: int,
    ready_ns: int,
    quantum_bytes: int,
    pieces: Int64s,
    size: int,
) -> tuple[int, int, Int64s, int]:
    """Send a message in frames: the lane that can begin first takes the next one.

    A frame is cut to fit its slot; a lane with no room for a byte waits for its next window.
    Returns start, end, pieces, how many.
    """
    lanes, first, last = queues.lanes, queues.lane_ptr[queue], queues.lane_ptr[queue + 1]
    start_ns, end_ns = -1, -1
    while left > 0:
        best, best_ns, most = first, 1 << 62, 0
        for lane in range(first, last):
            room = 0
            begin_ns = max(ready_ns, lanes[lane, LANE_FREE])
            while room < 1:
                window(queues, lane, begin_ns)
                begin_ns = max(begin_ns, lanes[lane, LANE_ON])
                room = bytes_within(lanes[lane, LANE_OFF] - begin_ns, lanes[lane, LANE_RATE])
                if room < 1:
                    begin_ns = lanes[lane, LANE_OFF]
            if begin_ns < best_ns:
                best, best_ns, most = lane, begin_ns, room
        amount = min(quantum_bytes, left, most)
        last_ns = best_ns + wire_ns(amount, lanes[best, LANE_RATE])
        pieces = grown(pieces, size, 1)
        size = record(pieces, size, task, lanes[best], amount, best_ns, last_ns)
        lanes[best, LANE_FREE] = last_ns
        left -= amount
        start_ns = best_ns if start_ns < 0 else start_ns
        end_ns = max(end_ns, last_ns)
    return start_ns, end_ns, pieces, size


@kernel
def run_direct(
    work: Work, progress: Progress, queues: Queues, latency_ns: int, quantum_bytes: int
) -> tuple[Int64s, int]:
    """Run until nothing happens any more; returns the pieces sent and how many there are."""
    pieces, size, tasks = np.empty((64, PIECE_COLUMNS), np.int64), 0, len(queues.of)
    now_ns = 0
    begin_all(work, progress)
    while True:
        for k in range(progress.tally[N_FRESH]):
            push(progress, now_ns, JOINED * KIND + progress.fresh[k])
        progress.tally[N_FRESH] = 0
        if progress.tally[N_HEAP] == 0:
            return pieces, size
        now_ns, code = pop(progress)
        kind, task = code // KIND, code % KIND
        if take_in(work, progress, kind, task, now_ns):
            continue
        queue = queues.of[task % tasks]
        if queues.lane_ptr[queue] == queues.lane_ptr[queue + 1]:
            continue  # nothing ever connects the pair
        left = work.size_bytes[task]
        if quantum_bytes == 0:
            start_ns, end_ns, pieces, size = drain_fluid(
                queues, queue, task, left, now_ns, pieces, size
            )
        else:
            start_ns, end_ns, pieces, size = drain_frames(
                queues, queue, task, left, now_ns, quantum_bytes, pieces, size
            )
        progress.times[START, task] = start_ns
        progress.times[END, task] = end_ns + latency_ns
        push(progress, end_ns + latency_ns, ENDED * KIND + task)
        leaves(progress, task, end_ns)


@kernel
def log_circuits(state: State, lines: Lines, log: Int64s, until_ns: int) -> tuple[Int64s, int]:
    """Let the dispatcher write its slots up to `until_ns` into a log of circuits."""
    now_ns, size, event = 0, 0, EV_START
    while now_ns <= until_ns:
        rows = dispatch(state, now_ns, event, 0)
        log = grown(log, size, rows)
        for k in range(rows):
            size = carry_out(state, lines, log, size, state.core.actions[k])
        now_ns += max(state.core.rule[R_HORIZON], 1)
        event = EV_TICK
    return log, size
