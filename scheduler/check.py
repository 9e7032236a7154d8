"""Whether a plan or a finished run obeys the model, judged without dispatcher and simulator.

`check_plan` looks at a program, `scheduler.check_run.check_run` at what was recorded. Both return
every kind of violation they find, a few examples of each.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from scheduler.model.program import OrderedProgram, TimedProgram
from scheduler.model.taskgraph import MESSAGE, csr
from scheduler.model.timeline import NONE
from topologies.fabric import Circuit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from scheduler.model.program import Program, Slot
    from scheduler.model.taskgraph import Int64s, TaskGraph
    from topologies.fabric import Fabric, Plane

__all__ = ["EXAMPLES", "Violation", "check_plan", "entry_of", "examples", "port_halves"]

EXAMPLES: Final = 5


class Violation(NamedTuple):
    """A rule of the model, where it is broken, and how."""

    rule: str
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what} ({self.rule})"


def examples(rule: str, found: Iterable[tuple[str, str]]) -> list[Violation]:
    """Turn (where, what) into violations: the first few, and how many more there are."""
    violations: list[Violation] = []
    more = 0
    for where, what in found:
        if len(violations) < EXAMPLES:
            violations.append(Violation(rule, where, what))
        else:
            more += 1
    if more:
        violations.append(Violation(rule, "elsewhere", f"the same {more} times more"))
    return violations


def check_plan(program: Program, graph: TaskGraph, fabric: Fabric) -> list[Violation]:
    """Return how `program` cannot be executed for one iteration `graph` on `fabric`; [] if it can.

    Ordered: every message exactly once, on circuits of its nodes; ports that exist; no port twice
    in a configuration; and no cycle of zero distance among dependencies and port order, so that
    no execution can deadlock. Timed: slots in order and longer than the delay, each a matching
    (on duplex planes its own inverse), every pair of nodes with messages connected. What a
    reactive program does shows only in a run. O(messages + arcs).
    """
    if isinstance(program, OrderedProgram):
        violations = [
            *examples("ports exist", _strange_ports(program, fabric)),
            *examples("messages exist", _strange_messages(program, graph)),
        ]
        violations = violations or [
            *examples("every message once", _miscounted(program, graph)),
            *examples("circuits join the message's nodes", _misplaced(program, graph, fabric)),
            *examples("a port holds one circuit", _conflicts(program, fabric)),
            *examples("a switch holds what it knows", _unknown(program, fabric)),
        ]
        cycle = _cycle(program, graph, fabric)
        return violations or examples("no operation waits for itself", cycle)
    if isinstance(program, TimedProgram):
        violations = [
            *examples("slots follow each other", _strange_slots(program, fabric)),
            *examples("a slot is a matching", _unmatched(program, fabric)),
        ]
        violations = violations or [
            *examples("a switch holds what it knows", _unknown_slots(program, fabric))
        ]
        return violations or examples(
            "every pair that talks is connected", _unconnected(program, graph, fabric)
        )
    return []


# --- ordered programs


def _strange_ports(program: OrderedProgram, fabric: Fabric) -> Iterator[tuple[str, str]]:
    if program.planes != len(fabric.planes):
        yield "plan", f"it has {program.planes} planes, the fabric {len(fabric.planes)}"
        return
    entries = zip(program.plane, program.src_port, program.dst_port, strict=True)
    listed = [(f"entry {e}", int(k), int(a), int(b)) for e, (k, a, b) in enumerate(entries)]
    listed += [("initial circuit", *circuit) for circuit in program.initial_circuits]
    for where, plane, src, dst in listed:
        if not 0 <= plane < len(fabric.planes):
            yield where, f"there is no plane {plane}"
            continue
        ports = fabric.planes[plane].ports
        if not (0 <= src < ports and 0 <= dst < ports):
            yield where, f"plane {plane} has no circuit from port {src} to port {dst}"
        elif src == dst:
            yield where, f"port {src} of plane {plane} is joined with itself"


def _strange_messages(program: OrderedProgram, graph: TaskGraph) -> Iterator[tuple[str, str]]:
    for task in program.message.tolist():
        if not 0 <= task < graph.tasks or graph.kind[task] != MESSAGE:
            yield f"message {task}", "the workload has no such message"


def _miscounted(program: OrderedProgram, graph: TaskGraph) -> Iterator[tuple[str, str]]:
    times = np.bincount(program.message, minlength=graph.tasks)
    for task in np.flatnonzero((graph.kind == MESSAGE) & (times != 1)).tolist():
        yield f"message {task}", f"it is sent {times[task]} times"


def entry_of(program: OrderedProgram) -> Int64s:
    """Return the entry that each listed message belongs to, shape of `program.message`."""
    return np.repeat(np.arange(len(program.plane)), np.diff(program.message_ptr))


def _misplaced(
    program: OrderedProgram, graph: TaskGraph, fabric: Fabric
) -> Iterator[tuple[str, str]]:
    entries = entry_of(program)
    for entry, task in zip(entries.tolist(), program.message.tolist(), strict=True):
        plane = fabric.planes[program.plane[entry]]
        joins = (
            plane.node_of[program.src_port[entry]],
            plane.node_of[program.dst_port[entry]],
        )
        wanted = int(graph.src[task]), int(graph.dst[task])
        if wanted != joins and not (plane.duplex and wanted == joins[::-1]):
            yield (
                f"message {task}",
                f"it goes from node {wanted[0]} to {wanted[1]}, its circuit joins {joins}",
            )


def port_halves(plane: Plane, src: int, dst: int) -> list[tuple[str, int]]:
    """Return the port halves that a circuit holds."""
    one = [("out", src), ("in", dst)]
    return [*one, ("out", dst), ("in", src)] if plane.duplex else one


def _spelling(plane: Plane, src: int, dst: int) -> tuple[int, int]:
    """Return the one spelling of a circuit: on a duplex plane both directions are the same."""
    return (min(src, dst), max(src, dst)) if plane.duplex else (src, dst)


def _conflicts(program: OrderedProgram, fabric: Fabric) -> Iterator[tuple[str, str]]:
    groups: dict[tuple[str, int, int], list[tuple[int, int]]] = {}
    for plane, src, dst in program.initial_circuits:
        groups.setdefault(("initial circuits", plane, 0), []).append((src, dst))
    for e in range(len(program.plane)):
        plane = int(program.plane[e])
        if fabric.planes[plane].all_stop:
            key = ("matching", plane, int(program.matching[e]))
            groups.setdefault(key, []).append((int(program.src_port[e]), int(program.dst_port[e])))
    for (name, plane, number), circuits in groups.items():
        held = Counter(
            half
            for src, dst in {_spelling(fabric.planes[plane], *circuit) for circuit in circuits}
            for half in port_halves(fabric.planes[plane], src, dst)
        )
        for (way, port), count in held.items():
            if count > 1:
                where = f"plane {plane} {name} {number}"
                yield where, f"port {port} is the {way}put of {count} circuits"


def _cycle(program: OrderedProgram, graph: TaskGraph, fabric: Fabric) -> Iterator[tuple[str, str]]:
    """Look for a cycle among tasks and configurations, following arcs of distance 0."""
    before, after, nodes = _port_arcs(program, graph, fabric)
    inside = graph.arcs.distance == 0
    before = np.concatenate([before, graph.arcs.before[inside]])
    after = np.concatenate([after, graph.arcs.after[inside]])
    left = _left_over(before, after, nodes)
    if left.any():
        circle = _a_cycle(before, after, left)
        names = [f"message {k}" for k in circle if k < graph.tasks and graph.kind[k] == MESSAGE]
        yield names[0] if names else "plan", f"it waits for itself through {', '.join(names[:8])}"


def _configurations(program: OrderedProgram, fabric: Fabric) -> list[int]:
    """Number what stands on each all-stop plane, per entry: only what is not there yet is made.

    A matching whose circuits all stand, a part of the one before, is granted with it. One without
    messages is passed over.
    """
    runs: list[tuple[int, int, list[int]]] = []
    for e, key in enumerate(zip(program.plane.tolist(), program.matching.tolist(), strict=True)):
        if not runs or runs[-1][:2] != key:
            runs.append((*key, []))
        runs[-1][2].append(e)
    carried = np.diff(program.message_ptr)
    numbers = [0] * len(program.plane)
    stands: dict[int, set[tuple[int, int]]] = {}
    number = 0
    for plane, _, entries in runs:
        wanted = {
            _spelling(fabric.planes[plane], int(program.src_port[e]), int(program.dst_port[e]))
            for e in entries
        }
        if carried[entries].any() and not wanted <= stands.get(plane, set()):
            number += 1
            stands[plane] = wanted
        for e in entries:
            numbers[e] = number
    return numbers


def _port_arcs(
    program: OrderedProgram, graph: TaskGraph, fabric: Fabric
) -> tuple[Int64s, Int64s, int]:
    """Return arcs before -> after that the port order adds, and how many nodes they run among.

    Nodes 0..tasks-1 are tasks, further ones the moments at which a configuration is requested: a
    run of identical neighbours, or on an all-stop plane a matching. Messages of one output follow
    each other.
    """
    arcs: list[tuple[int, int]] = []
    nodes = graph.tasks
    held: dict[tuple[int, str, int], int] = {}  # port half -> request that last used it
    carried: dict[int, list[int]] = {}  # request -> its messages
    circuit: dict[int, tuple[int, ...]] = {}
    last_sent: dict[tuple[int, int, int], int] = {}  # request and output's node -> last message
    configuration = _configurations(program, fabric)
    for e in range(len(program.plane)):
        number, src, dst = (
            int(column[e]) for column in (program.plane, program.src_port, program.dst_port)
        )
        plane = fabric.planes[number]
        halves = [(number, *half) for half in port_halves(plane, src, dst)]
        identity = (number, *_spelling(plane, src, dst))
        if plane.all_stop:
            identity = (number, -1, configuration[e])
            halves = [(number, "plane", 0)]
        elif plane.kind == "eps":
            identity, halves = (number, src, -1), [(number, "out", src)]
        previous = [held.get(half) for half in halves]
        request = previous[0]
        if request is None or set(previous) != {request} or circuit[request] != identity:
            request, nodes = nodes, nodes + 1
            circuit[request], carried[request] = identity, []
            for earlier in {p for p in previous if p is not None}:
                arcs += [(message, request) for message in carried[earlier]]
                arcs.append((earlier, request))
            for half in halves:
                held[half] = request
        for message in program.message[
            program.message_ptr[e] : program.message_ptr[e + 1]
        ].tolist():
            arcs.append((request, message))
            output = (request, src, int(graph.src[message]))
            if output in last_sent:
                arcs.append((last_sent[output], message))
            last_sent[output] = message
            carried[request].append(message)
    pairs = np.asarray(arcs, np.int64).reshape(-1, 2)
    return pairs[:, 0].copy(), pairs[:, 1].copy(), nodes


def _left_over(
    before: Int64s, after: Int64s, nodes: int
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Take away, again and again, what waits for nothing; what is left is on or behind a cycle."""
    pointers, listed = csr(before, after, nodes)
    missing = np.bincount(after, minlength=nodes).tolist()
    pointers, listed = pointers.tolist(), listed.tolist()
    stack = [node for node, count in enumerate(missing) if count == 0]
    while stack:
        node = stack.pop()
        missing[node] = -1
        for follower in listed[pointers[node] : pointers[node + 1]]:
            missing[follower] -= 1
            if missing[follower] == 0:
                stack.append(follower)
    return np.asarray(missing) > 0


