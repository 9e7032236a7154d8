"""A second, slow replay of the model in plain Python, to hold the simulator against.

It shares no code with the dispatcher or the simulator: ordered programs become *stays* (circuits
with everything they carry while they stand) that wait for each other, timed ones are walked slot
by slot. All times are integers, so the two must agree to the nanosecond.
"""

from __future__ import annotations

from collections import defaultdict, deque
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from scheduler.model.program import Entry, OrderedProgram, TimedProgram
from tests.scheduler.replay_parts import Clock, Replay, Tasks, wire_ns
from topologies import Circuit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scheduler.model.program import Program
    from scheduler.model.taskgraph import TaskGraph
    from topologies import Fabric, Plane, Port

__all__ = ["Lane", "Timed", "replay"]


class Stay:
    """Circuits of one plane that stand together, and the messages each output sends meanwhile."""

    def __init__(self, plane: int) -> None:
        self.plane = plane
        self.circuits: set[Circuit] = set()
        self.queues: dict[int, list[int]] = defaultdict(list)  # by src_port
        self.waits_for = 0
        self.next: list[Stay] = []
        self.stood_before = False
        self.request: int | None = None
        self.up: int | None = None
        self.unsent = 0
        self.told = False
        self.release = 0  # when the last of its messages lets its ports go


