"""Whether the circuits of a finished run could stand and are those the program asks for."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from scheduler.check import Violation, entry_of, examples, port_halves
from scheduler.model.program import OrderedProgram, TimedProgram
from scheduler.model.timeline import NONE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from scheduler.model.program import Program
    from scheduler.model.taskgraph import TaskGraph
    from scheduler.model.timeline import Circuits, Timeline
    from topologies.fabric import Fabric

__all__ = ["Stand", "check_circuits", "stands_of"]

_FOREVER: Final = 2**62


def check_circuits(
    graph: TaskGraph,
    fabric: Fabric,
    program: Program,
    timeline: Timeline,
    table: Mapping[str, NDArray[Any]],
    *,
    tolerance_ns: int,
    lookahead_ns: int,
    may_be_late: bool = False,
) -> list[Violation]:
    """Return how the circuits break the model; times may be off by `tolerance_ns`.

    Each is dark and comes up when its request says (`may_be_late`: or later, if its cause is a
    fault), holds its ports alone, is dark long enough after what stood there, and belongs to the
    program, in the order of every port's entries.
    """
    violations = [
        *examples(
            "circuits say whose ports they join",
            _mislabelled(fabric, timeline, table, may_be_late=may_be_late),
        ),
        *examples("a circuit is dark for the delay", _wrong_times(fabric, timeline, tolerance_ns)),
        *examples("a port holds one circuit", _overlaps(fabric, timeline, tolerance_ns)),
        *examples("an all-stop plane is dark as a whole", _lit(fabric, timeline, tolerance_ns)),
    ]
    if violations:
        return violations
    if isinstance(program, OrderedProgram):
        stands, wrong = stands_of(program, fabric, timeline)
        return examples("circuits follow the program", wrong) or examples(
            "a circuit is requested when its ports are free",
            _hasty(
                graph,
                fabric,
                program,
                timeline,
                stands=stands,
                slack_ns=tolerance_ns + lookahead_ns,
            ),
        )
    if isinstance(program, TimedProgram):
        return examples(
            "circuits follow the program", _off_beat(fabric, program, timeline, tolerance_ns)
        )
    return []


def _mislabelled(
    fabric: Fabric,
    timeline: Timeline,
    table: Mapping[str, NDArray[Any]],
    *,
    may_be_late: bool,
) -> Iterator[tuple[str, str]]:
    causes = ("program", "fault") if may_be_late else ("program",)
    circuits = timeline.circuits
    for row, plane in enumerate(circuits.plane.tolist()):
        for port, node in (("src_port", "src"), ("dst_port", "dst")):
            number = int(table[port][row])
            owner = fabric.node_of(plane, number)
            if table[node][row] != owner:
                yield f"circuit {row}", f"port {number} belongs to node {owner}"
    for row in np.flatnonzero(~np.isin(table["cause"], causes)).tolist():
        yield f"circuit {row}", f"its cause is {table['cause'][row]}"


def _wrong_times(
    fabric: Fabric, timeline: Timeline, tolerance_ns: int
) -> Iterator[tuple[str, str]]:
    circuits = timeline.circuits
    stood = circuits.request_ns == NONE
    delay = np.asarray([plane.delay_ns for plane in fabric.planes], np.int64)[circuits.plane]
    dark = np.where(stood, NONE, circuits.request_ns + fabric.control_ns)
    up = np.where(stood, 0, circuits.dark_ns + delay)
    for name, found, wanted in (("dark", circuits.dark_ns, dark), ("up", circuits.up_ns, up)):
        wrong = np.where(circuits.fault == 1, found < wanted, found != wanted)
        for row in np.flatnonzero(wrong).tolist():
            yield f"circuit {row}", f"it is {name} at {found[row]} ns and not {wanted[row]} ns"
    for row in np.flatnonzero(~stood & (circuits.request_ns < 0)).tolist():
        yield f"circuit {row}", f"it is requested at {circuits.request_ns[row]} ns"
    ended = circuits.down_ns != NONE
    for row in np.flatnonzero(ended & (circuits.down_ns < circuits.up_ns - tolerance_ns)).tolist():
        yield f"circuit {row}", f"it goes down at {circuits.down_ns[row]} ns, before it is up"
    for row in np.flatnonzero(np.diff(circuits.up_ns) < 0).tolist():
        yield f"circuit {row + 1}", "it is listed after one that came up later"
    electric = np.asarray([plane.kind == "eps" for plane in fabric.planes])[circuits.plane]
    for row in np.flatnonzero(electric).tolist():
        yield f"circuit {row}", "it stands on a packet switch"


def _by_half(fabric: Fabric, circuits: Circuits) -> dict[tuple[int, str, int], list[int]]:
    """List the circuits that held each port half, in order of up."""
    held: dict[tuple[int, str, int], list[int]] = {}
    columns = (circuits.plane.tolist(), circuits.src_port.tolist(), circuits.dst_port.tolist())
    for row, (plane, src, dst) in enumerate(zip(*columns, strict=True)):
        for way, port in port_halves(fabric.planes[plane], src, dst):
            held.setdefault((plane, way, port), []).append(row)
    return held


def _overlaps(fabric: Fabric, timeline: Timeline, tolerance_ns: int) -> Iterator[tuple[str, str]]:
    circuits = timeline.circuits
    dark, up, down = (
        column.tolist() for column in (circuits.dark_ns, circuits.up_ns, circuits.down_ns)
    )
    for (plane, way, port), rows in _by_half(fabric, circuits).items():
        delay = fabric.planes[plane].delay_ns
        for earlier, later in pairwise(rows):
            where = f"plane {plane} port {port} ({way})"
            if down[earlier] == NONE:
                yield where, f"circuit {later} comes while circuit {earlier} stands for good"
            elif dark[later] == NONE:
                yield where, f"circuits {earlier} and {later} both stand at time 0"
            elif dark[later] < down[earlier] - tolerance_ns:
                what = f"circuit {later} is being made at {dark[later]} ns, circuit {earlier}"
                yield where, f"{what} stands until {down[earlier]} ns"
            elif up[later] < down[earlier] + delay - tolerance_ns:
                what = f"circuit {later} is up {up[later] - down[earlier]} ns after circuit"
                yield where, f"{what} {earlier} went down, the delay is {delay} ns"


def _lit(fabric: Fabric, timeline: Timeline, tolerance_ns: int) -> Iterator[tuple[str, str]]:
    """Find light on an all-stop plane while one of its circuits is being made."""
    circuits = timeline.circuits
    for number, plane in enumerate(fabric.planes):
        if not plane.all_stop or plane.kind != "ocs":
            continue
        rows = np.flatnonzero(circuits.plane == number)
        rows = rows[circuits.fault[rows] == 0]
        made = rows[circuits.dark_ns[rows] != NONE]
        down = np.where(circuits.down_ns[rows] == NONE, _FOREVER, circuits.down_ns[rows])
        for row in made.tolist():
            early = circuits.up_ns[rows] < circuits.up_ns[row] - tolerance_ns
            late = down > circuits.dark_ns[row] + tolerance_ns
            for other in rows[early & late].tolist():
                yield f"plane {number}", f"circuit {other} is lit while {row} is being made"


# --- ordered programs


class Stand(NamedTuple):
    """What the program wants to stand: entries that share one circuit, one after the other.

    `entries` are (iteration, entry); `before` the stands that held its ports before; `circuit` the
    row of the recorded circuit that was it, `NONE` if none was.
    """

    plane: int
    src_port: int
    dst_port: int
    entries: list[tuple[int, int]]
    before: set[int]
    circuit: int


def stands_of(
    program: OrderedProgram, fabric: Fabric, timeline: Timeline
) -> tuple[list[Stand], list[tuple[str, str]]]:
    """Match what the program wants with the circuits recorded, in the order of every port.

    Returns the stands and what does not match. Entries without messages may be passed over.
    """
    stands = _wanted(program, fabric, timeline.iterations)
    circuits = timeline.circuits
    identity = list(
        zip(
            circuits.plane.tolist(),
            circuits.src_port.tolist(),
            circuits.dst_port.tolist(),
            strict=True,
        )
    )
    observed = {half: iter(rows) for half, rows in _by_half(fabric, circuits).items()}
    lengths = np.diff(program.message_ptr)
    wrong: list[tuple[str, str]] = []
    initial = len(program.initial_circuits)
    waiting: dict[tuple[int, str, int], int] = {half: next(rows) for half, rows in observed.items()}
    for number, stand in enumerate(stands):
        plane = fabric.planes[stand.plane]
        if plane.kind == "eps":
            continue
        halves = [
            (stand.plane, *half) for half in port_halves(plane, stand.src_port, stand.dst_port)
        ]
        rows = {waiting.get(half, NONE) for half in halves}
        row = min(rows)
        wanted = (stand.plane, stand.src_port, stand.dst_port)
        fits = len(rows) == 1 and row != NONE and _same(identity[row], wanted, plane.duplex)
        if not fits:
            needed = number < initial or any(lengths[e] for _, e in stand.entries)
            if needed:
                what = f"the program joins port {stand.src_port} to {stand.dst_port}"
                seen = "nothing" if row == NONE else f"circuit {max(rows)}"
                place = f"entry {stand.entries[0][1]}" if stand.entries else "initial circuit"
                wrong.append((f"plane {stand.plane} {place}", f"{what}, {seen} is there next"))
                return stands, wrong
            continue
        stands[number] = stand._replace(circuit=row)
        for half in halves:
            waiting[half] = next(observed[half], NONE)
    left = sorted({row for row in waiting.values() if row != NONE})
    wrong += [(f"circuit {row}", "the program does not ask for it") for row in left]
    return stands, wrong


def _same(found: tuple[int, int, int], wanted: tuple[int, int, int], duplex: bool) -> bool:  # noqa: FBT001 (of the plane)
    plane, src, dst = wanted
    return found == wanted or (duplex and found == (plane, dst, src))


class _Wishes:
    """Builds the stands: equal neighbours at all their ports are one."""

    def __init__(self, fabric: Fabric) -> None:
        self.stands: list[Stand] = []
        self._fabric = fabric
        self._held: dict[tuple[int, str, int], int] = {}
        self._configuration: dict[int, set[int]] = {}  # plane -> stands of what stands on it

    def change(self, plane: int, wanted: set[tuple[int, int]]) -> None:
        """Begin a configuration of an all-stop plane: what stands goes, unless it will do."""
        standing = self._configuration.get(plane, set())
        have = {(self.stands[k].src_port, self.stands[k].dst_port) for k in standing}
        if self._fabric.planes[plane].duplex:
            stands = {frozenset(c) for c in wanted} <= {frozenset(c) for c in have}
        else:
            stands = wanted <= have
        if not stands:
            self._held = {half: k for half, k in self._held.items() if half[0] != plane}
            self._configuration[plane] = set()

    def hold(self, plane: int, src: int, dst: int, entry: tuple[int, int] | None = None) -> None:
        """Want a circuit for an entry, or from time 0 on."""
        halves = [(plane, *half) for half in port_halves(self._fabric.planes[plane], src, dst)]
        last = {self._held.get(half, NONE) for half in halves}
        number = min(last)
        if len(last) > 1 or number == NONE:
            number = len(self.stands)
            self.stands.append(Stand(plane, src, dst, [], last - {NONE}, NONE))
            self._held.update(dict.fromkeys(halves, number))
        if entry is not None:
            self.stands[number].entries.append(entry)
        self._configuration.setdefault(plane, set()).add(number)


def _wanted(program: OrderedProgram, fabric: Fabric, iterations: int) -> list[Stand]:
    """Merge equal neighbours, cyclically, into what must stand; initial circuits come first.

    Entries without messages ask for nothing, unless others of their configuration have some.
    """
    wishes = _Wishes(fabric)
    for plane, src, dst in program.initial_circuits:
        wishes.hold(plane, src, dst)
    planes, matchings = program.plane.tolist(), program.matching.tolist()
    circuits = list(zip(program.src_port.tolist(), program.dst_port.tolist(), strict=True))
    carried = np.diff(program.message_ptr).tolist()
    configurations: dict[tuple[int, int], set[tuple[int, int]]] = {}
    asking: set[tuple[int, int]] = set()  # configurations with messages
    for e, key in enumerate(zip(planes, matchings, strict=True)):
        configurations.setdefault(key, set()).add(circuits[e])
        if carried[e]:
            asking.add(key)
    for iteration in range(iterations):
        last: tuple[int, int] | None = None
        for e, key in enumerate(zip(planes, matchings, strict=True)):
            whole = fabric.planes[key[0]].all_stop
            if (key not in asking) if whole else carried[e] == 0:
                continue
            if whole and key != last:
                wishes.change(key[0], configurations[key])
            last = key
            wishes.hold(key[0], *circuits[e], (iteration, e))
    return wishes.stands


def _hasty(
    graph: TaskGraph,
    fabric: Fabric,
    program: OrderedProgram,
    timeline: Timeline,
    *,
    stands: list[Stand],
    slack_ns: int,
) -> Iterator[tuple[str, str]]:
    """Find circuits requested before every message of what held their ports had arrived."""
    entries = entry_of(program)
    ends = timeline.end_ns.reshape(timeline.iterations, graph.tasks)[:, program.message]
    last = np.zeros((timeline.iterations, len(program.plane)), np.int64)
    for iteration in range(timeline.iterations):
        np.maximum.at(last[iteration], entries, ends[iteration])
    done = [max((int(last[i, e]) for i, e in stand.entries), default=0) for stand in stands]
    for stand in stands:
        if stand.circuit == NONE or timeline.circuits.request_ns[stand.circuit] == NONE:
            continue
        free = max((done[k] for k in stand.before), default=0)
        request = int(timeline.circuits.request_ns[stand.circuit])
        if free and request < free + fabric.notify_ns - slack_ns:
            what = f"it is requested at {request} ns, its ports are in use until {free} ns"
            yield f"circuit {stand.circuit}", what


# --- timed programs


class _Beat(NamedTuple):
    """When the slots of a plane begin in its cycle, also by what they join, and that of time 0."""

    offsets_ns: list[int]
    joining_ns: dict[tuple[int, int], list[int]]
    initial: int

    @classmethod
    def of(cls, program: TimedProgram, plane: int) -> _Beat:
        slots = program.planes[plane]
        offsets = [slot.offset_ns for slot in slots]
        joining: dict[tuple[int, int], list[int]] = {}
        for slot in slots:
            for pair in enumerate(slot.dst_ports):
                joining.setdefault(pair, []).append(slot.offset_ns)
        first = np.searchsorted(offsets, -program.phase_ns % program.period_ns, side="right")
        return cls(offsets, joining, int(first) - 1)


def _apart_ns(t_ns: int, offsets_ns: Sequence[int], period_ns: int) -> int:
    """Return how far a time is from the nearest of the offsets in its period; without any, far."""
    past = t_ns % period_ns
    apart = (abs(past - offset) for offset in offsets_ns)
    return min((min(each, period_ns - each) for each in apart), default=period_ns)


def _off_beat(
    fabric: Fabric, program: TimedProgram, timeline: Timeline, tolerance_ns: int
) -> Iterator[tuple[str, str]]:
    """Find circuits that are not those of the slot in which they come."""
    circuits = timeline.circuits
    late_at_all = bool(circuits.fault.any())
    beats = [_Beat.of(program, plane) for plane in range(len(program.planes))]
    columns = (
        circuits.plane.tolist(),
        circuits.src_port.tolist(),
        circuits.dst_port.tolist(),
        circuits.dark_ns.tolist(),
        circuits.up_ns.tolist(),
        circuits.down_ns.tolist(),
    )
    for row, (plane, src, dst, dark, up, down) in enumerate(zip(*columns, strict=True)):
        start = up if dark == NONE else dark
        if not program.planes[plane]:
            yield f"circuit {row}", f"plane {plane} has no slots"
            continue
        offsets, joining_ns, initial = beats[plane]
        joining = joining_ns.get((src, dst), [])
        # that of the slot in force says what is wrong; tolerance may be longer than slots are
        within = (start - program.phase_ns + tolerance_ns) % program.period_ns
        number = int(np.searchsorted(offsets, within, side="right")) - 1
        late = _apart_ns(start - program.phase_ns, joining, program.period_ns)
        stood = start <= fabric.control_ns + tolerance_ns and offsets[initial] in joining
        if circuits.fault[row] == 1:
            continue  # its slot cannot be told from the time it came
        if late > tolerance_ns and not stood:
            if offsets[number] in joining:
                yield f"circuit {row}", f"it comes {late} ns after its slot begins"
            else:
                yield f"circuit {row}", f"its slot does not join port {src} to {dst}"
        elif down != NONE and not program.partial and not late_at_all:
            late = _apart_ns(down - program.phase_ns, offsets, program.period_ns)
            if late > tolerance_ns:
                yield f"circuit {row}", f"it goes down {late} ns from the end of a slot"
