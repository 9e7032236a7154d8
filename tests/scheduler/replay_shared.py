"""The second replay of timed programs beside packet planes, in rational numbers.

All flows of a packet plane grow together until a port is full; bytes flow. It shares no code with
the dispatcher or the simulator, and nothing is rounded but what the model rounds: circuits send
whole bytes, and messages end at whole nanoseconds.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

from tests.scheduler.replay import Lane, Timed
from tests.scheduler.replay_parts import Clock, Replay, Tasks, TooLongError

if TYPE_CHECKING:
    from scheduler.model.program import TimedProgram
    from scheduler.model.taskgraph import TaskGraph
    from topologies import Fabric

__all__ = ["replay_shared"]

DUST = Fraction(1, 10**6)  # bytes that need not be waited for
MOST_CHANGES = 3_000


def replay_shared(
    graph: TaskGraph, fabric: Fabric, program: TimedProgram, *, iterations: int
) -> Replay:
    """Execute a directly routed timed program; raises `TooLongError` where it takes ages."""
    result, clock = Replay(), Clock()
    tasks = Tasks(graph, iterations, clock, result)
    Shared(tasks, fabric, program, program.guard_ns, 0).run()
    return result


@dataclass
class Flow:
    """A queue (source, destination): its messages, and what of the first has gone where."""

    lanes: list[Lane]
    messages: deque[int] = field(default_factory=deque)
    left: int = 0
    sent: dict[int, Fraction] = field(default_factory=dict)  # by packet plane
    rate: dict[int, Fraction] = field(default_factory=dict)
    lit: list[tuple[int, int]] = field(default_factory=list)  # of each lane: from, until
    begun: int = 0
    starts: list[int] = field(default_factory=list)

    def light(self, k: int, now: int) -> None:
        """Look for a lane's light from now on."""
        on, off = self.lanes[k].window(now)
        self.lit[k] = max(on, now), off

    def begin(self, size: int, now: int) -> None:
        self.left, self.begun, self.starts = size, now, []
        self.sent = defaultdict(Fraction)
        self.lit = [(0, 0)] * len(self.lanes)
        for k in range(len(self.lanes)):
            self.light(k, now)

    def gone(self, since: int, time: int) -> Fraction:
        lanes = zip(self.lanes, self.lit, strict=True)
        whole = sum(lane.fits(time - on) for lane, (on, _) in lanes)
        return whole + sum(self.sent.values()) + sum(self.rate.values()) * (time - since)

    def close(self, now: int) -> None:
        """Let lanes end what they send, in whole bytes."""
        for k, (on, _) in enumerate(self.lit):
            if (amount := min(self.lanes[k].fits(now - on), self.left)) > 0:
                self.left -= amount
                self.starts.append(on)
            self.light(k, now)

    def start(self) -> int:
        """Return when the first byte left, once all lanes are closed and the rest has gone."""
        by_plane = [k for k in sorted(self.sent) if self.sent[k] > 0]
        rest = self.left
        for k in by_plane:
            amount = rest if k == by_plane[-1] else min(rest, int(self.sent[k] + Fraction(1, 2)))
            if amount > 0:
                self.starts.append(self.begun)
            rest -= amount
        return min(self.starts)


class Shared(Timed):
    """Every queue drains over the circuits of its slots and over all packet planes."""

    def __init__(
        self, tasks: Tasks, fabric: Fabric, program: TimedProgram, guard: int, quantum: int
    ) -> None:
        super().__init__(tasks, fabric, program, guard, quantum)
        self.flows: dict[tuple[int, int], Flow] = {}

    def join(self, message: int) -> None:
        base = message % self.tasks.graph.tasks
        pair = int(self.tasks.graph.src[base]), int(self.tasks.graph.dst[base])
        flow = self.flows.setdefault(pair, Flow(self.lanes.get(pair, [])))
        flow.messages.append(message)
        if len(flow.messages) == 1:
            flow.begin(self.tasks.size_bytes[message], self.clock.now)

    def run(self) -> None:
        self.tasks.on_message = lambda m: self.clock.at(
            self.clock.now, lambda: self.join(m), (1, m)
        )
        self.tasks.begin()
        for _ in range(MOST_CHANGES):
            self.clock.run_until(self.clock.now)
            since = self.clock.now
            active = [flow for flow in self.flows.values() if flow.messages]
            self.share()
            now = self.next_change(active, since)
            if now is None:
                return
            for flow in active:
                for k, rate in flow.rate.items():
                    flow.sent[k] += rate * (now - since)
                flow.rate = {}
            self.clock.now = now
            for flow in active:
                self.go_on(flow, now)
        raise TooLongError

    def go_on(self, flow: Flow, now: int) -> None:
        if flow.gone(now, now) >= flow.left - DUST:
            flow.close(now)
            message = flow.messages.popleft()
            self.tasks.result.start[message] = flow.start()
            end = now + self.fabric.latency_ns
            self.clock.at(end, lambda: self.tasks.ended(message))
            if flow.messages:
                flow.begin(self.tasks.size_bytes[flow.messages[0]], now)
        elif any(off <= now for _, off in flow.lit):
            flow.close(now)

    def next_change(self, active: list[Flow], since: int) -> int | None:
        """Return when a message is gone, light comes or goes, or something else happens."""
        edges = [on if on > since else off for flow in active for on, off in flow.lit]
        if (event := self.clock.next_ns()) is not None:
            edges.append(event)
        for flow in active:
            if total := sum(flow.rate.values()):
                rest = max(flow.left - sum(flow.sent.values()), Fraction(0))
                edges.append(since + int(rest / total) + 1)
        if not edges:
            return None
        until = min(edges)
        for flow in active:
            if flow.gone(since, until) < flow.left - DUST:
                continue
            low = since
            while low < until:
                middle = (low + until) // 2
                if flow.gone(since, middle) >= flow.left - DUST:
                    until = middle
                else:
                    low = middle + 1
        return until

    def share(self) -> None:
        """Give every flow its max-min fair rate on every packet plane."""
        for k, plane in enumerate(self.fabric.planes):
            if plane.kind != "eps":
                continue
            port = Fraction(plane.rate_bps, 8 * 10**9)
            room = {
                (way, node): len(self.fabric.ports_of(k, node)) * port
                for way in ("out", "in")
                for node in range(self.fabric.nodes)
            }
            level = Fraction(0)
            growing = {
                pair
                for pair, flow in self.flows.items()
                if flow.messages and room["out", pair[0]] and room["in", pair[1]]
            }
            while growing and level < port:
                users: dict[tuple[str, int], int] = defaultdict(int)
                for src, dst in growing:
                    users["out", src] += 1
                    users["in", dst] += 1
                step = min(port - level, *(room[end] / count for end, count in users.items()))
                level += step
                for end, count in users.items():
                    room[end] -= step * count
                for pair in growing:
                    self.flows[pair].rate[k] = level
                growing = {pair for pair in growing if room["out", pair[0]] and room["in", pair[1]]}