def _a_cycle(before: Int64s, after: Int64s, left: NDArray[np.bool_]) -> list[int]:
    """Walk backwards among what is left until a node comes again."""
    arcs = left[before] & left[after]
    reason = dict(zip(after[arcs].tolist(), before[arcs].tolist(), strict=True))
    node = next(iter(reason))
    place: dict[int, int] = {}
    walk: list[int] = []
    while node not in place:
        place[node] = len(walk)
        walk.append(node)
        node = reason[node]
    return walk[place[node] :][::-1]


def _unknown(program: OrderedProgram, fabric: Fabric) -> Iterator[tuple[str, str]]:
    """What stands together on a switch with matchings of its own is part of one of them."""
    configuration = _configurations(program, fabric)
    together: dict[tuple[int, int], list[Circuit]] = {}
    columns = (program.plane, program.src_port, program.dst_port)
    for e, (plane, src, dst) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        if fabric.planes[plane].matchings is not None:
            together.setdefault((plane, configuration[e]), []).append(Circuit(src, dst))
    for plane, src, dst in program.initial_circuits:
        together.setdefault((plane, NONE), []).append(Circuit(src, dst))
    for (plane, _), circuits in together.items():
        if not fabric.planes[plane].knows(circuits):
            yield f"plane {plane}", f"none of its matchings has {_listed(circuits)}"


