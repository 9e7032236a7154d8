"""Dilation: how much slower than the fabric the emulation runs, and how coarse its frames are.

wall = virtual * factor. The rate at which frames go over a link on the wall is what this machine
can carry and does not depend on the factor; one frame then stands for fewer virtual bytes the
larger the factor is. `choose` takes the smallest factor that keeps the emulation honest.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypedDict

import numpy as np

from scheduler.dispatch.simulator import iteration_ends, simulate
from scheduler.model.program import Program, ReactiveProgram, Slot, TimedProgram
from scheduler.model.taskgraph import COMPUTE, MESSAGE, TaskGraph, csr
from scheduler.model.timeline import NONE
from topologies.errors import UsageError
from topologies.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scheduler.model.timeline import Timeline
    from testbed.emulator.capacity import Capacity
    from topologies.fabric import Fabric, Plane

__all__ = [
    "FRAME_BYTES",
    "HOPS_PER_DELAY",
    "Dilation",
    "choose",
    "critical_messages",
    "dilate",
    "slot_lengths_ns",
]

FRAME_BYTES: Final = 4096
"""The largest path MTU of InfiniBand. The engine's cost is per frame: the size hardly matters."""
GUARD_WALL_NS: Final = 50_000
_HOPS_TOGETHER: Final = 2
HOPS_PER_DELAY: Final = 20
_DELAY_TOGETHER: Final = _HOPS_TOGETHER / HOPS_PER_DELAY  # what that comes to at the least factor
_GUARD_SHARE: Final = 0.5
_LATE_SHARE: Final = 0.0025
_FRAME_SHARE: Final = 0.01
_FRAMES_PER_SLOT: Final = 50
_LEAST_IDLE: Final = 0.1
_LATE_HOPS: Final = 4  # two at half the dilation
_SLEEPY: Final = 2
_DRAWS: Final = 5
_STEP: Final = 1.25
_MOST_GROWTH: Final = 16
_MOST_CALM: Final = 8
_LEAST_FACTOR: Final = 0.01
_MOST_FACTOR: Final = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Dilation:
    """What one execution is slowed down by.

    `wall_bps` is what the fastest port carries on the wall, `frame_bytes` the data of a full frame,
    which stands for `quantum_bytes` virtual bytes; `bytes_per_wall_byte` is their ratio. `guard_ns`
    (virtual) is how long before the end of a slot the last frame leaves. Within `gather_ns`
    (virtual) a reactive policy takes events for simultaneous: what happens at once in simulation
    comes one by one on the wall, and the lateness of a whole iteration must not say which of two
    messages that both have to wait for a circuit goes first. `bound_by` names what made the factor
    as large as it is. `expected_wall_s` is None where nothing was predicted.
    """

    factor: float
    bytes_per_wall_byte: float
    wall_bps: int
    frame_bytes: int
    quantum_bytes: int
    guard_ns: int
    bound_by: str
    expected_wall_s: float | None = None
    gather_ns: int = 0


