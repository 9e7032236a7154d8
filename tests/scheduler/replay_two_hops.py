"""The replay of two-hop routing in plain Python: every output asks what it may send."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import defaultdict, deque
from itertools import count
from typing import TYPE_CHECKING

from tests.scheduler.replay import Lane, Timed
from tests.scheduler.replay_parts import Clock, Replay, Tasks, wire_ns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scheduler.model.program import TimedProgram
    from scheduler.model.taskgraph import TaskGraph
    from topologies import Fabric

__all__ = ["replay_two_hops"]

_MOST_EVENTS = 20_000


def replay_two_hops(
    graph: TaskGraph, fabric: Fabric, program: TimedProgram, *, iterations: int, quantum_bytes: int
) -> Replay:
    """Execute a timed program with two-hop routing; raises `TooLongError` where it takes ages."""
    result, clock = Replay(), Clock()
    tasks = Tasks(graph, iterations, clock, result)
    TwoHops(tasks, fabric, program, program.guard_ns, quantum_bytes).run()
    return result


class TwoHops(Timed):
    """A timed program with two-hop routing: every output asks what it may send, frame by frame."""

    def __init__(
        self, tasks: Tasks, fabric: Fabric, program: TimedProgram, guard: int, quantum: int
    ) -> None:
        super().__init__(tasks, fabric, program, guard, quantum)
        self.accepts_all = program.routing == "vlb"
        self.outputs: list[Output] = []
        self.joined: set[tuple[int, int]] = set()
        for index, plane in enumerate(fabric.planes):
            cold = fabric.control_ns + plane.delay_ns
            for port, node in enumerate(plane.node_of):
                ways = {
                    to: self.walk(index, plane, port, to)
                    for to, far in enumerate(plane.node_of)
                    if far != node and next(self.walk(index, plane, port, to), None) is not None
                }
                if ways:
                    self.joined |= {(node, plane.node_of[to]) for to in ways}
                    lane = Lane(index, port, plane.rate_bps, iter(()))
                    by_node = [(plane.node_of[to], way) for to, way in ways.items()]
                    self.outputs.append(Output(node, lane, by_node, cold))
        self.outputs.sort(key=lambda o: (o.node, o.lane.plane, o.lane.port))
        self.own: dict[int, dict[int, deque[list[int]]]] = defaultdict(dict)
        self.stored: dict[tuple[int, int], deque[list[int]]] = defaultdict(deque)
        self.coming: dict[tuple[int, int], int] = defaultdict(int)
        self.turn: dict[int, int] = defaultdict(int)
        self.missing: dict[int, int] = {}
        self.latest: dict[int, int] = defaultdict(int)
        self.pieces = count()

    def run(self) -> None:
        self.tasks.on_message = lambda m: self.clock.at(
            self.clock.now, lambda: self.join(m), (3, m)
        )
        self.tasks.begin()
        self.clock.run(_MOST_EVENTS)

    def join(self, message: int) -> None:
        graph = self.tasks.graph
        base = message % graph.tasks
        src, dst = int(graph.src[base]), int(graph.dst[base])
        relays = {y for x, y in self.joined if x == src and (y, dst) in self.joined}
        if (src, dst) not in self.joined and not relays:
            return
        size = int(graph.size_bytes[base])
        self.missing[message] = size
        self.own[src].setdefault(dst, deque()).append([message, size])
        self.wake(src)

    def wake(self, node: int) -> None:
        for number, output in enumerate(self.outputs):
            if output.node == node:
                self.call(number, max(self.clock.now, output.lane.free))

    def call(self, number: int, time: int) -> None:
        output = self.outputs[number]
        time = max(time, output.window(time)[0])
        if output.called is None or time < output.called:
            output.called = time
            self.clock.at(time, lambda: self.serve(number), (4, number))

    def serve(self, number: int) -> None:
        output, now = self.outputs[number], self.clock.now
        if output.called != now:
            return
        output.called = None
        on, off, far = output.window(now)
        room, whole = output.lane.fits(off - now), output.lane.fits(off - on)
        most = min(room, self.quantum or max(whole // 16, 1))
        found = self.next_for(output.node, far, most, whole) if most else None
        if found is None:
            if self.own[output.node] or any(
                q and k[0] == output.node for k, q in self.stored.items()
            ):
                self.call(number, off)
            return
        queue, to, hop = found
        message, size = queue[0][0], min(most, queue[0][1])
        queue[0][1] -= size
        if queue[0][1] == 0:
            queue.popleft()
        if hop == 0 and not queue:
            del self.own[output.node][to]
        lane = output.lane
        lane.free = now + wire_ns(size, lane.rate)
        arrival = lane.free + self.fabric.latency_ns
        self.result.start.setdefault(message, now)
        self.result.transfers.append((message, lane.plane, lane.port, size, now, arrival))
        self.result.hops.append((message, now, hop, output.node, far))
        rank = (2, next(self.pieces))
        if far == to:
            self.missing[message] -= size
            self.latest[message] = max(self.latest[message], arrival)
            if self.missing[message] == 0:
                self.clock.at(self.latest[message], lambda: self.tasks.ended(message))
        else:
            self.coming[far, to] += size
            self.clock.at(arrival, lambda: self.keep(far, to, message, size), rank)
        self.call(number, lane.free)

    def keep(self, node: int, to: int, message: int, size: int) -> None:
        self.coming[node, to] -= size
        self.stored[node, to].append([message, size])
        self.wake(node)

    def next_for(
        self, node: int, far: int, most: int, whole: int
    ) -> tuple[deque[list[int]], int, int] | None:
        """Find the queue to send from: its bytes, where they go in the end, and which hop it is."""
        if self.stored[node, far]:
            return self.stored[node, far], far, 1
        if far in self.own[node]:
            return self.own[node][far], far, 0
        nodes = self.fabric.nodes
        for to in sorted(self.own[node], key=lambda d: (d - self.turn[node]) % nodes):
            if (far, to) not in self.joined:
                continue
            held = self.coming[far, to] + sum(size for _, size in self.stored[far, to])
            held += sum(size for _, size in self.own[far].get(to, ()))
            if self.accepts_all or held + min(most, self.own[node][to][0][1]) <= whole:
                self.turn[node] = (to + 1) % nodes
                return self.own[node][to], to, 0
        return None


class Output:
    """An output port that leads to one node after another."""

    def __init__(
        self, node: int, lane: Lane, ways: list[tuple[int, Iterator[tuple[int, int]]]], cold: int
    ) -> None:
        self.node, self.lane = node, lane
        self.called: int | None = None
        self.windows = heapq.merge(*(_leading(far, w) for far, w in ways))
        self.seen: list[tuple[int, int, int]] = []
        self.cold = cold

    def window(self, now: int) -> tuple[int, int, int]:
        """Return the first window that ends after `now` and after anything can be lit."""
        now = max(now, self.cold)
        while not self.seen or self.seen[-1][1] <= now:
            self.seen.append(next(self.windows))
        return self.seen[bisect_right(self.seen, now, key=lambda window: window[1])]


def _leading(node: int, windows: Iterator[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    for on, off in windows:
        yield on, off, node
