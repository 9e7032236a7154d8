"""A workload, a fabric and a program as the arrays the dispatcher, simulator and engine run on.

`prepare` checks that the three fit together, so that kernels never index out of range, and
`new_state` makes the dispatcher's memory. Columns are named in `_kernels_columns`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from scheduler.dispatch import _kernels_columns as col
from scheduler.model.memory import require_memory
from scheduler.model.program import OrderedProgram, ReactiveProgram, TimedProgram
from scheduler.model.taskgraph import COMPUTE, KINDS, MESSAGE, csr
from topologies import Circuit
from topologies.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from scheduler.model.program import Program
    from scheduler.model.taskgraph import Int64s, TaskGraph
    from topologies.fabric import Fabric

__all__ = ["Layout", "Route", "Tables", "Work", "new_state", "prepare"]

_BYTES_PER_TASK: Final = 130  # and per arc: the arrays of an execution


class Work(NamedTuple):
    """The unrolled tasks; `iterations * tasks` of each, successors as CSR. `src`, `dst`: nodes."""

    kind: Int64s
    src: Int64s
    dst: Int64s
    size_bytes: Int64s
    dur_ns: Int64s
    successor_ptr: Int64s
    successor: Int64s
    indegree: Int64s


class Route(NamedTuple):
    """How an ordered program carries each base message, (tasks,) each, -1 for other tasks.

    `src_port`, `dst_port` are numbered over all planes.
    """

    plane: Int64s
    src_port: Int64s
    dst_port: Int64s


class Tables(NamedTuple):
    """What a program compiles to; empty arrays for the parts of other kinds of programs."""

    entries: Int64s
    side_entry: Int64s
    message: Int64s
    carrier: Int64s
    matchings: Int64s
    slots: Int64s
    permutation: Int64s


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Everything about one execution that does not change while it runs.

    `planes`, `ports` and `nodes` describe the fabric; `sides` is the dispatcher's table before time
    zero; `rule` holds the program's numbers; `node_port_ptr` and `node_port` list the ports of each
    node (numbered over all planes), row plane * nodes + node. `nic_buffer_bytes` is what each NIC
    holds of its own messages, None without end.
    """

    graph: TaskGraph
    fabric: Fabric
    program: Program
    iterations: int
    lookahead_ns: int
    nic_buffer_bytes: int | None
    work: Work
    rule: Int64s
    planes: Int64s
    ports: Int64s
    sides: Int64s
    nodes: Int64s
    node_port_ptr: Int64s
    node_port: Int64s
    route: Route
    tables: Tables

    @property
    def port_base(self) -> Int64s:
        """The number of each plane's first port, shape (planes + 1,)."""
        return np.append(self.planes[:, col.PLANE_BASE], len(self.ports))


def _no_tables() -> Tables:
    empty = np.zeros(0, np.int64)
    return Tables(
        entries=np.zeros((0, col.ENTRY_COLUMNS), np.int64),
        side_entry=empty,
        message=empty,
        carrier=empty,
        matchings=np.zeros((0, col.MATCHING_COLUMNS), np.int64),
        slots=np.zeros((0, col.SLOT_COLUMNS), np.int64),
        permutation=empty,
    )


def _refuse(what: str, why: str, fix: str = "correct the program") -> UsageError:
    return UsageError(what, "program", why, fix)


def _beyond_rotor(what: str, fabric: Fabric, plane: int) -> UsageError:
    why = (
        f"plane {plane} is a rotor that knows {len(fabric.planes[plane].matchings or ())} matchings"
    )
    return _refuse(what, why, "use rotor-direct, rotor-vlb or rotorlb, or rails for a topology")