def choose(
    graph: TaskGraph,
    fabric: Fabric,
    program: Program,
    capacity: Capacity,
    *,
    factor: float | None = None,
    iterations: int = 4,
    lookahead_ns: int = 0,
    nic_buffer_bytes: int | None = None,
    frame_bytes: int = FRAME_BYTES,
) -> Dilation:
    """Return the smallest dilation that keeps the emulation honest, or that of a given `factor`.

    The factor satisfies, with hops as measured in `capacity`:

    - tau * factor >= 20 hop p99, so that what a window is late by does not matter;
    - the messages on the critical path, each late by a mean hop or by what a chain was seen to
      lose per message, lose 0.25 % of the iteration at most: where frames are rare the machine
      wakes up later than in the measurement, by up to four times;
    - the frames of an iteration are no more than half of what this machine carries meanwhile;
    - a slot of a timed program holds 50 frames at least, and its guard half its light at most;
    - the iteration of a timed program simulated with frames and guard is within 1 % of the ideal
      one, and no more than 1 % longer when everything arrives four hops late: what just fits into a
      slot must not need another one on this machine. With two hops every frame chooses its relay,
      so the size of frames always shows, and only lateness is held against the simulation;
    - a reactive program's iteration is within 1 % whichever computations end up to eight hops late.

    Raises what `simulate` raises, and `UsageError` for a factor that is not positive, or at which
    frames of this machine come too late for any slot of a timed program.
    """
    if factor is not None and not 0 < factor < _MOST_FACTOR:
        why = f"it must be above 0 and below {_MOST_FACTOR:g}"
        raise UsageError(f"a dilation of {factor:g}", "dilation", why, "correct it, or use auto")
    held: _Held = {"lookahead_ns": lookahead_ns, "nic_buffer_bytes": nic_buffer_bytes}
    timeline = simulate(graph, fabric, program, iterations=iterations, **held)
    case = _Case(graph, fabric, program, iterations, held, timeline)
    frames = _Frames(fabric, capacity, frame_bytes)
    delays = [plane.delay_ns for plane in fabric.planes if plane.kind == "ocs"]
    delay_ns = min(delays, default=0)

    def dilation(chosen: float, bound_by: str) -> Dilation:
        quantum_bytes = frames.quantum_bytes(chosen)
        guard_ns = math.ceil(_guard_wall_ns(capacity) / chosen)
        gather_ns = math.ceil(
            max(_HOPS_TOGETHER * capacity.hop_p99_ns / chosen, _DELAY_TOGETHER * delay_ns)
        )
        return Dilation(
            factor=chosen,
            bytes_per_wall_byte=quantum_bytes / frame_bytes,
            wall_bps=frames.wall_bps,
            frame_bytes=frame_bytes,
            quantum_bytes=quantum_bytes,
            guard_ns=guard_ns if isinstance(program, TimedProgram) else 0,
            bound_by=bound_by,
            expected_wall_s=case.end_ns * chosen / 1e9,
            gather_ns=gather_ns if isinstance(program, ReactiveProgram) else 0,
        )

    if factor is not None:
        given = dilation(factor, "given")
        _require_light(fabric, program, given, capacity)
        return given
    bounds = _bounds(case, capacity, frames)
    bound_by, least = max(bounds.items(), key=lambda item: item[1])
    late_ns = _LATE_HOPS * capacity.hop_p99_ns
    chosen = first = _two_digits(least)
    reactive = isinstance(program, ReactiveProgram)
    while chosen <= (_MOST_CALM if reactive else _MOST_GROWTH) * first:
        if _close_enough(case, dilation(chosen, bound_by), late_ns):
            grown_by = "late decisions" if reactive else "slots"
            return dilation(chosen, bound_by if chosen == first else grown_by)
        chosen = _two_digits(chosen * _STEP)
    # some slots fit to the ns, at any dilation, and some policies never decide twice alike: what
    # these frames do then is the prediction
    return dilation(first, f"{bound_by}, unsteady decisions" if reactive else bound_by)


class _Held(TypedDict):
    """What the prediction is told beside the program."""

    lookahead_ns: int
    nic_buffer_bytes: int | None


class _Case(NamedTuple):
    """What is to be executed, and its prediction without frames."""

    graph: TaskGraph
    fabric: Fabric
    program: Program
    iterations: int
    held: _Held
    timeline: Timeline

    @property
    def end_ns(self) -> int:
        return int(self.timeline.iteration_ends_ns[-1])

    @property
    def iteration_ns(self) -> float:
        return max(self.end_ns / self.iterations, 1.0)


class _Frames:
    """What frames carry at half the measured rate, shared by all ports as their rates are."""

    def __init__(self, fabric: Fabric, capacity: Capacity, frame_bytes: int) -> None:
        self.frames_per_s = capacity.frames_per_s / 2
        self.frame_bytes = frame_bytes
        rates = [(plane.rate_bps, plane.ports) for plane in fabric.planes]
        self._all_bps = sum(rate * ports for rate, ports in rates)
        wall_bps = self.frames_per_s * frame_bytes * 8
        self.wall_bps = round(wall_bps * max(rate for rate, _ in rates) / self._all_bps)

    def quantum_bytes(self, factor: float) -> int:
        """Return the virtual bytes of a full frame."""
        return max(1, round(self._all_bps / 8 / self.frames_per_s / factor))

    def factor_for(self, quantum_bytes: float) -> float:
        """Return the factor at which a full frame is so many virtual bytes."""
        return self._all_bps / 8 / self.frames_per_s / max(quantum_bytes, 1.0)


