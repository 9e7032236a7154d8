"""What the slow replays are made of: a clock, tasks that become ready and end, what is recorded."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from scheduler.model.taskgraph import COMPUTE, MESSAGE

if TYPE_CHECKING:
    from collections.abc import Callable

    from scheduler.model.taskgraph import TaskGraph

__all__ = ["Clock", "Replay", "Tasks", "TooLongError", "wire_ns"]


@dataclass
class Replay:
    """What happened: times per unrolled task, transfers and circuits as tuples.

    A transfer is (task, plane, src_port, bytes, start_ns, end_ns); a circuit (plane, src_port,
    dst_port, request_ns, up_ns, down_ns) with None where a timeline has -1. With two-hop routing
    `hops` has a row per transfer: (task, start_ns, hop, from node, to node).
    """

    ready: dict[int, int] = field(default_factory=dict)
    admitted: dict[int, int] = field(default_factory=dict)
    start: dict[int, int] = field(default_factory=dict)
    end: dict[int, int] = field(default_factory=dict)
    transfers: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)
    hops: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    circuits: list[tuple[int, int, int, int | None, int | None, int | None]] = field(
        default_factory=list
    )


class TooLongError(Exception):
    """More happens than plain Python is patient for."""


class Clock:
    """Runs functions at times; those of one time by rank, then in the order they were given."""

    def __init__(self) -> None:
        self.now = 0
        self._queue: list[tuple[int, tuple[int, int], int, Callable[[], None]]] = []
        self._number = count()

    def at(self, time: int, function: Callable[[], None], rank: tuple[int, int] = (0, 0)) -> None:
        assert time >= self.now, "the past cannot be changed"
        heapq.heappush(self._queue, (time, rank, next(self._number), function))

    def next_ns(self) -> int | None:
        """Return the time of the next function, None without one."""
        return self._queue[0][0] if self._queue else None

    def run_until(self, time: int) -> None:
        """Run what is due by then, also what that makes due."""
        while self.goes_on_by(time):
            self.step()

    def run(self, most: int | None = None) -> None:
        """Run until nothing is left, or `most` functions have run: then it is a `TooLongError`."""
        for number in count():
            if not self._queue:
                return
            if number == most:
                raise TooLongError
            self.step()

    def step(self) -> bool:
        """Run the next function; False if there is none."""
        if not self._queue:
            return False
        self.now, _, _, function = heapq.heappop(self._queue)
        function()
        return True

    def goes_on_by(self, time: int) -> bool:
        return bool(self._queue) and self._queue[0][0] <= time


class Tasks:
    """The unrolled graph: calls `on_message` when a message may be sent.

    That is when it is ready, or, where NICs hold `buffer` bytes, once those that were ready before
    it at its node are in and leave room: `left` has to be told when a message's last bit leaves.
    """

    def __init__(
        self,
        graph: TaskGraph,
        iterations: int,
        clock: Clock,
        result: Replay,
        buffer: int | None = None,
    ) -> None:
        self.buffer = buffer
        self.inside: dict[int, list[int]] = defaultdict(list)  # messages in each NIC
        self.outside: dict[int, list[tuple[int, int]]] = defaultdict(list)  # and (ready, id) before
        self.graph, self.clock, self.result = graph, clock, result
        self.total = iterations * graph.tasks
        self.dur_ns = graph.durations_ns(iterations).tolist()
        self.size_bytes = graph.sizes_bytes(iterations).tolist()
        self.after: dict[int, list[int]] = defaultdict(list)
        self.missing = [0] * self.total
        arcs = graph.arcs
        columns = (arcs.before.tolist(), arcs.after.tolist(), arcs.distance.tolist())
        for before, after, distance in zip(*columns, strict=True):
            for i in range(iterations - distance):
                self.after[i * graph.tasks + before].append((i + distance) * graph.tasks + after)
                self.missing[(i + distance) * graph.tasks + after] += 1
        self.on_message: Callable[[int], None] = lambda _: None

    def begin(self) -> None:
        for task in range(self.total):
            if self.missing[task] == 0:
                self.clock.at(0, partial(self.became_ready, task))

    def became_ready(self, task: int) -> None:
        base = task % self.graph.tasks
        self.result.ready[task] = self.clock.now
        if self.graph.kind[base] == MESSAGE:
            if self.buffer is None:
                self.result.admitted[task] = self.clock.now
                self.on_message(task)
            else:
                heapq.heappush(self.outside[int(self.graph.src[base])], (self.clock.now, task))
                self.clock.at(self.clock.now, partial(self.fill, task), (0, 1))
            return
        self.result.start[task] = self.clock.now
        duration = self.dur_ns[task] if self.graph.kind[base] == COMPUTE else 0
        self.clock.at(self.clock.now + duration, lambda: self.ended(task))

    def fill(self, message: int) -> None:
        """Let in what there is room for at the message's node, once all of a moment are ready."""
        if self.buffer is None:
            return
        node = int(self.graph.src[message % self.graph.tasks])
        inside, outside = self.inside[node], self.outside[node]
        while outside:
            held = sum(min(self.size_bytes[m], self.buffer) for m in inside)
            first = outside[0][1]
            if held + min(self.size_bytes[first], self.buffer) > self.buffer:
                return
            heapq.heappop(outside)
            inside.append(first)
            self.result.admitted[first] = self.clock.now
            self.on_message(first)

    def leaves(self, message: int, last: int) -> None:
        if self.buffer is not None:
            self.clock.at(last, partial(self.left, message), (0, 1))

    def left(self, message: int) -> None:
        self.inside[int(self.graph.src[message % self.graph.tasks])].remove(message)
        self.fill(message)

    def ended(self, task: int) -> None:
        self.result.end[task] = self.clock.now
        for after in self.after[task]:
            self.missing[after] -= 1
            if self.missing[after] == 0:
                self.became_ready(after)


def wire_ns(size: int, rate_bps: int) -> int:
    return math.ceil(Fraction(size * 8 * 10**9, rate_bps))
