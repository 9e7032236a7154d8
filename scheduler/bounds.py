"""Lower bounds on the steady-state time of an iteration: what no schedule can beat.

Let a program run for ever and let T be the mean time an iteration takes. Three arguments bound T.

*Dependencies.* Along a cycle of the dependency graph whose tasks last W in all and which leads D
iterations on, D iterations take at least W: T >= W/D. Messages last what they last on the fastest
plane that joins their nodes, with latency; ports and tau do not count.

*Busiest port.* One side (sending or receiving) of a node has s ports on which an iteration moves
messages of W port-time in all, so s*T >= W. In an ordered program every port goes through the same
list of circuits each iteration. A port that serves k > 1 different nodes in it changes its circuit
at least k times an iteration, counting the change back across the wrap, and is dark for tau each
time; a port that serves one node need never change. With k nodes to serve and k > s, at most s-1
ports serve one node each (were it s, only s would be served), so the others serve k-s+1 at least,
and s*T >= W + (k-s+1)*tau. Nor can the misses be spread evenly: of the longest messages to each of
i*s+1 nodes some port has i+1, for i > 0 with as many changes, so T >= the sum of the i+1 shortest
of these, each with its tau. A duplex port serves those it sends to and those it receives from.
Where programs need not be cyclic no miss is counted.

*Windows.* Let u and v be tasks such that every message of a set S, moved by one side of a node,
must come after u and before v. Then v starts at least L(S) after u ends, where L is the least time
in which s ports can move S: this is one more arc of the dependency graph. In that time a port which
serves j nodes changes at least j-1 times (the first circuit may stand already), so
L >= (W + (k-s)*tau)/s. And messages are atomic: let each node's longest message bear the tau that
leads to it, so that a port's items sum to at most its time plus tau; of the i*s+1 longest items
some port has i+1, so L + tau >= the sum of the i+1 shortest of these, for every i.

A fragmenting program (timed: messages move in pieces, over several planes at once) is bounded by
dependencies with each message spread over all ports of its nodes, and by W/s.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from scheduler.model.taskgraph import MARKER, MESSAGE, csr
from topologies.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scheduler.model.taskgraph import Int64s, TaskGraph
    from topologies.fabric import Fabric

__all__ = ["Bound", "lower_bound_ns"]

_WINDOW_WORK: Final = 30_000_000  # chains times arcs: beyond it windows are left out
_NEAREST: Final = 12  # windows from each task
_BITS_PER_BYTE_NS: Final = 8 * 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """`value_ns` bounds an iteration, for the reason `kind`; `parts` are all the bounds found."""

    value_ns: float
    kind: str
    parts: Mapping[str, float] = field(default_factory=dict)

    def proves(self, iteration_ns: float) -> bool:
        """Say whether an iteration of that length is optimal: it cannot be below the bound."""
        return iteration_ns <= self.value_ns


class _Side(NamedTuple):
    """The ports of one node, one way: how many, what they carry together, the least tau.

    `duplex`: all its optical ports are, so that both ways share their circuits.
    """

    ports: int
    rate_bps: int
    fastest_bps: int
    equal: bool
    delay_ns: int
    duplex: bool


def lower_bound_ns(
    graph: TaskGraph, fabric: Fabric, *, atomic: bool = True, cyclic: bool = True
) -> Bound:
    """Bound the mean time of an iteration of `graph` on `fabric`, in ns.

    `atomic`: each message moves whole over one plane (ordered and reactive programs); `cyclic`:
    every iteration uses the circuits in the same order (ordered programs). `UsageError` where tasks
    wait for each other in a circle. O(cycles improved * (tasks + arcs)), plus
    O(chains * (tasks + arcs)) for the windows of workloads small enough.
    """
    from scheduler import _kernels_bounds as kernels

    sides = [_side(fabric, node) for node in range(graph.nodes)]
    length = _lengths(graph, fabric, sides, atomic=atomic)
    order = _order(graph)
    arcs = _Arcs(graph, length)
    ports, busiest = _busiest(graph, sides, atomic=atomic, cyclic=cyclic)

    def ratio(start: Fraction) -> Fraction:
        ended, turns = kernels.cycle_ratio(
            order, arcs.pointer, arcs.before, arcs.length, arcs.distance,
            start.numerator, start.denominator,
        )  # fmt: skip
        return Fraction(ended, turns)

    dependencies = ratio(Fraction(0))
    parts = {"dependencies": dependencies, busiest: ports}
    if atomic and arcs.add_windows(graph, order, sides):
        windows = ratio(max(dependencies, ports))
        parts["dependencies and ports"] = windows
    kind = max(parts, key=lambda name: parts[name])
    return Bound(
        value_ns=float(parts[kind]),
        kind=kind,
        parts={name: float(value) for name, value in parts.items()},
    )


def _side(fabric: Fabric, node: int) -> _Side:
    """Describe the ports of `node`; a packet switch among them makes every miss avoidable."""
    rates, delays = [], []
    for plane in fabric.planes:
        own = plane.node_of.count(node)
        rates += [plane.rate_bps] * own
        delays += [plane.delay_ns if plane.kind == "ocs" else 0] * own
    return _Side(
        ports=len(rates),
        rate_bps=sum(rates),
        fastest_bps=max(rates, default=0),
        equal=len(set(rates)) == 1,
        delay_ns=min(delays, default=0),
        duplex=all(plane.duplex for plane in fabric.planes if plane.kind == "ocs"),
    )


def _wire_ns(size_bytes: Int64s, rate_bps: Int64s, *, whole: bool) -> Int64s:
    """Time on the wire at each message's rate, rounded up if it is `whole`, else down."""
    pairs, inverse = np.unique(np.stack([size_bytes, rate_bps]), axis=1, return_inverse=True)
    times = [
        -(-size * _BITS_PER_BYTE_NS // rate) if whole else size * _BITS_PER_BYTE_NS // rate
        for size, rate in pairs.T.tolist()
    ]
    return np.array(times, np.int64)[inverse.reshape(-1)]


def _lengths(graph: TaskGraph, fabric: Fabric, sides: list[_Side], *, atomic: bool) -> Int64s:
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
    wire = _wire_ns(graph.size_bytes[messages], rate, whole=atomic)
    length[messages] = wire + fabric.latency_ns
    return length


def _order(graph: TaskGraph) -> Int64s:
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


def _busiest(
    graph: TaskGraph, sides: list[_Side], *, atomic: bool, cyclic: bool
) -> tuple[Fraction, str]:
    """Return the bound of the busiest port and its name."""
    messages = graph.messages
    best, name = Fraction(0), "busiest port"
    for ends, peers, way in ((graph.src, graph.dst, "out"), (graph.dst, graph.src, "in")):
        own, other, size = ends[messages], peers[messages], graph.size_bytes[messages]
        by_node = np.argsort(own, kind="stable")
        bounds = np.searchsorted(own[by_node], np.arange(graph.nodes + 1))
        for node, side in enumerate(sides):
            mine = by_node[bounds[node] : bounds[node + 1]]
            if len(mine) == 0:
                continue
            served = _longest(other[mine], size[mine])
            if side.duplex:  # those it only receives from, or sends to, are served too
                back = messages[peers[messages] == node]
                served = _longest(
                    np.concatenate([other[mine], ends[back]]),
                    np.concatenate([size[mine], graph.size_bytes[back]]),
                )
            extra = len(served) - side.ports
            misses = extra + 1 if atomic and cyclic and extra > 0 else 0
            if atomic and side.equal:
                rate = np.full(len(mine), side.fastest_bps)
                load = int(_wire_ns(size[mine], rate, whole=True).sum())
                bound = Fraction(load + misses * side.delay_ns, side.ports)
            else:
                bound = Fraction(int(size[mine].sum()) * _BITS_PER_BYTE_NS, side.rate_bps)
            if misses:
                bound = max(bound, Fraction(_crowded_ns(served, side)))
            if bound > best:
                best, name = bound, f"port of node {node}, {way}"
    return best, name


def _longest(nodes: Int64s, size_bytes: Int64s) -> Int64s:
    """Return the size of the longest message of each node that occurs, most first."""
    found, place = np.unique(nodes, return_inverse=True)
    longest = np.zeros(len(found), np.int64)
    np.maximum.at(longest, place.reshape(-1), size_bytes)
    return np.sort(longest)[::-1]


def _crowded_ns(served: Int64s, side: _Side) -> int:
    """Return the least time of a port that has more than its share of messages and changes."""
    rate = np.full(len(served), side.fastest_bps)
    wire = _wire_ns(served, rate, whole=side.equal)
    least = 0
    for more in range(1, (len(served) - 1) // side.ports + 1):
        shortest = wire[: more * side.ports + 1][-more - 1 :]
        least = max(least, int(shortest.sum()) + (more + 1) * side.delay_ns)
    return least


class _Arcs:
    """The dependency graph's arcs, grouped by the task they enter, with the time along each."""

    def __init__(self, graph: TaskGraph, length: Int64s) -> None:
        self._rows = [(graph.arcs.before, graph.arcs.after, graph.arcs.distance)]
        self._times = [length[graph.arcs.before]]
        self._tasks = graph.tasks
        self._group()

    def _group(self) -> None:
        before, after, distance = (np.concatenate([row[k] for row in self._rows]) for k in range(3))
        order = np.argsort(after, kind="stable")
        self.pointer = np.zeros(self._tasks + 1, np.int64)
        np.cumsum(np.bincount(after, minlength=self._tasks), out=self.pointer[1:])
        self.before = np.ascontiguousarray(before[order])
        self.distance = np.ascontiguousarray(distance[order])
        self.length = np.ascontiguousarray(np.concatenate(self._times)[order])

    def add_windows(self, graph: TaskGraph, order: Int64s, sides: list[_Side]) -> bool:
        """Add an arc for every window between two tasks of a rank's stream; False if too much work.

        The arc is from the *end* of its first task.
        """
        from scheduler._kernels_bounds import reach_chain, windows

        chains = _chains(graph)
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
                        _wire_ns(graph.size_bytes[mine], rate, whole=side.equal), other[mine],
                        graph.tasks, _NEAREST, side.ports, side.delay_ns, side.equal,
                        side.rate_bps / side.fastest_bps, graph.nodes, found,
                    )  # fmt: skip
                    starts, stops = chain[found[:count, 0]], chain[found[:count, 1]]
                    self._rows.append((starts, stops, np.zeros(count, np.int64)))
                    self._times.append(found[:count, 2] + graph.dur_ns[starts])
        self._group()
        return True


def _chains(graph: TaskGraph) -> list[tuple[Int64s, list[int]]]:
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
