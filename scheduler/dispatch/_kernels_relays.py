"""Two-hop routing: what waits at each node, and what an output sends next.

Simulator and engine both ask here. While an output leads from node x to y it sends, in this order:
what x stores for y on behalf of others, x's own bytes for y, and, with what room is left, x's own
bytes for third nodes, which y stores and sends on when it is connected to them: a frame for each
destination in turn (RotorNet, SIGCOMM 2017). With admission (`rotorlb`) y accepts a frame for a
destination only while all it has for it, its own bytes included, fits into one window; without
(`vlb`) it accepts everything. So the two differ where relays have more to send on than one window
takes, and only there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from scheduler.kernel import kernel, lean_kernel

if TYPE_CHECKING:
    from scheduler.model.taskgraph import Int64s

__all__ = [
    "CHUNK_COLUMNS",
    "NODE_COLUMNS",
    "PAIR_COLUMNS",
    "Relays",
    "append",
    "choose",
    "give_back",
    "has_room",
    "link",
    "new_chunk",
    "promise",
    "take",
    "waits",
    "with_room",
]

# `pair`, a row per (node, destination): node * nodes + destination. Two queues of chunks, FIFO:
# hop 0, the node's own bytes for the destination, and hop 1, what it stores for it.
HEAD: Final = 0  # and the same of hop 1 one further
TAIL: Final = 2
BYTES: Final = 4  # waiting; of hop 1 also what is on its way here
JOINED_AT_TIMES: Final = 6  # 1: some window leads from the node to the destination
REACHED: Final = 7  # 1: the destination can be reached in one hop or two
PAIR_COLUMNS: Final = 8

# `node`, a row per node.
TURN: Final = 0  # the destination whose turn it is to use a relay
OWN: Final = 1  # destinations it has own bytes for
STORED: Final = 2  # bytes it stores and has not sent
NODE_COLUMNS: Final = 3

# `chunks`, a row per run of a message's bytes that waits somewhere.
CH_TASK: Final = 0
CH_OFFSET: Final = 1
CH_BYTES: Final = 2
CH_SINCE: Final = 3  # when it came, ns
CH_NEXT: Final = 4  # behind it in its queue, or the next free row
CHUNK_COLUMNS: Final = 5


class Relays(NamedTuple):
    """The queues; `free` int64[1] is the first unused row of `chunks`, linked, -1 for none."""

    pair: Int64s
    node: Int64s
    chunks: Int64s
    free: Int64s


@kernel
def with_room(relays: Relays) -> Relays:
    """Return the same queues, with room for another chunk."""
    if relays.free[0] >= 0:
        return relays
    size = len(relays.chunks)
    larger = np.empty((2 * size, CHUNK_COLUMNS), np.int64)
    larger[:size] = relays.chunks
    for row in range(size, 2 * size):
        larger[row, CH_NEXT] = row + 1
    larger[2 * size - 1, CH_NEXT] = -1
    relays.free[0] = size
    return Relays(relays.pair, relays.node, larger, relays.free)


@lean_kernel
def has_room(relays: Relays) -> bool:
    """Say whether one more chunk can wait."""
    return bool(relays.free[0] >= 0)


@lean_kernel
def new_chunk(relays: Relays, task: int, offset: int, size: int, since_ns: int) -> int:
    """Return a row of its own for a chunk; there is one."""
    row = relays.free[0]
    line = relays.chunks[row]
    relays.free[0] = line[CH_NEXT]
    line[CH_TASK] = task
    line[CH_OFFSET] = offset
    line[CH_BYTES] = size
    line[CH_SINCE] = since_ns
    line[CH_NEXT] = -1
    return int(row)


@lean_kernel
def append(
    relays: Relays, node: int, to: int, hop: int, task: int, offset: int, size: int, since_ns: int
) -> None:
    """Let bytes wait at `node` for the node `to`: its own (hop 0) or what it stores (hop 1)."""
    link(relays, node, to, hop, new_chunk(relays, task, offset, size, since_ns))


@lean_kernel
def link(relays: Relays, node: int, to: int, hop: int, row: int) -> None:
    """Let a chunk wait behind all others of its queue."""
    size = relays.chunks[row, CH_BYTES]
    queue = relays.pair[node * len(relays.node) + to]
    if queue[HEAD + hop] < 0:
        queue[HEAD + hop] = row
        relays.node[node, OWN] += 1 - hop
    else:
        relays.chunks[queue[TAIL + hop], CH_NEXT] = row
    queue[TAIL + hop] = row
    if hop == 0:
        queue[BYTES] += size
    else:
        relays.node[node, STORED] += size


@lean_kernel
def give_back(
    relays: Relays, node: int, to: int, hop: int, task: int, offset: int, size: int, since_ns: int
) -> None:
    """Put bytes that were taken, and could not be sent, before all others of their queue."""
    row = new_chunk(relays, task, offset, size, since_ns)
    queue = relays.pair[node * len(relays.node) + to]
    relays.chunks[row, CH_NEXT] = queue[HEAD + hop]
    if queue[HEAD + hop] < 0:
        queue[TAIL + hop] = row
        relays.node[node, OWN] += 1 - hop
    queue[HEAD + hop] = row
    queue[BYTES + hop] += size
    if hop == 1:
        relays.node[node, STORED] += size


@lean_kernel
def promise(relays: Relays, relay: int, to: int, size: int) -> None:
    """Note that bytes for `to` are on their way to a relay; a negative `size` takes it back."""
    relays.pair[relay * len(relays.node) + to, BYTES + 1] += size


@lean_kernel
def waits(relays: Relays, node: int) -> bool:
    """Say whether anything waits at `node`."""
    return bool(relays.node[node, OWN] > 0 or relays.node[node, STORED] > 0)


@lean_kernel
def choose(
    relays: Relays, x: int, y: int, room: int, whole: int, cap: int, admission: bool
) -> tuple[int, int, int]:
    """Choose what x sends to y next: (destination, bytes, hop); bytes 0: nothing.

    `room` bytes fit into what is left of the window and `whole` into all of it; `cap` is the most
    that goes at once.
    """
    nodes = len(relays.node)
    straight = relays.pair[x * nodes + y]
    most = min(cap, room)
    for hop in (1, 0):
        if straight[HEAD + hop] >= 0:
            return y, min(most, relays.chunks[straight[HEAD + hop], CH_BYTES]), hop
    if relays.node[x, OWN] == 0 or most < 1:
        return y, 0, 0
    for step in range(nodes):
        d = (relays.node[x, TURN] + step) % nodes
        row = relays.pair[x * nodes + d]
        held = relays.pair[y * nodes + d]
        if row[HEAD] < 0 or held[JOINED_AT_TIMES] == 0:
            continue
        amount = min(most, relays.chunks[row[HEAD], CH_BYTES])
        if admission and amount > whole - held[BYTES] - held[BYTES + 1]:
            continue
        relays.node[x, TURN] = (d + 1) % nodes
        return d, amount, 0
    return y, 0, 0


@lean_kernel
def take(relays: Relays, node: int, to: int, hop: int, size: int) -> tuple[int, int, int]:
    """Take `size` bytes, as chosen, off their queue; return their task, offset and CH_SINCE."""
    queue = relays.pair[node * len(relays.node) + to]
    head = queue[HEAD + hop]
    line = relays.chunks[head]
    task, offset, since_ns = line[CH_TASK], line[CH_OFFSET], line[CH_SINCE]
    line[CH_OFFSET] += size
    line[CH_BYTES] -= size
    queue[BYTES + hop] -= size
    if hop == 1:
        relays.node[node, STORED] -= size
    if line[CH_BYTES] == 0:
        queue[HEAD + hop] = line[CH_NEXT]
        line[CH_NEXT] = relays.free[0]
        relays.free[0] = head
        if queue[HEAD + hop] < 0:
            relays.node[node, OWN] -= 1 - hop
    return int(task), int(offset), int(since_ns)