def _listed(circuits: Sequence[Circuit]) -> str:
    return ", ".join(f"{src}->{dst}" for src, dst in circuits[:EXAMPLES])


# --- timed programs


def _unknown_slots(program: TimedProgram, fabric: Fabric) -> Iterator[tuple[str, str]]:
    for number, (slots, plane) in enumerate(zip(program.planes, fabric.planes, strict=False)):
        for slot in slots:
            lit = [Circuit(src, dst) for src, dst in enumerate(slot.dst_ports) if dst >= 0]
            if not plane.knows(lit):
                where = f"plane {number} slot at {slot.offset_ns} ns"
                yield where, f"none of its matchings has {_listed(lit)}"


def _strange_slots(program: TimedProgram, fabric: Fabric) -> Iterator[tuple[str, str]]:
    if len(program.planes) != len(fabric.planes):
        yield "plan", f"it has {len(program.planes)} planes, the fabric {len(fabric.planes)}"
        return
    if not 0 <= program.phase_ns < program.period_ns:
        yield "plan", f"the phase {program.phase_ns} is outside the period {program.period_ns}"
    for number, (slots, plane) in enumerate(zip(program.planes, fabric.planes, strict=True)):
        offsets = [slot.offset_ns for slot in slots]
        ends = [*offsets[1:], offsets[0] + program.period_ns] if offsets else []
        if offsets and not 0 <= offsets[0] < program.period_ns:
            yield f"plane {number}", f"its first slot is at {offsets[0]} ns"
        for offset, end in zip(offsets, ends, strict=True):
            if end <= offset:
                yield f"plane {number}", f"the slot at {offset} ns ends at {end} ns"
            elif end - offset <= plane.delay_ns + program.guard_ns and not program.partial:
                what = f"the slot at {offset} ns lasts {end - offset} ns, of which "
                yield f"plane {number}", f"{what}{plane.delay_ns + program.guard_ns} ns are lost"


