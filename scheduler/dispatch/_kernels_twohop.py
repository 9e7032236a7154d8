"""The event loop of timed programs with two-hop routing: `vlb` and `rotorlb`.

What waits where and what goes next is `_kernels_relays`, which the engine asks too. Bytes move in
frames: `quantum_bytes`, or a sixteenth of the window.
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
from scheduler.dispatch._kernels_relays import (
    REACHED,
    Relays,
    append,
    choose,
    promise,
    take,
    waits,
    with_room,
)
from scheduler.dispatch._kernels_rows import wire_ns
from scheduler.dispatch._kernels_timed import (
    LANE_AT,
    LANE_FREE,
    LANE_NEXT,
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
    window,
)
from scheduler.kernel import kernel, lean_kernel

if TYPE_CHECKING:
    from scheduler.dispatch.layout import Work
    from scheduler.model.taskgraph import Int64s

__all__ = ["Outputs", "run_two_hops"]

STORED: Final = 4  # event: piece `number` has arrived at its relay
SERVED: Final = 6  # event: lane `number` may send
FRAMES: Final = 16  # per window, unless the quantum says otherwise


class Outputs(NamedTuple):
    """Which lanes are whose, and how much of each message is on its last hop or arrived.

    `node_lane[node_lane_ptr[x]:node_lane_ptr[x+1]]` are the lanes of node x; `lane_node` is a
    lane's node and `port_node` each port's. `moved` has shape (total,). So have, with finite NIC
    buffers, the columns of `own`: how much has left its source, and when its last bit does.
    """

    moved: Int64s
    own: Int64s
    node_lane_ptr: Int64s
    node_lane: Int64s
    lane_node: Int64s
    port_node: Int64s


@kernel
def roomy(progress: Progress, more: int) -> Progress:
    """Return the same progress, with room for `more` events in its heap."""
    return Progress(
        progress.times,
        progress.missing,
        progress.fresh,
        progress.stack,
        grown(progress.heap, progress.tally[N_HEAP], more),
        progress.tally,
        progress.admitted,
        progress.room,
    )


@lean_kernel
def leave_source(
    work: Work, progress: Progress, outputs: Outputs, task: int, amount: int, last_ns: int
) -> None:
    """Count bytes of a message that leave its source until `last_ns`, and note when the last do."""
    line = outputs.own[task]
    line[0] += amount
    line[1] = max(line[1], last_ns)
    if line[0] == work.size_bytes[task]:
        leaves(progress, task, line[1])


@lean_kernel
def wake(queues: Queues, outputs: Outputs, progress: Progress, node: int, now_ns: int) -> None:
    """Let the lanes of a node that has something new send as soon as they can."""
    for at in range(outputs.node_lane_ptr[node], outputs.node_lane_ptr[node + 1]):
        lane = outputs.node_lane[at]
        call(queues, progress, lane, max(now_ns, queues.lanes[lane, LANE_FREE]))


@lean_kernel
def call(queues: Queues, progress: Progress, lane: int, now_ns: int) -> None:
    """Have a lane served at its first chance from `now_ns` on, unless it already is sooner."""
    line = queues.lanes[lane]
    window(queues, lane, now_ns)
    time_ns = max(now_ns, line[LANE_ON])
    if line[LANE_NEXT] < 0 or time_ns < line[LANE_NEXT]:
        line[LANE_NEXT] = time_ns
        push(progress, time_ns, SERVED * KIND + lane)


@kernel
def run_two_hops(
    work: Work,
    progress: Progress,
    queues: Queues,
    outputs: Outputs,
    relays: Relays,
    latency_ns: int,
    quantum_bytes: int,
    admission: bool,
) -> tuple[Int64s, int]:
    """Run until nothing happens any more; returns the pieces sent and how many there are."""
    pieces, size, nodes = np.empty((64, PIECE_COLUMNS), np.int64), 0, len(relays.node)
    lanes, now_ns = queues.lanes, 0
    begin_all(work, progress)
    while True:
        progress = roomy(progress, len(work.kind) + len(lanes) + 4)
        for k in range(progress.tally[N_FRESH]):
            push(progress, now_ns, JOINED * KIND + progress.fresh[k])
        progress.tally[N_FRESH] = 0
        if progress.tally[N_HEAP] == 0:
            return pieces, size
        now_ns, code = pop(progress)
        kind, arg = code // KIND, code % KIND
        if take_in(work, progress, kind, arg, now_ns):
            continue
        if kind == JOINED:
            x, d = work.src[arg], work.dst[arg]
            if relays.pair[x * nodes + d, REACHED] == 0:
                continue  # it would wait for ever
            relays = with_room(relays)
            append(relays, x, d, 0, arg, 0, work.size_bytes[arg], now_ns)
            wake(queues, outputs, progress, x, now_ns)
        elif kind == STORED:
            task, y = pieces[arg, PIECE_TASK], pieces[arg, PIECE_TO]
            relays = with_room(relays)
            append(relays, y, work.dst[task], 1, task, 0, pieces[arg, PIECE_BYTES], now_ns)
            wake(queues, outputs, progress, y, now_ns)
        elif kind == SERVED:
            line = lanes[arg]
            if line[LANE_NEXT] != now_ns:
                continue  # it was called sooner
            line[LANE_NEXT] = -1
            window(queues, arg, now_ns)
            x = outputs.lane_node[arg]
            y = outputs.port_node[queues.windows[line[LANE_AT], 2]]
            room = bytes_within(line[LANE_OFF] - now_ns, line[LANE_RATE])
            whole = bytes_within(line[LANE_OFF] - line[LANE_ON], line[LANE_RATE])
            cap = quantum_bytes if quantum_bytes > 0 else max(whole // FRAMES, 1)
            d, amount, hop = choose(relays, x, y, room, whole, cap, admission)
            if amount < 1:
                if waits(relays, x):
                    call(queues, progress, arg, line[LANE_OFF])
                continue
            last_ns = now_ns + wire_ns(amount, line[LANE_RATE])
            task = take(relays, x, d, hop, amount)[0]
            if progress.times[START, task] < 0:
                progress.times[START, task] = now_ns
            if hop == 0 and progress.room.size[0] > 0:
                leave_source(work, progress, outputs, task, amount, last_ns)
            pieces = grown(pieces, size, 1)
            pieces[size, PIECE_TASK] = task
            pieces[size, PIECE_PORT] = line[LANE_PORT]
            pieces[size, PIECE_BYTES] = amount
            pieces[size, PIECE_START] = now_ns
            pieces[size, PIECE_LAST] = last_ns
            pieces[size, PIECE_HOP] = hop
            pieces[size, PIECE_TO] = y
            if y == d:
                outputs.moved[task] += amount
                progress.times[END, task] = max(progress.times[END, task], last_ns + latency_ns)
                if outputs.moved[task] == work.size_bytes[task]:
                    push(progress, progress.times[END, task], ENDED * KIND + task)
            else:
                promise(relays, y, d, amount)
                push(progress, last_ns + latency_ns, STORED * KIND + size)
            size += 1
            line[LANE_FREE] = last_ns
            call(queues, progress, arg, last_ns)