def _fabric_tables(fabric: Fabric) -> tuple[Int64s, Int64s, Int64s]:
    sizes = [plane.ports for plane in fabric.planes]
    planes = np.zeros((len(sizes), col.PLANE_COLUMNS), np.int64)
    for index, plane in enumerate(fabric.planes):
        planes[index, : col.PLANE_OPTICAL + 1] = (
            sum(sizes[:index]),
            plane.ports,
            plane.rate_bps,
            plane.delay_ns,
            plane.duplex,
            plane.all_stop,
            plane.kind == "ocs",
        )
    ports = np.empty((sum(sizes), col.PORT_COLUMNS), np.int64)
    ports[:, col.PORT_PLANE] = np.repeat(np.arange(len(sizes)), sizes)
    ports[:, col.PORT_NODE] = [node for plane in fabric.planes for node in plane.node_of]
    ports[:, col.PORT_NEXT] = -1
    nodes = np.full((fabric.nodes, col.NODE_PORT + len(sizes)), -1, np.int64)
    for port in range(len(ports) - 1, -1, -1):
        plane, node = ports[port, [col.PORT_PLANE, col.PORT_NODE]]
        ports[port, col.PORT_NEXT] = nodes[node, col.NODE_PORT + plane]
        nodes[node, col.NODE_PORT + plane] = port
    return planes, ports, nodes


def _check_graph(graph: TaskGraph, fabric: Fabric, iterations: int) -> None:
    if iterations < 1:
        raise UsageError(f"iterations={iterations}", "simulation", "one at least runs", "raise it")
    if graph.nodes > fabric.nodes:
        why = f"the workload needs {graph.nodes}"
        raise UsageError(f"there are {fabric.nodes} nodes", "fabric", why, "add nodes")
    where = "workload"
    if len(graph.kind) == 0:
        raise UsageError("there are no tasks", where, "nothing would run", "give a workload")
    columns = (graph.src, graph.dst, graph.size_bytes, graph.dur_ns)
    if any(len(column) != graph.tasks for column in columns):
        raise UsageError("columns differ in length", where, "each task has every", "correct them")
    message = graph.kind == MESSAGE
    ends = np.concatenate([graph.src[message], graph.dst[message]])
    faults = (
        ("a task's kind", (graph.kind < 0) | (graph.kind >= len(KINDS))),
        ("a message's node", (ends < 0) | (ends >= graph.nodes)),
        ("a message to its own node", graph.src[message] == graph.dst[message]),
        ("a message's size", graph.size_bytes[message] <= 0),
        ("a compute's duration", graph.dur_ns[graph.kind == COMPUTE] < 0),
        ("an arc's end", (graph.arcs.before < 0) | (graph.arcs.before >= graph.tasks)),
        ("an arc's end", (graph.arcs.after < 0) | (graph.arcs.after >= graph.tasks)),
        ("an arc's distance", (graph.arcs.distance < 0) | (graph.arcs.distance > 1)),
    )
    for what, wrong in faults:
        if wrong.any():
            why = "no such thing can be executed"
            raise UsageError(f"{what} is impossible", where, why, "correct the workload")


def _check_circuits(
    circuits: Collection[tuple[int, int]], fabric: Fabric, plane: int, what: str
) -> None:
    """Refuse ports that do not exist, circuits that share one, and what a rotor does not know."""
    used: set[tuple[str, int]] = set()
    model = fabric.planes[plane]
    for src, dst in circuits:
        if not (0 <= src < model.ports and 0 <= dst < model.ports) or src == dst:
            why = f"plane {plane} has ports 0 to {model.ports - 1}"
            raise _refuse(f"{what} has the circuit {src}->{dst}", why)
        taken = {("out", src), ("in", dst)}
        if model.duplex:
            taken = {("port", src), ("port", dst)}
        if taken & used:
            why = f"another of its circuits holds a port of {src}->{dst}"
            raise _refuse(f"{what} is no matching on plane {plane}", why)
        used |= taken
    if not model.knows([Circuit(src, dst) for src, dst in circuits]):
        raise _beyond_rotor(f"{what} is none of its matchings", fabric, plane)


