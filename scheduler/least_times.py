"""The least that tasks take, and must take from one to another: what bounds are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from scheduler.model.taskgraph import MARKER, MESSAGE, csr, grouped
from topologies.errors import UsageError

if TYPE_CHECKING:
    from scheduler.model.taskgraph import Int64s, TaskGraph
    from topologies.fabric import Fabric

__all__ = [
    "BITS_PER_BYTE_NS",
    "Side",
    "TimedArcs",
    "chains_of",
    "least_lengths",
    "order_of",
    "side_of",
    "wire_ns",
]

BITS_PER_BYTE_NS: Final = 8 * 10**9
_WINDOW_WORK: Final = 30_000_000  # chains times arcs: beyond it windows are left out
_NEAREST: Final = 12  # windows from each task


class Side(NamedTuple):
    """The ports of one node, one way: how many, what they carry together, the least tau.

    `duplex`: all its optical ports are, so that both ways share their circuits.
    """

    ports: int
    rate_bps: int
    fastest_bps: int
    equal: bool
    delay_ns: int
    duplex: bool


def side_of(fabric: Fabric, node: int) -> Side:
    """Describe the ports of `node`; a packet switch among them makes every miss avoidable."""
    rates, delays = [], []
    for plane in fabric.planes:
        own = plane.node_of.count(node)
        rates += [plane.rate_bps] * own
        delays += [plane.delay_ns if plane.kind == "ocs" else 0] * own
    return Side(
        ports=len(rates),
        rate_bps=sum(rates),
        fastest_bps=max(rates, default=0),
        equal=len(set(rates)) == 1,
        delay_ns=min(delays, default=0),
        duplex=all(plane.duplex for plane in fabric.planes if plane.kind == "ocs"),
    )


def wire_ns(size_bytes: Int64s, rate_bps: Int64s, *, whole: bool) -> Int64s:
    """Time on the wire at each message's rate, rounded up if it is `whole`, else down."""
    pairs, inverse = np.unique(np.stack([size_bytes, rate_bps]), axis=1, return_inverse=True)
    times = [
        -(-size * BITS_PER_BYTE_NS // rate) if whole else size * BITS_PER_BYTE_NS // rate
        for size, rate in pairs.T.tolist()
    ]
    return np.array(times, np.int64)[inverse.reshape(-1)]


def least_lengths(graph: TaskGraph, fabric: Fabric, sides: list[Side], *, atomic: bool) -> Int64s:
    """Return the least each task lasts, shape (tasks,)."""
    length = graph.dur_ns.copy()
    messages = graph.messages
    src, dst = graph.src[messages], graph.dst[messages]
    if atomic:
        rate = np.zeros(len(messages), np.int64)
        for plane in fabric.planes:
            present = np.zeros(fabric.nodes, bool)
            present[list(plane.node_of)] = True
            joined = present[src] & present[dst]
            rate[joined] = np.maximum(rate[joined], plane.rate_bps)
    else:
        total = np.array([side.rate_bps for side in sides], np.int64)
        rate = np.minimum(total[src], total[dst])
    if (rate == 0).any():
        lost = int(messages[rate == 0][0])
        what = f"message {lost} from node {graph.src[lost]} to node {graph.dst[lost]} has no way"
        why = "no plane has a port of both"
        raise UsageError(what, fabric.name or "fabric", why, "use a topology that joins them")
    wire = wire_ns(graph.size_bytes[messages], rate, whole=atomic)
    length[messages] = wire + fabric.latency_ns
    return length


def order_of(graph: TaskGraph) -> Int64s:
    """Return the tasks in an order in which arcs within an iteration point forward.

    `UsageError` where tasks wait for each other in a circle.
    """
    from scheduler._kernels_bounds import topological

    pointers, listed = csr(*_within(graph), graph.tasks)
    missing = np.bincount(listed, minlength=graph.tasks).astype(np.int64)
    order = np.empty(graph.tasks, np.int64)
    if topological(pointers, listed, missing, order) < graph.tasks:
        what = f"task {int(np.flatnonzero(missing > 0)[0])} waits for itself"
        why = "its dependencies form a circle"
        raise UsageError(what, "workload", why, "correct the dependencies")
    return order


def _within(graph: TaskGraph) -> tuple[Int64s, Int64s]:
    inside = graph.arcs.distance == 0
    return graph.arcs.before[inside], graph.arcs.after[inside]


class TimedArcs:
    """The dependency graph's arcs, grouped by the task they enter, with the time along each."""

    def __init__(self, graph: TaskGraph, length: Int64s) -> None:
        self._rows = [(graph.arcs.before, graph.arcs.after, graph.arcs.distance)]
        self._times = [length[graph.arcs.before]]
        self._tasks = graph.tasks
        self._group()

    def _group(self) -> None:
        before, after, distance = (np.concatenate([row[k] for row in self._rows]) for k in range(3))
        self.pointer, order = grouped(after, self._tasks)
        self.before, self.distance = before[order], distance[order]
        self.length = np.concatenate(self._times)[order]

    def add_windows(self, graph: TaskGraph, order: Int64s, sides: list[Side]) -> bool:
        """Add an arc for every window between two tasks of a rank's stream; False if too much work.

        The arc is from the *end* of its first task.
        """
        from scheduler._kernels_bounds import reach_chain, windows

        ranks = np.count_nonzero(np.bincount(graph.rank + 1)[1:])  # each has at least one chain
        if ranks * len(self.before) > _WINDOW_WORK:
            return False
        chains = chains_of(graph)
        if len(chains) * len(self.before) > _WINDOW_WORK:
            return False
        pointer, before, distance = self.pointer, self.before, self.distance
        latest, earliest, place = (np.empty(graph.tasks, np.int64) for _ in range(3))
        messages = graph.messages
        found = np.empty((4096, 3), np.int64)
        for chain, nodes in chains:
            place[:] = -1
            place[chain] = np.arange(len(chain))
            reach_chain(order, pointer, before, distance, place, latest, earliest)
            for node in nodes:
                side = sides[node]
                for own, other in ((graph.src, graph.dst), (graph.dst, graph.src)):
                    mine = messages[own[messages] == node]
                    mine = mine[(latest[mine] >= 0) & (earliest[mine] < graph.tasks)]
                    if len(mine) <= 1:
                        continue
                    rate = np.full(len(mine), side.fastest_bps)
                    count = windows(
                        latest[mine], earliest[mine],
                        wire_ns(graph.size_bytes[mine], rate, whole=side.equal), other[mine],
                        graph.tasks, _NEAREST, side.ports, side.delay_ns, side.equal,
                        side.rate_bps / side.fastest_bps, graph.nodes, found,
                    )  # fmt: skip
                    starts, stops = chain[found[:count, 0]], chain[found[:count, 1]]
                    self._rows.append((starts, stops, np.zeros(count, np.int64)))
                    self._times.append(found[:count, 2] + graph.dur_ns[starts])
        self._group()
        return True


def chains_of(graph: TaskGraph) -> list[tuple[Int64s, list[int]]]:
    """Return each rank's streams as tasks in order, with the nodes the rank can be on.

    A rank's markers come before its messages, so its node is the one they have in common: both
    ends of its messages where it only ever talks to one other node.
    """
    own = np.flatnonzero(graph.rank >= 0)
    keys = np.stack([graph.rank[own], graph.stream[own], graph.position[own]])
    own = own[np.lexsort(keys[::-1])]
    cuts = np.flatnonzero(
        np.diff(graph.rank[own], prepend=-1) | np.diff(graph.stream[own], prepend=-1)
    )
    arcs = graph.arcs
    touching = (graph.kind[arcs.before] == MARKER) & (graph.kind[arcs.after] == MESSAGE)
    rank, message = graph.rank[arcs.before[touching]], arcs.after[touching]
    ranks = int(graph.rank.max(initial=-1)) + 1
    votes = np.zeros((ranks, graph.nodes), np.int64)
    for ends in (graph.src, graph.dst):
        np.add.at(votes, (rank, ends[message]), 1)
    chains = []
    for piece in np.split(own, cuts[1:]) if len(own) else []:
        row = votes[graph.rank[piece[0]]]
        nodes = np.flatnonzero(row == row.max()).tolist() if row.any() else []
        chains.append((piece, nodes))
    return chains
