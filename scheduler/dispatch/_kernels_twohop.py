"""The event loop of timed programs with two-hop routing: `vlb` and `rotorlb`.

While a port leads from node x to y it sends, in this order: what x stores for y on behalf of
others, x's own bytes for y, and, with what room is left, x's own bytes for third nodes, which y
stores and sends on when it is connected to them (RotorNet, SIGCOMM 2017). The room is shared among
x's destinations in turn. With `rotorlb` y accepts for a destination no more than one window holds
beyond what it already has for it; `vlb` accepts everything. Bytes move in frames: `quantum_bytes`,
or a sixteenth of the window.
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

__all__ = ["NODE_COLUMNS", "PAIR_COLUMNS", "Stores", "run_two_hops"]

STORED: Final = 2  # event: piece `number` has arrived at its relay
SERVED: Final = 4  # event: lane `number` may send
FRAMES: Final = 16  # per window, unless the quantum says otherwise

# `pair`, a row per (node, destination): node * nodes + destination.
OWN_HEAD: Final = 0  # the node's own messages for the destination, FIFO
OWN_TAIL: Final = 1
OWN_BYTES: Final = 2
VIA_HEAD: Final = 3  # pieces it stores for the destination, FIFO
VIA_TAIL: Final = 4
VIA_BYTES: Final = 5  # stored or on their way to it
JOINED_AT_TIMES: Final = 6  # 1: some window leads from the node to the destination
REACHED: Final = 7  # 1: the destination can be reached in one hop or two
PAIR_COLUMNS: Final = 8

# `node`, a row per node.
TURN: Final = 0  # the destination whose turn it is to use a relay
OWN: Final = 1  # destinations it has own bytes for
VIA: Final = 2  # bytes it stores
NODE_COLUMNS: Final = 3


class Stores(NamedTuple):
    """What waits where. `left`, `moved`, `after` have shape (total,) of messages.

    `left` counts the bytes not yet sent by the source, `moved` those on their last hop or arrived;
    `node_lane[node_lane_ptr[x]:node_lane_ptr[x+1]]` are the lanes of node x; `lane_node` is a
    lane's node and `port_node` each port's.
    """

    pair: Int64s
    node: Int64s
    left: Int64s
    moved: Int64s
    after: Int64s
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
    )


@lean_kernel
def wake(queues: Queues, stores: Stores, progress: Progress, node: int, now_ns: int) -> None:
    """Let the lanes of a node that has something new send as soon as they can."""
    for at in range(stores.node_lane_ptr[node], stores.node_lane_ptr[node + 1]):
        lane = stores.node_lane[at]
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


@lean_kernel
def own_taken(stores: Stores, node: int, pair: int, message: int, amount: int) -> None:
    """Take bytes off the head of one of a node's own queues."""
    row = stores.pair[pair]
    stores.left[message] -= amount
    row[OWN_BYTES] -= amount
    if stores.left[message] == 0:
        row[OWN_HEAD] = stores.after[message]
    if row[OWN_HEAD] < 0:
        stores.node[node, OWN] -= 1