def _bounds(case: _Case, capacity: Capacity, frames: _Frames) -> dict[str, float]:
    """Return the least factor by what asks for it."""
    fabric, program = case.fabric, case.program
    timed = isinstance(program, TimedProgram)
    critical = critical_messages(case.graph, case.timeline, timed=timed) / case.iterations
    sizes = case.graph.size_bytes[case.graph.kind == MESSAGE]
    carried = sum(plane.rate_bps * plane.ports for plane in fabric.planes)
    moved = float(case.timeline.transfers.size_bytes.sum()) / case.iterations  # by relays: twice
    idle = 1 - moved * 8e9 / carried / case.iteration_ns
    late_ns = max(capacity.hop_mean_ns, capacity.drift_ns)
    bounds = {
        "critical path": critical * late_ns / (_LATE_SHARE * case.iteration_ns),
        # full frames come at the rate of the links; each message also ends in one that is not
        "frame rate": len(sizes)
        / (max(idle, _LEAST_IDLE) * frames.frames_per_s * case.iteration_ns / 1e9),
    }
    delays = [plane.delay_ns for plane in fabric.planes if plane.delay_ns > 0]
    if delays:
        bounds["reconfiguration delay"] = HOPS_PER_DELAY * capacity.hop_p99_ns / min(delays)
    if isinstance(program, TimedProgram):
        carries = (lit_ns * plane.rate_bps / 8e9 for plane, lit_ns in _lights(fabric, program))
        slot_bytes = min(carries, default=math.inf)  # guard aside
        bounds["frames per slot"] = frames.factor_for(slot_bytes / _FRAMES_PER_SLOT)
        if lit_ns := _lit_ns(fabric, program):
            bounds["guard"] = _guard_wall_ns(capacity) / (_GUARD_SHARE * lit_ns)
    return bounds


def _guard_wall_ns(capacity: Capacity) -> float:
    """Return how late on the wall the guard allows frames to be."""
    return max(GUARD_WALL_NS, capacity.hop_p99_ns)


def _lights(fabric: Fabric, program: TimedProgram) -> Iterator[tuple[Plane, int]]:
    """Yield the plane of each slot that is lit, and for how long, ns."""
    for plane, slots in zip(fabric.planes, program.planes, strict=True):
        for length_ns in slot_lengths_ns(slots, program.period_ns):
            if length_ns > plane.delay_ns:
                yield plane, length_ns - plane.delay_ns


def _lit_ns(fabric: Fabric, program: TimedProgram) -> int:
    """Return how long the light of the shortest slot lasts; 0 where there is no slot."""
    return min((lit_ns for _, lit_ns in _lights(fabric, program)), default=0)


def _require_light(
    fabric: Fabric, program: Program, dilation: Dilation, capacity: Capacity
) -> None:
    """Refuse a factor at which the guard takes all the light of a slot."""
    if not isinstance(program, TimedProgram):
        return
    lit_ns = _lit_ns(fabric, program)
    if lit_ns == 0 or dilation.guard_ns < lit_ns:
        return
    late_ns = _guard_wall_ns(capacity)
    what = f"no frame can be sent in a slot at a dilation of {dilation.factor:g}"
    why = (
        f"a slot is lit for {format_duration(lit_ns)}, and frames on this machine are late by "
        f"{format_duration(late_ns)} on the wall, {format_duration(dilation.guard_ns)} of it"
    )
    fix = f"use a dilation above {_two_digits(late_ns / lit_ns):g}, or auto, or longer slots"
    raise UsageError(what, "dilation", why, fix)


def slot_lengths_ns(slots: Sequence[Slot], period_ns: int) -> list[int]:
    """Return how long each of a plane's slots lasts: until the next one, the last to the first."""
    begins = [slot.offset_ns for slot in slots]
    lengths: list[int] = np.diff([*begins, *(b + period_ns for b in begins[:1])]).tolist()
    return lengths


def _close_enough(case: _Case, dilation: Dilation, late_ns: float) -> bool:
    """Say whether frames, guard and lateness (wall) change the prediction by no more than 1 %."""
    if isinstance(case.program, ReactiveProgram):
        return _steady(case, dilation, late_ns)
    if not isinstance(case.program, TimedProgram):
        return True  # messages are atomic: how they are cut does not show
    latency_ns = case.fabric.latency_ns + math.ceil(late_ns / dilation.factor)
    on_time = _end_ns(case, dilation)
    later = case._replace(fabric=dataclasses.replace(case.fabric, latency_ns=latency_ns))
    late = _end_ns(later, dilation)
    ideal = case.end_ns if case.program.routing == "direct" else on_time
    return max(abs(on_time - ideal), late - ideal) <= _FRAME_SHARE * ideal


def _steady(case: _Case, dilation: Dilation, late_ns: float) -> bool:
    """Say whether a reactive program does much the same, within 1 %, whoever is late.

    Every computation is longer by up to twice `late_ns` (wall), at random: a thread that
    sleeps wakes up so much later than the measured one, which is busy.
    """
    most_ns = math.ceil(_SLEEPY * late_ns / dilation.factor)
    expected_ns = _end_ns(case, dilation)
    for seed in range(_DRAWS):
        drawn = np.random.default_rng(seed).integers(0, most_ns + 1, case.graph.tasks)
        dur_ns = case.graph.dur_ns + np.where(case.graph.kind == COMPUTE, drawn, 0)
        late = case._replace(graph=dataclasses.replace(case.graph, dur_ns=dur_ns))
        if abs(_end_ns(late, dilation) - expected_ns) > _FRAME_SHARE * expected_ns:
            return False
    return True


