"""Static assignments: a circuit for every pair that talks, if the ports suffice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from scheduler.model.taskgraph import TaskGraph
    from topologies.fabric import Fabric

__all__ = ["Standing", "assign"]

Standing = dict[tuple[int, int], list[tuple[int, int, int]]]


def assign(graph: TaskGraph, fabric: Fabric) -> Standing:
    """Give every pair of nodes that talks a circuit of its own: (plane, src_port, dst_port)s.

    Pairs are taken by their bytes, most first, each on the fastest plane that has a free port at
    both ends. Where none has, two planes are exchanged along an alternating path (the proof of
    Koenig's theorem), so that directed planes that join all nodes alike suffice whenever no node
    has more peers than ports. Ports left over go to the pairs with most bytes. A pair without a
    circuit is missing from the answer. O(pairs * ports).
    """
    messages = graph.messages
    pairs, inverse = np.unique(
        np.stack([graph.src[messages], graph.dst[messages]], axis=1), axis=0, return_inverse=True
    )
    load = np.bincount(inverse.reshape(-1), weights=graph.size_bytes[messages])
    table = _Table(fabric)
    order = np.argsort(-load, kind="stable")
    wanted = [(int(pairs[i, 0]), int(pairs[i, 1])) for i in order]
    for pair in wanted:
        if not table.standing.get(pair):  # on a duplex plane the other direction may have made it
            table.place(pair) or table.recolour(pair)
    while sum(table.place(pair) for pair in wanted if table.standing.get(pair)):
        pass  # one more circuit each, as long as somebody gets one
    return table.standing


class _Table:
    """Ports and what stands on them."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        optical = [k for k, plane in enumerate(fabric.planes) if plane.kind == "ocs"]
        self.planes = sorted(optical, key=lambda k: -fabric.planes[k].rate_bps)
        self.ports = {
            (k, node): list(fabric.ports_of(k, node))
            for k in optical
            for node in range(fabric.nodes)
        }
        self.to: dict[tuple[int, int], int] = {}  # (plane, output port) -> input port
        self.of: dict[tuple[int, int], int] = {}
        self.standing: Standing = {}

    def free_out(self, plane: int, node: int) -> int | None:
        """Return a port of `node` that sends nothing, or None."""
        return next((p for p in self.ports[plane, node] if (plane, p) not in self.to), None)

    def free_in(self, plane: int, node: int) -> int | None:
        """Return a port of `node` that receives nothing, or None."""
        return next((p for p in self.ports[plane, node] if (plane, p) not in self.of), None)

    def join(self, plane: int, src_port: int, dst_port: int) -> None:
        """Make a circuit stand; on a duplex plane its other direction stands with it."""
        ends = [(src_port, dst_port)]
        if self.fabric.planes[plane].duplex:
            ends.append((dst_port, src_port))
        for a, b in ends:
            self.to[plane, a], self.of[plane, b] = b, a
            pair = (self.fabric.node_of(plane, a), self.fabric.node_of(plane, b))
            self.standing.setdefault(pair, []).append((plane, a, b))

    def part(self, plane: int, src_port: int, dst_port: int) -> None:
        """Take a directed circuit down."""
        del self.to[plane, src_port], self.of[plane, dst_port]
        pair = (self.fabric.node_of(plane, src_port), self.fabric.node_of(plane, dst_port))
        self.standing[pair].remove((plane, src_port, dst_port))

    def place(self, pair: tuple[int, int]) -> bool:
        """Give the pair one more circuit where both ends have a free port."""
        for plane in self.planes:
            a, b = self.free_out(plane, pair[0]), self.free_in(plane, pair[1])
            if a is not None and b is not None:
                self.join(plane, a, b)
                return True
        return False

    def recolour(self, pair: tuple[int, int]) -> bool:
        """Free a port at both ends by exchanging two directed planes along an alternating path."""
        directed = [k for k in self.planes if not self.fabric.planes[k].duplex]
        for one in directed:
            if self.free_out(one, pair[0]) is None:
                continue
            for two in directed:
                if (
                    one != two
                    and self.free_in(two, pair[1]) is not None
                    and self._exchange(one, two, pair[1])
                ):
                    return self.place(pair)
        return False

    def _exchange(self, one: int, two: int, node: int) -> bool:
        """Move what `node` receives on `one` to `two`, and so on; False if the path is blocked."""
        path: list[tuple[int, int, int]] = []
        plane, other, receiving, at = one, two, True, node
        seen: set[tuple[int, int]] = set()
        while True:
            table = self.of if receiving else self.to
            port = next(
                (
                    p
                    for p in self.ports[plane, at]
                    if (plane, p) in table and (plane, p) not in seen
                ),
                None,
            )
            if port is None:
                return False
            seen.add((plane, port))
            far = table[plane, port]
            path.append((plane, far, port) if receiving else (plane, port, far))
            at = self.fabric.node_of(plane, far)
            free = self.free_out(other, at) if receiving else self.free_in(other, at)
            plane, other, receiving = other, plane, not receiving
            if free is not None:
                break
            if len(path) > 2 * len(self.to):
                return False
        nodes = [(self.fabric.node_of(k, a), self.fabric.node_of(k, b), k) for k, a, b in path]
        for k, a, b in path:
            self.part(k, a, b)
        for src, dst, k in nodes:
            target = two if k == one else one
            a_free, b_free = self.free_out(target, src), self.free_in(target, dst)
            assert a_free is not None  # inner nodes gave up one port of each plane,
            assert b_free is not None  # the last one has one to spare
            self.join(target, a_free, b_free)
        return True