def _ordered_entries(graph: TaskGraph, fabric: Fabric, program: OrderedProgram) -> Int64s:
    """Check an ordered program and return its entry table, all planes, in order."""
    count = len(program.plane)
    lengths = {len(program.src_port), len(program.dst_port), len(program.matching), count}
    pointers = program.message_ptr
    if len(lengths) > 1 or len(pointers) != count + 1:
        raise _refuse("columns of entries differ in length", "each entry has every column")
    if (
        pointers[0] != 0
        or (np.diff(pointers) < 0).any()
        or pointers[-1] != len(program.message)
        or (np.diff(program.plane) < 0).any()
    ):
        raise _refuse("its entries are not in order", "they are stored plane by plane")
    if program.planes != len(fabric.planes) or (
        count and (program.plane.min() < 0 or program.plane.max() >= len(fabric.planes))
    ):
        why = f"the fabric has {len(fabric.planes)} planes"
        raise _refuse(f"it is for {program.planes} planes", why, "plan again for this fabric")
    sizes = np.array([plane.ports for plane in fabric.planes])[program.plane]
    for port in (program.src_port, program.dst_port):
        if ((port < 0) | (port >= sizes)).any():
            raise _refuse("an entry has a port the plane lacks", "ports count from 0")
    if (program.src_port == program.dst_port).any():
        raise _refuse("an entry joins a port to itself", "a circuit has two ends")
    seen = np.bincount(program.message[program.message >= 0], minlength=graph.tasks)
    if (program.message < 0).any() or len(seen) > graph.tasks:
        raise _refuse("it lists a message that does not exist", f"there are {graph.tasks} tasks")
    wrong = np.flatnonzero(seen != (graph.kind == MESSAGE))
    if len(wrong):
        task = int(wrong[0])
        what = f"it lists task {task} ({KINDS[graph.kind[task]]}) {seen[task]} times"
        raise _refuse(what, "each message has exactly one place", "plan again for this workload")
    entries = np.zeros((count, col.ENTRY_COLUMNS), np.int64)
    entries[:, col.ENTRY_PLANE] = program.plane
    entries[:, col.ENTRY_SRC] = program.src_port
    entries[:, col.ENTRY_DST] = program.dst_port
    entries[:, col.ENTRY_FIRST] = pointers[:-1]
    entries[:, col.ENTRY_COUNT] = np.diff(pointers)
    return entries


def _check_ends(graph: TaskGraph, ports: Int64s, route: Route) -> None:
    message = graph.messages
    for end, nodes in ((route.src_port, graph.src), (route.dst_port, graph.dst)):
        wrong = message[ports[end[message], col.PORT_NODE] != nodes[message]]
        if len(wrong):
            m = int(wrong[0])
            what = f"message {m} goes from node {graph.src[m]} to {graph.dst[m]}"
            raise _refuse(what, "its entry's ports belong to other nodes")


def _sides(
    planes: Int64s, ports: Int64s, fabric: Fabric, initial: Iterable[tuple[int, int, int]]
) -> Int64s:
    """Make the table of sides with the initial circuits standing."""
    total = len(ports)
    sides = np.zeros((2 * total + len(planes), col.SIDE_COLUMNS), np.int64)
    sides[:, col.SIDE_PEER] = -1
    listed = list(initial)
    for plane, src, dst in listed:
        if not 0 <= plane < len(planes) or not planes[plane, col.PLANE_OPTICAL]:
            why = "an initial circuit stands on an optical plane"
            raise _refuse(f"there is no such plane as {plane}", why)
        base, duplex = planes[plane, col.PLANE_BASE], planes[plane, col.PLANE_DUPLEX]
        same = [(s, d) for p, s, d in listed if p == plane]
        _check_circuits(same, fabric, plane, "the list of initial circuits")
        out, into = base + src, base + dst + (0 if duplex else total)
        sides[out, col.SIDE_PEER], sides[into, col.SIDE_PEER] = into, out
    return sides


def _configurations(entries: Int64s, matching: Int64s, fabric: Fabric) -> Int64s:
    """Group the entries of all-stop planes into configurations: rows of `matchings` + plane."""
    rows = []
    starts = np.flatnonzero(
        np.diff(entries[:, col.ENTRY_PLANE], prepend=-1) | np.diff(matching, prepend=-1)
    )
    for first, last in pairwise(np.append(starts, len(entries))):
        plane = int(entries[first, col.ENTRY_PLANE])
        if not fabric.planes[plane].all_stop or fabric.planes[plane].kind != "ocs":
            continue
        pairs = entries[first:last, [col.ENTRY_SRC, col.ENTRY_DST]].tolist()
        if fabric.planes[plane].duplex:
            pairs = [sorted(pair) for pair in pairs]
        _check_circuits({(s, d) for s, d in pairs}, fabric, plane, "a configuration")
        messages = entries[first:last, col.ENTRY_COUNT].sum()
        if messages:
            rows.append((first, last - first, messages, plane))
    return np.array(rows, np.int64).reshape(-1, col.MATCHING_COLUMNS + 1)


