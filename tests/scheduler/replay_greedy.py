"""The second replay of `greedy`: on-demand circuits with keep-alive, in plain Python.

It shares no code with the dispatcher, the policy or the simulator. Packet switches carry nothing:
no circuit can be asked of them. The controller decides of what it hears within `gather_ns` of the
first thing at once, when nothing more happens by then: first of arrivals, then of messages that
became ready; each by task.
"""

from __future__ import annotations

import math
from collections import defaultdict
from fractions import Fraction
from typing import TYPE_CHECKING

from tests.scheduler.replay_parts import Clock, Replay, Tasks
from topologies import Circuit

if TYPE_CHECKING:
    from scheduler.model.taskgraph import TaskGraph
    from topologies import Fabric, Port

__all__ = ["Greedy", "on_demand", "replay_greedy"]

ENDED, HEARD, ASKED = range(3)


def replay_greedy(
    graph: TaskGraph, fabric: Fabric, *, iterations: int, gather_ns: int = 0
) -> Replay:
    """Execute on demand: the oldest waiting message takes the first ports free for it."""
    return on_demand(Greedy, graph, fabric, iterations=iterations, gather_ns=gather_ns)


def on_demand(
    policy: type[Greedy], graph: TaskGraph, fabric: Fabric, *, iterations: int, gather_ns: int
) -> Replay:
    """Execute with a policy that answers to events."""
    result, clock = Replay(), Clock()
    tasks = Tasks(graph, iterations, clock, result)
    policy(graph, fabric, tasks, clock, result).run(gather_ns)
    return result


class Greedy:
    """What stands, who uses it and who waits."""

    def __init__(
        self, graph: TaskGraph, fabric: Fabric, tasks: Tasks, clock: Clock, result: Replay
    ) -> None:
        self.graph, self.fabric, self.tasks = graph, fabric, tasks
        self.clock, self.result = clock, result
        self.waiting: list[int] = []  # in the order the controller heard of them
        self.stands: list[set[frozenset[Port]]] = [set() for _ in fabric.planes]
        self.up: dict[tuple[int, frozenset[Port]], int] = {}
        self.users: dict[tuple[int, Port], int] = defaultdict(int)
        self.free: dict[tuple[int, int], int] = defaultdict(int)  # outputs
        self.uses: dict[int, tuple[int, frozenset[Port]]] = {}
        self.news: list[tuple[int, int]] = []
        self.since = 0
        tasks.on_message = self.became_ready

    def run(self, gather_ns: int) -> None:
        self.tasks.begin()
        while self.clock.step():
            if self.news and not self.clock.goes_on_by(self.since + gather_ns):
                news, self.news = self.news, []
                for what, message in sorted(news):
                    if what == HEARD:
                        self.arrived(message)
                    else:
                        self.asked(message)

    def hear(self, what: int, message: int) -> None:
        if not self.news:
            self.since = self.clock.now
        self.news.append((what, message))

    def ends(self, message: int) -> tuple[int, int]:
        base = message % self.graph.tasks
        return int(self.graph.src[base]), int(self.graph.dst[base])

    def became_ready(self, message: int) -> None:
        heard = self.clock.now + self.fabric.notify_ns
        self.clock.at(heard, lambda: self.hear(ASKED, message), (ASKED, message))

    def asked(self, message: int) -> None:
        self.waiting.append(message)
        self.place(message)

    def place(self, message: int) -> None:
        """Idle circuits that stand, then idle ports, then duplex circuits busy the other way."""
        source, target = self.ends(message)
        for turn in range(3):
            for k, plane in enumerate(self.fabric.planes):
                if plane.kind == "eps":
                    continue
                for a in self.fabric.ports_of(k, source):
                    for b in self.fabric.ports_of(k, target):
                        wanted = plane.uses(Circuit(a, b))
                        stood = wanted in self.stands[k]
                        busy = any(self.users[k, port] for port in wanted)
                        fits = (
                            stood and not busy,
                            not stood and not busy,
                            stood and plane.duplex,
                        )[turn]
                        if fits and self.light(k, wanted):
                            self.send(message, k, a, wanted)
                            return

    def light(self, k: int, wanted: frozenset[Port]) -> bool:
        """Make a circuit unless that takes the light from somebody.

        An all-stop plane makes its other circuits anew as well.
        """
        if wanted in self.stands[k]:
            return True
        plane = self.fabric.planes[k]
        lost = {held for held in self.stands[k] if held & wanted}
        dark = set(self.stands[k]) if plane.all_stop else lost
        if any(self.users[k, port] for held in dark for port in held):
            return False
        self.stands[k] = (self.stands[k] - lost) | {wanted}
        up = self.clock.now + self.fabric.control_ns + plane.delay_ns
        for circuit in self.stands[k] if plane.all_stop else [wanted]:
            self.up[k, circuit] = up
        return True

    def send(self, message: int, k: int, port: int, circuit: frozenset[Port]) -> None:
        self.waiting.remove(message)
        for each in circuit:
            self.users[k, each] += 1
        self.uses[message] = k, circuit
        start = max(self.clock.now, self.up[k, circuit], self.free[k, port])
        bits = self.tasks.size_bytes[message] * 8 * 10**9
        last = start + math.ceil(Fraction(bits, self.fabric.planes[k].rate_bps))
        self.free[k, port] = last
        self.result.start[message] = start
        end = last + self.fabric.latency_ns
        self.clock.at(end, lambda: self.ended(message), (ENDED, message))

    def ended(self, message: int) -> None:
        self.tasks.ended(message)
        if self.fabric.notify_ns == 0:
            self.hear(HEARD, message)
        else:
            later = self.clock.now + self.fabric.notify_ns
            self.clock.at(later, lambda: self.hear(HEARD, message), (HEARD, message))

    def arrived(self, message: int) -> None:
        """Free the ports; the same pair comes first, then all who wait at either node."""
        k, circuit = self.uses[message]
        for port in circuit:
            self.users[k, port] -= 1
        source, target = self.ends(message)
        rounds = [lambda m: self.ends(m) == (source, target)]
        for node in (source, target):
            rounds.append(lambda m, node=node: self.ends(m)[0] == node)
            rounds.append(lambda m, node=node: self.ends(m)[1] == node)
        if any(plane.all_stop for plane in self.fabric.planes):  # all of it may be free to change
            nodes = range(self.fabric.nodes)
            rounds += [lambda m, node=node: self.ends(m)[0] == node for node in nodes]
        for wanted in rounds:
            for other in [m for m in self.waiting if wanted(m)]:
                self.place(other)