def _end_ns(case: _Case, dilation: Dilation) -> int:
    """Return when all iterations of a timed or reactive program end under `dilation`."""
    own_guard_ns = case.program.guard_ns if isinstance(case.program, TimedProgram) else 0
    ends = iteration_ends(
        case.graph,
        case.fabric,
        case.program,
        iterations=case.iterations,
        quantum_bytes=dilation.quantum_bytes,
        guard_ns=max(dilation.guard_ns, own_guard_ns),
        gather_ns=dilation.gather_ns,
        **case.held,
    )
    return int(ends[-1])


def _two_digits(value: float) -> float:
    """Round up to two significant digits, for people.

    >>> _two_digits(118.2), _two_digits(0.031)
    (120.0, 0.031)
    """
    if value <= 0:
        return _LEAST_FACTOR
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return max(float(f"{math.ceil(value / unit * (1 - 1e-12)) * unit:.6g}"), _LEAST_FACTOR)


def critical_messages(graph: TaskGraph, timeline: Timeline, *, timed: bool = False) -> int:
    """Count the arrivals on a critical path of an execution, from its last task to time zero.

    A task waits for the predecessor that ended last, and a message that waited longer for the one
    that held a port of it before. That one's arrival counts where it had to be known: not where the
    port was merely busy on the same circuit, and not under `timed` programs, whose circuits wait
    for nothing. A message that passed a relay arrives twice: there, and at its destination.
    """
    before, after, _ = graph.unrolled_arcs(timeline.iterations)
    pointers, listed = csr(after, before, len(timeline.end_ns))
    kind = np.tile(graph.kind, timeline.iterations)
    held = {} if timed else _held_up(timeline)
    moves = timeline.transfers
    relayed = set(moves.task[moves.hop == 1].tolist())
    task, known, count = int(np.argmax(timeline.end_ns)), True, 0
    while task != NONE:
        if known and kind[task] == MESSAGE:
            count += 2 if task in relayed else 1
        earlier = listed[pointers[task] : pointers[task + 1]]
        following = NONE
        if len(earlier):
            following = int(earlier[np.argmax(timeline.end_ns[earlier])])
        task, known = held.get(task, (following, True))
    return count


def _held_up(timeline: Timeline) -> dict[int, tuple[int, bool]]:
    """Return, for messages that waited, the one before on a port, and if by another circuit."""
    moves = timeline.transfers
    latest: dict[tuple[int, int, int], tuple[int, int, int]] = {}
    held: dict[int, tuple[int, bool]] = {}
    columns = (moves.task, moves.plane, moves.from_node, moves.to_node, moves.circuit, moves.end_ns)
    for task, plane, src, dst, circuit, end_ns in zip(*(c.tolist() for c in columns), strict=True):
        ends = (plane, 0, src), (plane, 1, dst)
        _, other, by = max(latest.get(end, (NONE, NONE, NONE)) for end in ends)
        if other != NONE and timeline.start_ns[task] > timeline.ready_ns[task]:
            held[task] = other, by != circuit
        for end in ends:
            latest[end] = end_ns, task, circuit
    return held


def dilate(
    graph: TaskGraph, fabric: Fabric, program: Program, factor: float
) -> tuple[TaskGraph, Fabric, Program]:
    """Return the same three, `factor` times slower: durations longer and rates lower.

    Whole ns and bit/s: what is rounded is below 1e-8 of any rate of interest.
    """

    def slower(time_ns: int) -> int:
        return round(time_ns * factor)

    slow_graph = dataclasses.replace(
        graph, dur_ns=np.rint(np.asarray(graph.dur_ns) * factor).astype(np.int64)
    )
    planes = tuple(
        dataclasses.replace(
            plane,
            rate_bps=max(1, round(plane.rate_bps / factor)),
            delay_ns=slower(plane.delay_ns),
        )
        for plane in fabric.planes
    )
    slow_fabric = dataclasses.replace(
        fabric,
        planes=planes,
        control_ns=slower(fabric.control_ns),
        notify_ns=slower(fabric.notify_ns),
        latency_ns=slower(fabric.latency_ns),
    )
    if isinstance(program, ReactiveProgram):
        program = dataclasses.replace(program, gather_ns=slower(program.gather_ns))
    if isinstance(program, TimedProgram):
        program = dataclasses.replace(
            program,
            period_ns=slower(program.period_ns),
            phase_ns=min(slower(program.phase_ns), slower(program.period_ns) - 1),
            guard_ns=slower(program.guard_ns),
            planes=tuple(
                tuple(Slot(slower(slot.offset_ns), slot.dst_ports) for slot in slots)
                for slots in program.planes
            ),
        )
    return slow_graph, slow_fabric, program