def _ordered(
    graph: TaskGraph,
    fabric: Fabric,
    program: OrderedProgram,
    planes: Int64s,
    ports: Int64s,
) -> tuple[Int64s, Route, Tables]:
    """Compile an ordered program: sides with their lists, routes and tables."""
    entries = _ordered_entries(graph, fabric, program)
    sides = _sides(planes, ports, fabric, program.initial_circuits)
    total, plane = len(ports), entries[:, col.ENTRY_PLANE]
    base, duplex = planes[plane, col.PLANE_BASE], planes[plane, col.PLANE_DUPLEX] != 0
    entries[:, col.ENTRY_A] = base + entries[:, col.ENTRY_SRC]
    entries[:, col.ENTRY_B] = base + entries[:, col.ENTRY_DST] + np.where(duplex, 0, total)

    owner = np.repeat(np.arange(len(entries)), entries[:, col.ENTRY_COUNT])
    carrier = np.full(graph.tasks, -1, np.int64)
    carrier[program.message] = owner
    routed = carrier >= 0
    route = Route(*(np.full(graph.tasks, -1, np.int64) for _ in range(3)))
    route.plane[routed] = plane[carrier[routed]]
    route.src_port[routed] = (base + entries[:, col.ENTRY_SRC])[carrier[routed]]
    route.dst_port[routed] = (base + entries[:, col.ENTRY_DST])[carrier[routed]]
    _check_ends(graph, ports, route)

    optical = planes[plane, col.PLANE_OPTICAL] != 0
    carrier[routed] = np.where(optical[carrier[routed]], carrier[routed], -1)
    by_plane = optical & (planes[plane, col.PLANE_ALL_STOP] != 0)
    by_port = np.flatnonzero(optical & ~by_plane & (entries[:, col.ENTRY_COUNT] > 0))
    matchings = _configurations(entries, program.matching, fabric)
    rows = np.column_stack([entries[by_port, col.ENTRY_A], entries[by_port, col.ENTRY_B]]).ravel()
    pointers, listed = csr(
        np.concatenate([rows, 2 * total + matchings[:, -1]]),
        np.concatenate([np.repeat(by_port, 2), np.arange(len(matchings))]),
        len(sides),
    )
    sides[:, col.SIDE_FIRST] = pointers[:-1]
    sides[:, col.SIDE_LENGTH] = np.diff(pointers)
    tables = _no_tables()._replace(
        entries=entries,
        side_entry=listed,
        message=np.ascontiguousarray(program.message, np.int64),
        carrier=carrier,
        matchings=np.ascontiguousarray(matchings[:, :-1]),
    )
    return sides, route, tables


def _timed_slots(program: TimedProgram, fabric: Fabric, planes: Int64s) -> Tables:
    """Check a timed program and compile it; fills the slot columns of `planes`."""
    if program.period_ns < 1 or not 0 <= program.phase_ns < program.period_ns:
        what = f"its period is {program.period_ns} ns and its phase {program.phase_ns} ns"
        raise _refuse(what, "a phase lies within the period")
    if len(program.planes) != len(fabric.planes):
        why = f"the fabric has {len(fabric.planes)} planes"
        raise _refuse(f"it is for {len(program.planes)} planes", why)
    rows: list[tuple[int, int]] = []
    flat: list[int] = []
    for index, (plane, slots) in enumerate(zip(fabric.planes, program.planes, strict=True)):
        planes[index, col.PLANE_SLOT], planes[index, col.PLANE_SLOTS] = len(rows), len(slots)
        offsets = [slot.offset_ns for slot in slots]
        if slots and plane.kind != "ocs":
            raise _refuse(f"plane {index} has slots", "it is a packet switch")
        if offsets != sorted(set(offsets)) or any(not 0 <= o < program.period_ns for o in offsets):
            why = "offsets rise within the period"
            raise _refuse(f"plane {index} has slots out of order", why)
        for slot in slots:
            if len(slot.dst_ports) != plane.ports:
                why = f"plane {index} has {plane.ports}"
                raise _refuse(f"a slot lists {len(slot.dst_ports)} ports", why)
            pairs = [(s, d) for s, d in enumerate(slot.dst_ports) if d != -1]
            if plane.duplex:
                if any(d >= 0 and slot.dst_ports[d : d + 1] != (s,) for s, d in pairs):
                    why = "on a duplex plane a circuit joins two ports both ways"
                    raise _refuse(f"a slot of plane {index} is not symmetric", why)
                pairs = [(s, d) for s, d in pairs if s < d or d < 0]
            _check_circuits(pairs, fabric, index, "a slot")
            rows.append((slot.offset_ns, len(flat)))
            flat += slot.dst_ports
    return _no_tables()._replace(
        slots=np.array(rows, np.int64).reshape(-1, col.SLOT_COLUMNS),
        permutation=np.array(flat, np.int64),
    )