@lean_kernel
def choose(
    queues: Queues, stores: Stores, lane: int, room: int, whole: int, cap: int, admission: bool
) -> tuple[int, int, int]:
    """Choose what a lane sends next: (destination, bytes, stored piece or -1); bytes 0: nothing."""
    nodes = len(stores.node)
    x = stores.lane_node[lane]
    y = stores.port_node[queues.windows[queues.lanes[lane, LANE_AT], 2]]
    straight = stores.pair[x * nodes + y]
    most = min(cap, room)
    if straight[VIA_HEAD] >= 0:
        return y, most, straight[VIA_HEAD]
    if straight[OWN_HEAD] >= 0:
        return y, min(most, stores.left[straight[OWN_HEAD]]), -1
    if stores.node[x, OWN] == 0:
        return y, 0, -1
    share = max(room // stores.node[x, OWN], 1)
    for step in range(nodes):
        d = (stores.node[x, TURN] + step) % nodes
        row = stores.pair[x * nodes + d]
        held = stores.pair[y * nodes + d]
        if row[OWN_HEAD] < 0 or held[JOINED_AT_TIMES] == 0:
            continue
        amount = min(most, share, stores.left[row[OWN_HEAD]])
        if admission:
            amount = min(amount, whole - held[OWN_BYTES] - held[VIA_BYTES])
        if amount > 0:
            stores.node[x, TURN] = (d + 1) % nodes
            return d, amount, -1
    return y, 0, -1


@kernel
def run_two_hops(
    work: Work,
    progress: Progress,
    queues: Queues,
    stores: Stores,
    latency_ns: int,
    quantum_bytes: int,
    admission: bool,
) -> tuple[Int64s, int]:
    """Run until nothing happens any more; returns the pieces sent and how many there are."""
    pieces, size, nodes = np.empty((64, PIECE_COLUMNS), np.int64), 0, len(stores.node)
    waiting = np.empty((64, 2), np.int64)  # per piece: bytes stored at its relay, next in the FIFO
    lanes, now_ns = queues.lanes, 0
    begin_all(work, progress)
    while True:
        progress = roomy(progress, progress.tally[N_FRESH] + len(lanes) + 4)
        for k in range(progress.tally[N_FRESH]):
            push(progress, now_ns, JOINED * KIND + progress.fresh[k])
        progress.tally[N_FRESH] = 0
        if progress.tally[N_HEAP] == 0:
            return pieces, size
        now_ns, code = pop(progress)
        kind, arg = code // KIND, code % KIND
        if kind == ENDED:
            finish(work, progress, arg, now_ns)
        elif kind == JOINED:
            x, d = work.src[arg], work.dst[arg]
            row = stores.pair[x * nodes + d]
            if row[REACHED] == 0:
                continue  # it would wait for ever
            stores.left[arg] = work.size_bytes[arg]
            stores.after[arg] = -1
            row[OWN_BYTES] += work.size_bytes[arg]
            if row[OWN_HEAD] < 0:
                row[OWN_HEAD] = arg
                stores.node[x, OWN] += 1
            else:
                stores.after[row[OWN_TAIL]] = arg
            row[OWN_TAIL] = arg
            wake(queues, stores, progress, x, now_ns)
        elif kind == STORED:
            y, amount = pieces[arg, PIECE_TO], pieces[arg, PIECE_BYTES]
            row = stores.pair[y * nodes + work.dst[pieces[arg, PIECE_TASK]]]
            waiting[arg, 0] = amount
            waiting[arg, 1] = -1
            if row[VIA_HEAD] < 0:
                row[VIA_HEAD] = arg
            else:
                waiting[row[VIA_TAIL], 1] = arg
            row[VIA_TAIL] = arg
            stores.node[y, VIA] += amount
            wake(queues, stores, progress, y, now_ns)
        elif kind == SERVED:
            line = lanes[arg]
            if line[LANE_NEXT] != now_ns:
                continue  # it was called sooner
            line[LANE_NEXT] = -1
            window(queues, arg, now_ns)
            x = stores.lane_node[arg]
            room = bytes_within(line[LANE_OFF] - now_ns, line[LANE_RATE])
            whole = bytes_within(line[LANE_OFF] - line[LANE_ON], line[LANE_RATE])
            cap = quantum_bytes if quantum_bytes > 0 else max(whole // FRAMES, 1)
            d, amount, stored = choose(queues, stores, arg, room, whole, cap, admission)
            if stored >= 0:
                amount = min(amount, waiting[stored, 0])
            if amount < 1:
                if stores.node[x, OWN] > 0 or stores.node[x, VIA] > 0:
                    call(queues, progress, arg, line[LANE_OFF])
                continue
            y = stores.port_node[queues.windows[line[LANE_AT], 2]]
            row = stores.pair[x * nodes + d]
            last_ns = now_ns + wire_ns(amount, line[LANE_RATE])
            if stored >= 0:
                task = pieces[stored, PIECE_TASK]
                waiting[stored, 0] -= amount
                row[VIA_BYTES] -= amount
                stores.node[x, VIA] -= amount
                if waiting[stored, 0] == 0:
                    row[VIA_HEAD] = waiting[stored, 1]
            else:
                task = row[OWN_HEAD]
                if progress.times[START, task] < 0:
                    progress.times[START, task] = now_ns
                own_taken(stores, x, x * nodes + d, task, amount)
            pieces, waiting = grown(pieces, size, 1), grown(waiting, size, 1)
            pieces[size, PIECE_TASK] = task
            pieces[size, PIECE_PORT] = line[LANE_PORT]
            pieces[size, PIECE_BYTES] = amount
            pieces[size, PIECE_START] = now_ns
            pieces[size, PIECE_LAST] = last_ns
            pieces[size, PIECE_HOP] = 1 if stored >= 0 else 0
            pieces[size, PIECE_TO] = y
            if y == d:
                stores.moved[task] += amount
                progress.times[END, task] = max(progress.times[END, task], last_ns + latency_ns)
                if stores.moved[task] == work.size_bytes[task]:
                    push(progress, progress.times[END, task], ENDED * KIND + task)
            else:
                stores.pair[y * nodes + d, VIA_BYTES] += amount
                push(progress, last_ns + latency_ns, STORED * KIND + size)
            size += 1
            line[LANE_FREE] = last_ns
            call(queues, progress, arg, last_ns)