def _unmatched(program: TimedProgram, fabric: Fabric) -> Iterator[tuple[str, str]]:
    for number, (slots, plane) in enumerate(zip(program.planes, fabric.planes, strict=False)):
        for slot in slots:
            if wrong := _not_a_matching(slot, plane):
                yield f"plane {number} slot at {slot.offset_ns} ns", wrong


def _not_a_matching(slot: Slot, plane: Plane) -> str:
    ports = slot.dst_ports
    if len(ports) != plane.ports:
        return f"it lists {len(ports)} ports of {plane.ports}"
    if any(not -1 <= port < plane.ports for port in ports):
        return f"it leads to a port outside 0 to {plane.ports - 1}"
    twice = [port for port, count in Counter(ports).items() if count > 1 and port >= 0]
    if twice:
        return f"port {twice[0]} is the input of two circuits"
    itself = [port for port, to in enumerate(ports) if port == to]
    if itself:
        return f"port {itself[0]} is joined with itself"
    if plane.duplex:
        odd = [port for port, to in enumerate(ports) if to >= 0 and ports[to] != port]
        if odd:
            return (
                f"port {odd[0]} leads to {ports[odd[0]]}, which leads elsewhere on a duplex plane"
            )
    return ""


def _unconnected(
    program: TimedProgram, graph: TaskGraph, fabric: Fabric
) -> Iterator[tuple[str, str]]:
    joined = np.zeros((fabric.nodes, fabric.nodes), bool)
    for slots, plane in zip(program.planes, fabric.planes, strict=True):
        owner = np.asarray(plane.node_of, np.int64)
        if plane.kind == "eps":
            joined[np.ix_(owner, owner)] = True
        for slot in slots:
            to = np.asarray(slot.dst_ports, np.int64)
            joined[owner[to >= 0], owner[to[to >= 0]]] = True
    if program.routing != "direct":
        joined |= (joined.astype(np.int64) @ joined.astype(np.int64)) > 0
    rows = graph.messages
    pairs = np.unique(np.column_stack([graph.src[rows], graph.dst[rows]]), axis=0)
    for src, dst in pairs[~joined[pairs[:, 0], pairs[:, 1]]].tolist():
        yield f"nodes {src} to {dst}", "no slot leads from one to the other"
