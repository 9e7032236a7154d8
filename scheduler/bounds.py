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
from typing import TYPE_CHECKING

import numpy as np

from scheduler.least_times import (
    BITS_PER_BYTE_NS,
    Side,
    TimedArcs,
    least_lengths,
    order_of,
    side_of,
    wire_ns,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scheduler.model.taskgraph import Int64s, TaskGraph
    from topologies.fabric import Fabric

__all__ = ["Bound", "lower_bound_ns"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """`value_ns` bounds an iteration, for the reason `kind`; `parts` are all the bounds found."""

    value_ns: float
    kind: str
    parts: Mapping[str, float] = field(default_factory=dict)

    def proves(self, iteration_ns: float) -> bool:
        """Say whether an iteration of that length is optimal: it cannot be below the bound."""
        return iteration_ns <= self.value_ns


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

    sides = [side_of(fabric, node) for node in range(graph.nodes)]
    length = least_lengths(graph, fabric, sides, atomic=atomic)
    order = order_of(graph)
    arcs = TimedArcs(graph, length)
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


def _busiest(
    graph: TaskGraph, sides: list[Side], *, atomic: bool, cyclic: bool
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
                load = int(wire_ns(size[mine], rate, whole=True).sum())
                bound = Fraction(load + misses * side.delay_ns, side.ports)
            else:
                bound = Fraction(int(size[mine].sum()) * BITS_PER_BYTE_NS, side.rate_bps)
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


def _crowded_ns(served: Int64s, side: Side) -> int:
    """Return the least time of a port that has more than its share of messages and changes."""
    rate = np.full(len(served), side.fastest_bps)
    wire = wire_ns(served, rate, whole=side.equal)
    least = 0
    for more in range(1, (len(served) - 1) // side.ports + 1):
        shortest = wire[: more * side.ports + 1][-more - 1 :]
        least = max(least, int(shortest.sum()) + (more + 1) * side.delay_ns)
    return least