class Ordered:
    """An ordered program."""

    def __init__(
        self,
        tasks: Tasks,
        fabric: Fabric,
        program: OrderedProgram,
        iterations: int,
        lookahead: int,
    ) -> None:
        self.tasks, self.fabric, self.lookahead = tasks, fabric, lookahead
        self.program = program
        self.clock, self.result = tasks.clock, tasks.result
        self.free: dict[tuple[int, int], int] = defaultdict(int)
        self.stay_of: dict[int, tuple[Stay, int]] = {}
        self.stays: list[Stay] = []
        self.packet_of: dict[int, tuple[int, int, int]] = {}
        self.waiting: dict[tuple[int, int], deque[int]] = defaultdict(deque)
        self.sending: set[tuple[int, int]] = set()
        self.taken: set[tuple[int, int]] = set()
        self.asking: dict[tuple[int, int], deque[tuple[int, int]]] = defaultdict(deque)
        for index, plane in enumerate(fabric.planes):
            initial = {Circuit(s, d) for p, s, d in program.initial_circuits if p == index}
            entries = program.entries(index)
            if plane.kind == "eps":
                for src, dst, messages in entries:
                    for i in range(iterations):
                        for m in messages:
                            self.packet_of[i * tasks.graph.tasks + m] = (index, src, dst)
            elif plane.all_stop:
                numbers = program.matching[program.plane == index].tolist()
                self.chain_of_matchings(index, entries, numbers, iterations, initial)
            else:
                self.chain_of_ports(index, plane, entries, iterations, initial)

    def fill(self, stay: Stay, src: int, messages: list[int]) -> None:
        stay.queues[src] += messages
        stay.unsent += len(messages)
        for m in messages:
            self.stay_of[m] = (stay, src)

    def link(self, before: Stay, after: Stay) -> None:
        if after not in before.next:
            before.next.append(after)
            after.waits_for += 1

    def chain_of_ports(
        self,
        index: int,
        plane: Plane,
        entries: list[Entry],
        iterations: int,
        initial: set[Circuit],
    ) -> None:
        """Entries merge into the stay that last used all their ports, if it is the same one."""
        last: dict[object, Stay] = {}
        size = self.tasks.graph.tasks
        for i in range(iterations):
            for src, dst, messages in entries:
                if not messages:
                    continue
                uses = plane.uses(Circuit(src, dst))
                held = {last.get(port) for port in uses}
                (only,) = held if len(held) == 1 else (None,)
                if only is None or plane.uses(next(iter(only.circuits))) != uses:
                    stay = Stay(index)
                    stay.circuits = {Circuit(src, dst)}
                    if held == {None}:
                        stay.stood_before = any(plane.uses(c) == uses for c in initial)
                    for before in [old for old in held if old]:
                        self.link(before, stay)
                    for port in uses:
                        last[port] = stay
                    self.stays.append(stay)
                    only = stay
                self.fill(only, src, [i * size + m for m in messages])

    def chain_of_matchings(
        self,
        index: int,
        entries: list[Entry],
        numbers: list[int],
        iterations: int,
        initial: set[Circuit],
    ) -> None:
        """A configuration whose circuits all stand merges into the stay before it."""
        plane = self.fabric.planes[index]
        groups: list[list[Entry]] = []
        for k, entry in enumerate(entries):
            if k and numbers[k] == numbers[k - 1]:
                groups[-1].append(entry)
            else:
                groups.append([entry])
        stay = Stay(index)
        stay.circuits, stay.stood_before = set(initial), True
        self.stays.append(stay)
        for i in range(iterations):
            for group in groups:
                if not any(messages for _, _, messages in group):
                    continue
                standing = [plane.uses(c) for c in stay.circuits]
                if not all(plane.uses(Circuit(s, d)) in standing for s, d, _ in group):
                    after = Stay(index)
                    kept: dict[frozenset[Port], Circuit] = {}
                    for s, d, _ in group:
                        kept.setdefault(plane.uses(Circuit(s, d)), Circuit(s, d))
                    after.circuits = set(kept.values())
                    self.link(stay, after)
                    self.stays.append(after)
                    stay = after
                for src, _, messages in group:
                    shift = i * self.tasks.graph.tasks
                    self.fill(stay, src, [shift + m for m in messages])

    def run(self) -> None:
        self.tasks.on_message = self.message_ready
        self.tasks.begin()
        for stay in self.stays:
            if stay.waits_for == 0:
                self.clock.at(0, partial(self.ask, stay))
        self.clock.run()
        self.write_circuits()

    def ask(self, stay: Stay) -> None:
        stay.request = self.clock.now
        stay.up = self.clock.now
        if stay.stood_before:
            stay.up, stay.request = 0, None
        else:
            stay.up += self.fabric.control_ns + self.fabric.planes[stay.plane].delay_ns
        for port in list(stay.queues):
            self.serve(stay, port)
        self.let_go(stay)

    def let_go(self, stay: Stay) -> None:
        """Once everything a stay carries has a time, its ports' next stays know theirs."""
        if stay.told or stay.up is None or stay.unsent:
            return
        stay.told = True
        for after in stay.next:
            after.waits_for -= 1
            if after.waits_for == 0:
                time = max(before.release for before in self.stays if after in before.next)
                self.clock.at(max(time, self.clock.now), partial(self.ask, after))

    def message_ready(self, message: int) -> None:
        if message in self.packet_of:
            rank = (2, message)
            self.clock.at(self.clock.now, lambda: self.packet_join(message), rank)
        else:
            self.serve(*self.stay_of[message])

    def serve(self, stay: Stay, port: int) -> None:
        queue = stay.queues[port]
        while stay.up is not None and queue and queue[0] in self.result.admitted:
            m = queue.pop(0)
            key = (stay.plane, port)
            start = max(self.result.admitted[m], stay.up, self.free[key])
            last = self.transmit(m, stay.plane, port, start)
            self.free[key] = last
            known = last + self.fabric.latency_ns + self.fabric.notify_ns
            if self.lookahead:
                early = max(last - self.fabric.control_ns, known - self.lookahead)
                known = max(start + self.fabric.notify_ns, early)
            stay.release = max(stay.release, known)
            stay.unsent -= 1
        self.let_go(stay)

    def transmit(self, m: int, plane: int, port: int, start: int) -> int:
        size = self.tasks.size_bytes[m]
        last = start + wire_ns(size, self.fabric.planes[plane].rate_bps)
        arrival = last + self.fabric.latency_ns
        self.result.start[m] = start
        self.result.transfers.append((m, plane, port, size, start, arrival))
        self.clock.at(arrival, lambda: self.tasks.ended(m))
        self.tasks.leaves(m, last)
        return last

    def packet_join(self, message: int) -> None:
        plane, src, _ = self.packet_of[message]
        self.waiting[plane, src].append(message)
        self.packet_next((plane, src))

    def packet_next(self, source: tuple[int, int]) -> None:
        if source in self.sending or not self.waiting[source]:
            return
        self.sending.add(source)
        plane, _, dst = self.packet_of[self.waiting[source][0]]
        if (plane, dst) in self.taken:
            self.asking[plane, dst].append(source)
        else:
            self.packet_start(source)

    def packet_start(self, source: tuple[int, int]) -> None:
        message = self.waiting[source].popleft()
        plane, src, dst = self.packet_of[message]
        self.taken.add((plane, dst))
        last = self.transmit(message, plane, src, self.clock.now)
        first = sum(p.ports for p in self.fabric.planes[:plane])
        rank = (1, first + src)
        self.clock.at(last, lambda: self.packet_sent(source, (plane, dst)), rank)

    def packet_sent(self, source: tuple[int, int], target: tuple[int, int]) -> None:
        self.taken.remove(target)
        if self.asking[target]:
            self.packet_start(self.asking[target].popleft())
        self.sending.remove(source)
        self.packet_next(source)

    def write_circuits(self) -> None:
        control = self.fabric.control_ns
        for index, plane in enumerate(self.fabric.planes):
            mine = [s for s in self.stays if s.plane == index and s.up is not None]
            rows = [
                (c, s.request, s.up) for s in mine if not s.stood_before for c in s.circuits
            ] + [(c, None, 0) for c in self.initial_of(index)]
            for circuit, request, up in rows:
                uses = plane.uses(circuit)
                down = None
                for s in mine:
                    if s.request is None or (request is not None and s.request <= request):
                        continue
                    hits = plane.all_stop or any(plane.uses(c) & uses for c in s.circuits)
                    if hits and (down is None or s.request + control < down):
                        down = s.request + control
                self.result.circuits.append((index, *circuit, request, up, down))

    def initial_of(self, plane: int) -> list[Circuit]:
        return [Circuit(s, d) for p, s, d in self.program.initial_circuits if p == plane]