def _require_any_circuit(fabric: Fabric, program: ReactiveProgram) -> None:
    for index, plane in enumerate(fabric.planes):
        if plane.matchings is not None:
            raise _beyond_rotor(f"{program.policy} may ask for any circuit", fabric, index)


def prepare(
    graph: TaskGraph,
    fabric: Fabric,
    program: Program,
    *,
    iterations: int,
    lookahead_ns: int = 0,
    nic_buffer_bytes: int | None = None,
    gather_ns: int = 0,
) -> Layout:
    """Compile `iterations` iterations of `graph` under `program` on `fabric`.

    Entries of an ordered program that carry no message are left out, except as circuits of an
    all-stop configuration that carries some. Raises `UsageError` naming what does not fit.
    """
    _check_graph(graph, fabric, iterations)
    require_memory(
        _BYTES_PER_TASK * iterations * (graph.tasks + len(graph.arcs.before)),
        f"{iterations} iterations of {graph.tasks} tasks",
        "simulation",
        "execute fewer iterations, or use larger chunks or fewer channels",
    )
    if lookahead_ns < 0:
        why = "one looks ahead, not back"
        raise UsageError(f"lookahead_ns={lookahead_ns}", "simulation", why, "use 0 or more")
    if gather_ns < 0:
        why = "what has happened cannot be waited for"
        raise UsageError(f"gather_ns={gather_ns}", "simulation", why, "use 0 or more")
    if nic_buffer_bytes is not None and nic_buffer_bytes < 1:
        why = "nothing could ever be sent"
        what = f"nic_buffer_bytes={nic_buffer_bytes}"
        raise UsageError(what, "simulation", why, "use 1 or more, or None for no limit")
    planes, ports, nodes = _fabric_tables(fabric)
    nothing = np.full(graph.tasks, -1, np.int64)
    route = Route(nothing, nothing, nothing)
    rule = np.zeros(col.RULES, np.int64)
    rule[col.R_TASKS], rule[col.R_ITERATIONS] = graph.tasks, iterations
    rule[col.R_PORTS], rule[col.R_LOOKAHEAD] = len(ports), lookahead_ns
    rule[col.R_CONTROL], rule[col.R_NOTIFY] = fabric.control_ns, fabric.notify_ns
    rule[col.R_DELIVERY] = fabric.latency_ns + fabric.notify_ns
    match program:
        case OrderedProgram():
            sides, route, tables = _ordered(graph, fabric, program, planes, ports)
        case TimedProgram():
            tables = _timed_slots(program, fabric, planes)
            sides = _sides(planes, ports, fabric, ())
            rule[col.R_KIND] = col.TIMED
            rule[col.R_PERIOD], rule[col.R_PHASE] = program.period_ns, program.phase_ns
            rule[col.R_PARTIAL] = program.partial
        case ReactiveProgram():
            _require_any_circuit(fabric, program)
            rule[col.R_GATHER] = max(gather_ns, program.gather_ns)
            tables = _no_tables()
            sides = _sides(planes, ports, fabric, ())
            rule[col.R_KIND] = col.REACTIVE
    keys = ports[:, col.PORT_PLANE] * fabric.nodes + ports[:, col.PORT_NODE]
    node_port_ptr, node_port = csr(keys, np.arange(len(ports)), len(planes) * fabric.nodes)
    pointers, listed, indegree = graph.successors(iterations)

    def unrolled(column: Int64s) -> Int64s:
        return np.tile(np.asarray(column, np.int64), iterations)

    work = Work(
        kind=unrolled(graph.kind),
        src=unrolled(graph.src),
        dst=unrolled(graph.dst),
        size_bytes=graph.sizes_bytes(iterations),
        dur_ns=graph.durations_ns(iterations),
        successor_ptr=pointers,
        successor=listed,
        indegree=indegree,
    )
    return Layout(
        graph=graph,
        fabric=fabric,
        program=program,
        iterations=iterations,
        lookahead_ns=lookahead_ns,
        nic_buffer_bytes=nic_buffer_bytes,
        work=work,
        rule=rule,
        planes=planes,
        ports=ports,
        sides=sides,
        nodes=nodes,
        node_port_ptr=node_port_ptr,
        node_port=node_port,
        route=route,
        tables=tables,
    )


