"""The second replay of `prefetch`: greedy, and idle ports are turned to what comes next.

What a node needs next are the other ends of its messages in program order, those the controller has
heard of left out, each counted when it differs from the one before, as many as the node has ports.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from scheduler.model.taskgraph import MESSAGE
from tests.scheduler.replay_greedy import Greedy, on_demand
from topologies import Circuit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scheduler.model.taskgraph import TaskGraph
    from tests.scheduler.replay_parts import Clock, Replay, Tasks
    from topologies import Fabric, Port

__all__ = ["replay_prefetch"]

AHEAD = 4096  # tasks looked at
OUT, IN = 0, 1  # which end of a message, and of a circuit


def replay_prefetch(
    graph: TaskGraph, fabric: Fabric, *, iterations: int, gather_ns: int = 0
) -> Replay:
    """Execute on demand, with circuits for what comes next where ports are idle."""
    return on_demand(Prefetch, graph, fabric, iterations=iterations, gather_ns=gather_ns)


class Prefetch(Greedy):
    """Greedy with provisioning."""

    def __init__(
        self, graph: TaskGraph, fabric: Fabric, tasks: Tasks, clock: Clock, result: Replay
    ) -> None:
        super().__init__(graph, fabric, tasks, clock, result)
        self.known: set[int] = set()

    def run(self, gather_ns: int) -> None:
        for node in range(self.fabric.nodes):
            self.provision(node, OUT, 0)
        super().run(gather_ns)

    def asked(self, message: int) -> None:
        self.known.add(message)
        super().asked(message)

    def arrived(self, message: int) -> None:
        super().arrived(message)
        for node in self.ends(message):
            self.provision(node, OUT, message + 1)
            self.provision(node, IN, message + 1)

    def ports_of(self, node: int) -> int:
        return sum(len(self.fabric.ports_of(k, node)) for k in range(len(self.fabric.planes)))

    def upcoming(self, node: int, end: int, first: int) -> Iterator[int]:
        last = None
        for message in range(first, min(first + AHEAD, self.tasks.total)):
            if self.graph.kind[message % self.graph.tasks] != MESSAGE or message in self.known:
                continue
            ends = self.ends(message)
            if ends[end] == node and ends[1 - end] != last:
                last = ends[1 - end]
                yield message

    def idle_port(self, k: int, node: int, end: int, first: int, wanted: int) -> int | None:
        for port in self.fabric.ports_of(k, node):
            side: Port = ("out" if end == OUT else "in", port)
            if self.users[k, side]:
                continue
            far = self.far(k, side)
            if far is None:
                return port
            needed = islice(self.upcoming(node, end, first), wanted)
            if all(self.ends(m)[1 - end] != far for m in needed):
                return port
        return None

    def far(self, k: int, side: Port) -> int | None:
        """Return the node at the other end of the circuit that stands at a side."""
        way = "in" if side[0] == "out" else "out"
        for held in self.stands[k]:
            if side in held:
                port = next(p for w, p in held if w == way and p != side[1])
                return self.fabric.planes[k].node_of[port]
        return None

    def provision(self, node: int, end: int, first: int) -> None:
        if any(self.ends(m)[end] == node for m in self.waiting):
            return
        wanted = self.ports_of(node)
        # What is needed does not depend on the circuits asked for meanwhile.
        for message in islice(self.upcoming(node, end, first), wanted):
            source, target = self.ends(message)
            if self.joined(source, target):
                continue
            for k, plane in enumerate(self.fabric.planes):
                out = self.idle_port(k, source, OUT, first, wanted)
                into = self.idle_port(k, target, IN, first, wanted)
                if plane.kind == "eps" or out is None or into is None:
                    continue
                circuit = plane.uses(Circuit(out, into))
                if not any(self.users[k, port] for port in circuit) and self.light(k, circuit):
                    break

    def joined(self, source: int, target: int) -> bool:
        return any(
            self.far(k, ("out", port)) == target
            for k in range(len(self.fabric.planes))
            for port in self.fabric.ports_of(k, source)
        )