class Timed:
    """A timed program with direct routing: every queue walks its windows slot by slot."""

    def __init__(
        self, tasks: Tasks, fabric: Fabric, program: TimedProgram, guard: int, quantum: int
    ) -> None:
        self.tasks, self.fabric, self.program = tasks, fabric, program
        self.guard, self.quantum = guard, quantum
        self.clock, self.result = tasks.clock, tasks.result
        self.lanes: dict[tuple[int, int], list[Lane]] = defaultdict(list)
        for index, plane in enumerate(fabric.planes):
            for port in range(plane.ports):
                for to in range(plane.ports):
                    windows = self.walk(index, plane, port, to)
                    if next(windows, None) is not None:
                        pair = plane.node_of[port], plane.node_of[to]
                        lane = Lane(index, port, plane.rate_bps, self.walk(index, plane, port, to))
                        self.lanes[pair].append(lane)
        for lanes in self.lanes.values():
            lanes.sort(key=lambda lane: (lane.plane, lane.port))

    def walk(self, index: int, plane: Plane, port: int, to: int) -> Iterator[tuple[int, int]]:
        """Yield the windows from `port` to `to`, for as long as anyone asks."""
        slots = self.program.planes[index]
        if not any(slot.dst_ports[port] == to for slot in slots):
            return
        cold = self.fabric.control_ns + plane.delay_ns
        before: tuple[int, ...] | None = None
        up, any_fits = 0, False
        for cycle in count(-4):
            for k, slot in enumerate(slots):
                begin = self.program.phase_ns + cycle * self.program.period_ns + slot.offset_ns
                later = slots[k + 1].offset_ns if k + 1 < len(slots) else self.program.period_ns
                later += slots[0].offset_ns if k + 1 == len(slots) else 0
                off = begin - slot.offset_ns + later - self.guard
                goes_on = self.program.partial and before == slot.dst_ports
                if self.program.partial and before is not None and not plane.all_stop:
                    goes_on = before[port] == slot.dst_ports[port]
                if not goes_on:
                    up = begin + plane.delay_ns
                    if self.program.partial and before is None:
                        up = begin  # far before time zero: as if it always stood
                before = slot.dst_ports
                on = max(begin, up)
                fits = off - on >= plane.transfer_ns(1)
                if slot.dst_ports[port] == to and fits and cycle > -3:
                    any_fits = True
                    if off > 0:
                        yield max(on, cold), off
            if cycle > 0 and not any_fits:
                return

    def run(self) -> None:
        self.tasks.on_message = lambda m: self.clock.at(
            self.clock.now, lambda: self.join(m), (1, m)
        )
        self.tasks.begin()
        self.clock.run()

    def join(self, message: int) -> None:
        base = message % self.tasks.graph.tasks
        pair = int(self.tasks.graph.src[base]), int(self.tasks.graph.dst[base])
        lanes, left = self.lanes[pair], self.tasks.size_bytes[message]
        pieces = self.frames(lanes, left) if self.quantum else self.stream(lanes, left)
        joined: list[list[int]] = []
        for k, size, start, last, opened in pieces:
            recent = [p for p in joined[-8:] if p[0] == k and p[3] == start]
            if recent and not opened:
                recent[0][1] += size
                recent[0][3] = last
            else:
                joined.append([k, size, start, last])
        latency = self.fabric.latency_ns
        for k, size, start, last in joined:
            lane = lanes[k]
            self.result.transfers.append(
                (message, lane.plane, lane.port, size, start, last + latency)
            )
        if pieces:
            self.result.start[message] = min(p[2] for p in pieces)
            last = max(p[3] for p in pieces)
            self.clock.at(last + latency, lambda: self.tasks.ended(message))
            self.tasks.leaves(message, last)

    def stream(self, lanes: list[Lane], left: int) -> list[tuple[int, int, int, int, bool]]:
        """Find the first moment by which all lanes together can have sent everything."""
        if not lanes:
            return []
        now = max([self.clock.now, *(lane.free for lane in lanes)])

        def sent(until: int) -> int:
            return sum(
                lane.fits(min(off, until) - max(on, now))
                for lane in lanes
                for on, off in lane.windows_between(now, until)
            )

        span = 1
        while sent(now + span) < left:
            span *= 2
        low, high = now + span // 2, now + span
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if sent(middle) >= left else (middle, high)
        pieces: list[tuple[int, int, int, int, bool]] = []
        ending: list[tuple[int, int, int, int, bool]] = []
        for k, lane in enumerate(lanes):
            for on, off in lane.windows_between(now, high):
                begin, end = max(on, now), min(off, high)
                piece = (k, lane.fits(end - begin), begin, end, True)
                (ending if off >= high else pieces).append(piece)
        left -= sum(piece[1] for piece in pieces)
        for k, size, begin, end, opened in ending:
            pieces.append((k, min(size, left), begin, end, opened))
            left -= min(size, left)
        for lane in lanes:
            lane.free = high
        return [piece for piece in pieces if piece[1]]

    def frames(self, lanes: list[Lane], left: int) -> list[tuple[int, int, int, int, bool]]:
        pieces: list[tuple[int, int, int, int, bool]] = []
        while left and lanes:
            choices = []
            for k, lane in enumerate(lanes):
                begin = max(self.clock.now, lane.free)
                while True:
                    on, off = lane.window(begin)
                    begin = max(begin, on)
                    if lane.fits(off - begin) >= 1:
                        choices.append((begin, k, lane.fits(off - begin)))
                        break
                    begin = off
            begin, k, room = min(choices)
            size = min(self.quantum, left, room)
            lanes[k].free = begin + wire_ns(size, lanes[k].rate)
            opened = lanes[k].window(begin)[0] == begin
            pieces.append((k, size, begin, lanes[k].free, opened))
            left -= size
        return pieces