def _slots_within(layout: Layout, plane: int, horizon_ns: int) -> int:
    """Return the most slots of a plane that can begin within a closed span of `horizon_ns`."""
    first, count = layout.planes[plane, [col.PLANE_SLOT, col.PLANE_SLOTS]]
    offsets = layout.tables.slots[first : first + count, col.SLOT_OFFSET]
    cycles, rest = divmod(horizon_ns, int(layout.rule[col.R_PERIOD]))
    twice = np.concatenate([offsets, offsets + layout.rule[col.R_PERIOD]])
    ends = np.searchsorted(twice, offsets + rest, side="right")
    return int(cycles * count + (ends - np.arange(count)).max(initial=0))


def _most_rows(layout: Layout, horizon_ns: int) -> int:
    """Return the most rows one call of `dispatch` can write."""
    if layout.rule[col.R_KIND] == col.TIMED:
        # a call may come late by up to a horizon, and the first one starts a slot early
        return sum(
            int(layout.planes[plane, col.PLANE_PORTS])
            * (2 * _slots_within(layout, plane, horizon_ns) + 2)
            for plane in range(len(layout.planes))
        )
    if layout.rule[col.R_KIND] == col.REACTIVE:
        return 8 * len(layout.ports) + 64  # what does not fit is refused and may be asked again
    alternating = [plane.duplex or plane.all_stop for plane in layout.fabric.planes]
    entries = np.array(alternating)[layout.tables.entries[:, col.ENTRY_PLANE]].sum()
    return 4 * len(layout.ports) + layout.iterations * int(entries)


def new_state(
    layout: Layout, *, horizon_ns: int = 0, policy: Callable[..., int] | None = None
) -> col.State:
    """Make the dispatcher's memory before time zero.

    `horizon_ns` is how far ahead a timed program is written: `EV_TICK` has to come at least once
    per horizon (with 0, at every slot's request time). `policy` stands in for the compiled policy
    where the dispatcher runs interpreted.
    """
    from scheduler.dispatch.policies import compiled_policy

    rule = layout.rule.copy()
    rule[col.R_HORIZON] = horizon_ns
    reactive = isinstance(layout.program, ReactiveProgram)
    work = layout.work
    messages = np.full((len(work.kind) if reactive else 0, col.MSG_COLUMNS), -1, np.int64)
    numbers = np.zeros(0, np.int64)
    grants = layout.iterations * len(layout.tables.message)
    if isinstance(layout.program, ReactiveProgram):
        messages[:, col.MSG_STATE] = col.NOT_READY
        messages[:, col.MSG_SRC], messages[:, col.MSG_DST] = work.src, work.dst
        messages[:, col.MSG_BYTES] = work.size_bytes
        numbers = np.array(layout.program.numbers, np.int64)
        grants = len(work.kind)
    core = col.Core(
        rule=rule,
        planes=layout.planes,
        ports=layout.ports,
        sides=layout.sides.copy(),
        nodes=layout.nodes.copy(),
        messages=messages,
        numbers=numbers,
        actions=np.zeros((_most_rows(layout, horizon_ns), col.ACTION_COLUMNS), np.int64),
        granted=np.zeros(grants, np.int64),
        cursor=np.zeros(col.C_PLANES + len(layout.planes), np.int64),
    )
    return col.State(
        core=core,
        size_bytes=work.size_bytes,
        entries=layout.tables.entries,
        side_entry=layout.tables.side_entry,
        message=layout.tables.message,
        carrier=layout.tables.carrier,
        matchings=layout.tables.matchings,
        slots=layout.tables.slots,
        permutation=layout.tables.permutation,
        policy=policy or compiled_policy(layout.program),
    )
