"""Collectives of servers: inside one, data take a scale-up link that is not part of the fabric.

all_reduce is a reduce-scatter inside each server, a ring all_reduce between members of the same
place in all servers, and an all-gather inside; all_gather and reduce_scatter are its halves. Every
other kind is what it is by default, with its transfers inside a server taken off the fabric.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from scheduler.model.collectives import ALGORITHMS, DEFAULTS, Demand
from scheduler.model.flows import GATE, Flows, duration_ns, join
from topologies.errors import UsageError

if TYPE_CHECKING:
    from scheduler.model.taskgraph import Int64s

__all__ = ["Servers", "hierarchical"]


@dataclass(frozen=True, slots=True)
class Servers:
    """Which server each member is in, shape (n,), numbered from 0; and the rate inside one.

    Without `scale_up_bps` a transfer inside a server takes no time.
    """

    of: Int64s
    scale_up_bps: int | None

    def table(self) -> Int64s:
        """Return the members of each server in order, shape (servers, members of each)."""
        counts = np.bincount(self.of)
        if counts.min() != counts.max():
            raise UsageError(
                f"the group has {int(counts.min())} members in one server and "
                f"{int(counts.max())} in another",
                "hierarchical",
                "each must find its partner at the same place of every server",
                "use ring for this group, such as --collective all_reduce@GROUP=ring",
            )
        return np.argsort(self.of, kind="stable").reshape(len(counts), -1)

    def time_ns(self, size_bytes: Int64s) -> Int64s:
        """Return how long it takes to send `size_bytes` on one scale-up link."""
        if self.scale_up_bps is None:
            return np.zeros_like(size_bytes)
        return duration_ns(size_bytes, self.scale_up_bps)


def hierarchical(kind: str, demand: Demand, servers: Servers) -> Flows:
    """Make the flows of `kind`; raises `UsageError` for servers of unequal size."""
    if kind not in ("all_reduce", "all_gather", "reduce_scatter"):
        return _off_the_fabric(ALGORITHMS[kind][DEFAULTS[kind]](demand), servers)
    table = servers.table()
    hosts, places = table.shape
    if kind == "all_reduce":  # chunk (place, host): every place owns one of each host
        held = demand.sizes_bytes.reshape(places, hosts).T
    else:
        held = demand.sizes_bytes[table]
    rings = []
    for place in range(places):
        ring = ALGORITHMS[kind]["ring"](Demand(held[:, place]))
        at = table[:, place]
        rings.append(
            replace(ring, src=at[ring.src], dst=at[ring.dst], part=np.full(ring.rows, place))
        )
    flows = join(rings)
    inside_ns = servers.time_ns((held.sum() - held.sum(axis=0)).max(keepdims=True))
    if places == 1:
        inside_ns = np.zeros_like(inside_ns)
    if kind != "all_gather":
        flows = _open(flows, table, servers.of, inside_ns)
    if kind != "reduce_scatter":
        every = held.sum(axis=0).max(keepdims=True) * (places - 1)
        flows = _close(flows, table, servers.of, servers.time_ns(every))
    return flows


def _gates(table: Int64s, step: int, dur_ns: Int64s) -> Flows:
    hosts = len(table)
    return Flows.of(
        table[:, 0],
        np.full(hosts, GATE),
        np.zeros(hosts, np.int64),
        np.full(hosts, step),
        dur_ns=np.repeat(dur_ns, hosts),
    )


def _open(flows: Flows, table: Int64s, server: Int64s, dur_ns: Int64s) -> Flows:
    """Let each server reduce inside before its members' first messages."""
    gates = _gates(table, 0, dur_ns)
    first = np.setdiff1d(np.arange(flows.rows), flows.arcs[:, 1])
    both = join([replace(flows, step=flows.step + 1), gates])
    gate = flows.rows + server
    return replace(
        both,
        arcs=np.concatenate([both.arcs, np.stack([gate[flows.src[first]], first], axis=1)]),
        entered=np.stack([table.ravel(), gate[table.ravel()]], axis=1),
        left=np.stack([gate[table.ravel()], table.ravel()], axis=1),
    )


def _close(flows: Flows, table: Int64s, server: Int64s, dur_ns: Int64s) -> Flows:
    """Let each server's members gather from one another what all of them have received."""
    gates = _gates(table, int(flows.step.max(initial=-1)) + 1, dur_ns)
    both = join([flows, gates])
    gate = flows.rows + server
    received = np.flatnonzero(flows.is_message)
    opening = np.flatnonzero(~flows.is_message)
    arcs = [
        both.arcs,
        np.stack([received, gate[flows.dst[received]]], axis=1),
        np.stack([opening, gate[flows.src[opening]]], axis=1),
    ]
    return replace(
        both,
        arcs=np.concatenate(arcs),
        entered=np.concatenate([both.entered, np.stack([table.ravel(), gate[table.ravel()]], 1)]),
        left=np.stack([gate[table.ravel()], table.ravel()], axis=1),
    )


def _off_the_fabric(flows: Flows, servers: Servers) -> Flows:
    """Turn the messages inside a server into gates of their receiver."""
    inside = flows.is_message & (servers.of[flows.src] == servers.of[flows.dst])
    row = np.flatnonzero(inside)
    ends = [np.stack([end[row], row], axis=1) for end in (flows.src, flows.dst)]
    both = np.concatenate(ends)
    return replace(
        flows,
        src=np.where(inside, flows.dst, flows.src),
        dst=np.where(inside, GATE, flows.dst),
        size_bytes=np.where(inside, 0, flows.size_bytes),
        dur_ns=np.where(inside, servers.time_ns(flows.size_bytes), flows.dur_ns),
        entered=np.concatenate([flows.entered, both]),
        left=np.concatenate([flows.left, both[:, ::-1]]),
    )