class Lane:
    """An output port that leads to a queue's destination now and then."""

    def __init__(
        self, plane: int, port: int, rate: int, windows: Iterator[tuple[int, int]]
    ) -> None:
        self.plane, self.port, self.rate = plane, port, rate
        self.windows = windows
        self.seen: list[tuple[int, int]] = []
        self.free = 0

    def windows_between(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return the windows that have a part in this time, and read one beyond it."""
        while not self.seen or self.seen[-1][0] < end or self.seen[-1][1] <= begin:
            self.seen.append(next(self.windows))
        return [(on, off) for on, off in self.seen if on < end and off > begin]

    def window(self, now: int) -> tuple[int, int]:
        self.windows_between(now, now + 1)
        return next((on, off) for on, off in self.seen if off > now)

    def fits(self, time: int) -> int:
        return max(time, 0) * self.rate // (8 * 10**9)


def replay(
    graph: TaskGraph,
    fabric: Fabric,
    program: Program,
    *,
    iterations: int,
    lookahead_ns: int = 0,
    quantum_bytes: int = 0,
    nic_buffer_bytes: int | None = None,
) -> Replay:
    """Execute an ordered program, or a timed one with direct routing."""
    result, clock = Replay(), Clock()
    tasks = Tasks(graph, iterations, clock, result, nic_buffer_bytes)
    if isinstance(program, OrderedProgram):
        Ordered(tasks, fabric, program, iterations, lookahead_ns).run()
    else:
        assert isinstance(program, TimedProgram)
        assert program.routing == "direct"
        Timed(tasks, fabric, program, program.guard_ns, quantum_bytes).run()
    return result
