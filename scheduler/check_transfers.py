"""Whether the transfers of a finished run carried every byte, in the light, at line rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from scheduler.check import Violation, entry_of, examples
from scheduler.check_circuits import stands_of
from scheduler.model.nic import wire_ns
from scheduler.model.program import OrderedProgram, TimedProgram
from scheduler.model.taskgraph import MESSAGE
from scheduler.model.timeline import NONE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from scheduler.model.program import Program
    from scheduler.model.taskgraph import Int64s, TaskGraph
    from scheduler.model.timeline import Timeline
    from topologies.fabric import Fabric

__all__ = ["check_transfers"]

_FOREVER: Final = 2**62


def check_transfers(
    graph: TaskGraph,
    fabric: Fabric,
    program: Program,
    timeline: Timeline,
    *,
    tolerance_ns: int,
    quantum_bytes: int,
    may_be_slow: NDArray[np.bool_] | None = None,
) -> list[Violation]:
    """Return how the transfers break the model; times may be off by `tolerance_ns`.

    Where `may_be_slow`, bool (transfers,), a fault may have held them up, or frames of theirs were
    sent again. None: nowhere.

    Every message's bytes leave its source, reach its destination and pass through every relay; a
    transfer joins the nodes of its circuit, stays inside the time that is up, takes line rate and
    shares no output; ordered programs keep their order and circuits, timed ones serve first in,
    first out.
    """
    violations = [
        *examples("every byte once", _unbalanced(graph, timeline)),
        *examples("a message lasts as its transfers", _wrong_spans(graph, timeline, tolerance_ns)),
        *examples("a transfer takes its circuit", _astray(graph, fabric, program, timeline)),
    ]
    if violations:
        return violations
    return [
        *examples(
            "a transfer takes line rate",
            _wrong_rates(
                fabric, program, timeline, tolerance_ns, quantum_bytes, may_be_slow=may_be_slow
            ),
        ),
        *examples("bytes move in the light", _in_the_dark(fabric, timeline, tolerance_ns)),
        *examples("an output sends one thing", _shared(fabric, program, timeline, tolerance_ns)),
        *examples("a packet switch takes line rate", _overfull(fabric, timeline, tolerance_ns)),
        *examples("messages follow the program", _disordered(graph, fabric, program, timeline)),
    ]


def _unbalanced(graph: TaskGraph, timeline: Timeline) -> Iterator[tuple[str, str]]:
    moved, total = timeline.transfers, timeline.iterations * graph.tasks
    base = moved.task % graph.tasks
    source, target = moved.from_node == graph.src[base], moved.to_node == graph.dst[base]
    for row in np.flatnonzero((moved.hop == 0) & ~source).tolist():
        yield f"transfer {row}", f"it leaves node {moved.from_node[row]}, not its source"
    for row in np.flatnonzero((moved.hop == 1) & ~target).tolist():
        yield f"transfer {row}", f"it ends at node {moved.to_node[row]}, not its destination"
    message = np.tile(graph.kind == MESSAGE, timeline.iterations)
    wanted = np.where(message, graph.sizes_bytes(timeline.iterations), 0)
    for name, chosen in (("left", moved.hop == 0), ("arrived", target)):
        found = np.zeros(total, np.int64)
        np.add.at(found, moved.task[chosen], moved.size_bytes[chosen])
        for task in np.flatnonzero(found != wanted).tolist():
            yield f"task {task}", f"{found[task]} of its {wanted[task]} bytes {name}"
    nodes = graph.nodes
    relayed, forwarded = (moved.hop == 0) & ~target, moved.hop == 1
    keys = np.concatenate(
        [
            moved.task[relayed] * nodes + moved.to_node[relayed],
            moved.task[forwarded] * nodes + moved.from_node[forwarded],
        ]
    )
    signed = np.concatenate([moved.size_bytes[relayed], -moved.size_bytes[forwarded]])
    found_keys, inverse = np.unique(keys, return_inverse=True)
    kept = np.zeros(len(found_keys), np.int64)
    np.add.at(kept, inverse, signed)
    for key, rest in zip(found_keys[kept != 0].tolist(), kept[kept != 0].tolist(), strict=True):
        yield f"task {key // nodes}", f"relay {key % nodes} keeps {rest} bytes"


def _wrong_spans(
    graph: TaskGraph, timeline: Timeline, tolerance_ns: int
) -> Iterator[tuple[str, str]]:
    moved, total = timeline.transfers, timeline.iterations * graph.tasks
    first, last = np.full(total, _FOREVER, np.int64), np.full(total, NONE, np.int64)
    np.minimum.at(first, moved.task, moved.start_ns)
    np.maximum.at(last, moved.task, moved.end_ns)
    message = np.tile(graph.kind == MESSAGE, timeline.iterations)
    for name, found, wanted in (
        ("starts", timeline.start_ns, first),
        ("ends", timeline.end_ns, last),
    ):
        for task in np.flatnonzero(message & (np.abs(found - wanted) > tolerance_ns)).tolist():
            yield f"task {task}", f"it {name} at {found[task]} ns, its transfers {wanted[task]} ns"
    for row in np.flatnonzero(np.diff(moved.start_ns) < 0).tolist():
        yield f"transfer {row + 1}", "it is listed after one that started later"


def _outputs(fabric: Fabric, program: Program, timeline: Timeline) -> Int64s:
    """The sending port of each transfer, numbered over all planes.

    On packet switches it is the one an ordered program says, else the first of its node. NONE where
    the circuit does not join the transfer's nodes.
    """
    moved, circuits = timeline.transfers, timeline.circuits
    base = np.cumsum([0, *(plane.ports for plane in fabric.planes)])
    owner = np.concatenate([np.asarray(plane.node_of, np.int64) for plane in fabric.planes])
    duplex = np.asarray([plane.duplex for plane in fabric.planes])[moved.plane]
    optical = moved.circuit != NONE
    row = np.where(optical, moved.circuit, 0)
    out: Int64s = np.full(len(row), NONE, np.int64)
    if len(circuits.plane):
        src = np.minimum(base[moved.plane] + circuits.src_port[row], len(owner) - 1)
        dst = np.minimum(base[moved.plane] + circuits.dst_port[row], len(owner) - 1)
        same = optical & (circuits.plane[row] == moved.plane)
        there = same & (owner[src] == moved.from_node) & (owner[dst] == moved.to_node)
        back = same & duplex & (owner[dst] == moved.from_node) & (owner[src] == moved.to_node)
        out = np.where(there, src, np.where(back, dst, NONE))
    for number, plane in enumerate(fabric.planes):
        if plane.kind == "eps":
            mine = (moved.plane == number) & ~optical
            first = np.asarray(
                [(*fabric.ports_of(number, n), NONE)[0] for n in range(fabric.nodes)]
            )
            out[mine] = base[number] + first[moved.from_node[mine]]
    if isinstance(program, OrderedProgram):
        planned = np.full(len(timeline.ready_ns) // timeline.iterations, NONE, np.int64)
        entry = entry_of(program)
        planned[program.message] = base[program.plane[entry]] + program.src_port[entry]
        packet = _on_packets(fabric, timeline)
        out[packet] = planned[moved.task[packet] % len(planned)]
    return out


def _astray(
    graph: TaskGraph, fabric: Fabric, program: Program, timeline: Timeline
) -> Iterator[tuple[str, str]]:
    moved = timeline.transfers
    for row in np.flatnonzero(_outputs(fabric, program, timeline) == NONE).tolist():
        what = f"it goes from node {moved.from_node[row]} to {moved.to_node[row]} on plane"
        circuit = "no circuit" if moved.circuit[row] == NONE else f"circuit {moved.circuit[row]}"
        yield f"transfer {row}", f"{what} {moved.plane[row]} by {circuit}"
    del graph


def _wrong_rates(
    fabric: Fabric,
    program: Program,
    timeline: Timeline,
    tolerance_ns: int,
    quantum_bytes: int,
    *,
    may_be_slow: NDArray[np.bool_] | None,
) -> Iterator[tuple[str, str]]:
    """Find transfers that were too fast or too slow.

    A piece of a timed program may end up to a byte, or 1 ns per frame, later than at line rate:
    whole bytes leave at whole ns there. The last pieces of a message end together, though all ports
    of its source may have sent a ns's bytes too many. Everything else takes exactly its time.

    On a packet plane the queues of a timed program share the ports: a piece takes its time or
    longer, but for the bytes that rounding moves from plane to plane.
    """
    moved = timeline.transfers
    least = wire_ns(fabric, moved.plane, moved.size_bytes)
    most = least.copy()
    if isinstance(program, TimedProgram):
        fluid = _on_packets(fabric, timeline)
        rounded = np.maximum(moved.size_bytes[fluid] - len(fabric.planes), 0)
        most = wire_ns(fabric, moved.plane, moved.size_bytes + 1) + _ways(fabric, timeline)
        if quantum_bytes:
            most += -(-moved.size_bytes // quantum_bytes)
        least[fluid], most[fluid] = wire_ns(fabric, moved.plane[fluid], rounded), _FOREVER
    if may_be_slow is not None:
        most[may_be_slow] = _FOREVER
    took = moved.end_ns - moved.start_ns - fabric.latency_ns
    wrong = (took < least - tolerance_ns) | (took > most + tolerance_ns)
    for row in np.flatnonzero(wrong).tolist():
        yield f"transfer {row}", f"it takes {took[row]} ns, at line rate {least[row]} ns"


def _ways(fabric: Fabric, timeline: Timeline) -> Int64s:
    """Return how many ports like the one that sends it its source has, by rate, rounded up."""
    moved = timeline.transfers
    rates = np.asarray([plane.rate_bps for plane in fabric.planes], np.int64)
    total = np.zeros(fabric.nodes, np.int64)
    for plane in fabric.planes:
        np.add.at(total, np.asarray(plane.node_of), plane.rate_bps)
    ways: Int64s = -(-total[moved.from_node] // rates[moved.plane])
    return ways


def _on_packets(fabric: Fabric, timeline: Timeline) -> NDArray[np.bool_]:
    """Tell which transfers a packet switch carried."""
    electric = np.asarray([plane.kind == "eps" for plane in fabric.planes])
    found: NDArray[np.bool_] = electric[timeline.transfers.plane]
    found &= timeline.transfers.circuit == NONE
    return found


def _in_the_dark(
    fabric: Fabric, timeline: Timeline, tolerance_ns: int
) -> Iterator[tuple[str, str]]:
    moved, circuits = timeline.transfers, timeline.circuits
    rows = np.flatnonzero(moved.circuit != NONE)
    up, down = circuits.up_ns[moved.circuit[rows]], circuits.down_ns[moved.circuit[rows]]
    last = moved.start_ns[rows] + wire_ns(fabric, moved.plane[rows], moved.size_bytes[rows])
    early = moved.start_ns[rows] < up - tolerance_ns
    late = (down != NONE) & (last > down + tolerance_ns)
    for k in np.flatnonzero(early | late).tolist():
        stands = f"{up[k]} to {_said(down[k])} ns"
        what = f"it lasts from {moved.start_ns[rows[k]]} to {last[k]} ns, its circuit from"
        yield f"transfer {rows[k]}", f"{what} {stands}"


def _said(time_ns: int) -> str:
    return "the end" if time_ns == NONE else str(time_ns)


def _shared(
    fabric: Fabric, program: Program, timeline: Timeline, tolerance_ns: int
) -> Iterator[tuple[str, str]]:
    moved, out = timeline.transfers, _outputs(fabric, program, timeline)
    order = np.lexsort((moved.start_ns, out))
    if isinstance(program, TimedProgram):  # queues share the ports of packet planes
        order = order[~_on_packets(fabric, timeline)[order]]
    last = moved.start_ns + wire_ns(fabric, moved.plane, moved.size_bytes)
    same = out[order[1:]] == out[order[:-1]]
    early = moved.start_ns[order[1:]] < last[order[:-1]] - tolerance_ns
    for k in np.flatnonzero(same & early).tolist():
        yield f"transfer {order[k + 1]}", f"its port still sends transfer {order[k]}"


def _overfull(fabric: Fabric, timeline: Timeline, tolerance_ns: int) -> Iterator[tuple[str, str]]:
    """Find packet ports that take more while anything moves than line rate allows."""
    moved = timeline.transfers
    packets = _on_packets(fabric, timeline)
    for number, plane in enumerate(fabric.planes):
        for way, ends in (("send", moved.from_node), ("receive", moved.to_node)):
            for node in sorted(set(plane.node_of)):
                rows = np.flatnonzero(packets & (moved.plane == number) & (ends == node))
                if len(rows) == 0:
                    continue
                last = moved.end_ns[rows] - fabric.latency_ns
                span_ns = int(last.max() - moved.start_ns[rows].min()) + tolerance_ns
                most = span_ns * plane.rate_bps * plane.node_of.count(node) / 8e9 + len(rows)
                if (total := int(moved.size_bytes[rows].sum())) > most:
                    what = f"its ports on plane {number} {way} {total} bytes in {span_ns} ns"
                    yield f"node {node}", what


def _disordered(
    graph: TaskGraph, fabric: Fabric, program: Program, timeline: Timeline
) -> Iterator[tuple[str, str]]:
    if isinstance(program, OrderedProgram):
        yield from _off_the_plan(graph, fabric, program, timeline)
    elif isinstance(program, TimedProgram) and program.routing == "direct":
        yield from _overtaken(graph, timeline)
    if not isinstance(program, TimedProgram):
        task, times = np.unique(timeline.transfers.task, return_counts=True)
        for k in np.flatnonzero(times > 1).tolist():
            yield f"task {task[k]}", f"it moves in {times[k]} pieces"


def _off_the_plan(
    graph: TaskGraph, fabric: Fabric, program: OrderedProgram, timeline: Timeline
) -> Iterator[tuple[str, str]]:
    """Each message goes by its entry's circuit, after those listed before it at its output.

    The outputs of a packet switch are first in, first out: by ready time, then id.
    """
    moved = timeline.transfers
    stands, wrong = stands_of(program, fabric, timeline)
    if wrong:
        return  # said by the check of circuits
    wanted = np.full((timeline.iterations, len(program.plane)), NONE, np.int64)
    for stand in stands:
        for iteration, entry in stand.entries:
            wanted[iteration, entry] = stand.circuit
    entry_at = np.full(graph.tasks, NONE, np.int64)
    entry_at[program.message] = entry_of(program)
    place = np.full(graph.tasks, NONE, np.int64)
    place[program.message] = np.arange(len(program.message))
    base, turn = moved.task % graph.tasks, moved.task // graph.tasks
    circuit = wanted[turn, entry_at[base]]
    plane = program.plane[entry_at[base]]
    for row in np.flatnonzero((circuit != moved.circuit) | (plane != moved.plane)).tolist():
        what = f"it goes by circuit {moved.circuit[row]} of plane {moved.plane[row]}"
        yield f"transfer {row}", f"{what}, the plan says {circuit[row]} of plane {plane[row]}"
    packet = moved.circuit == NONE
    first = np.where(packet, timeline.ready_ns[moved.task], 0)
    rank = np.where(packet, moved.task, moved.task - base + place[base])
    out = _outputs(fabric, program, timeline)
    order = np.lexsort((rank, first, out))
    same = out[order[1:]] == out[order[:-1]]
    early = moved.start_ns[order[1:]] < moved.start_ns[order[:-1]]
    for k in np.flatnonzero(same & early).tolist():
        yield (
            f"transfer {order[k + 1]}",
            f"it overtakes transfer {order[k]}, whose turn is first",
        )


def _overtaken(graph: TaskGraph, timeline: Timeline) -> Iterator[tuple[str, str]]:
    """Queues are first in, first out: by ready time, then id."""
    message = np.flatnonzero(np.tile(graph.kind == MESSAGE, timeline.iterations))
    base = message % graph.tasks
    queue = graph.src[base] * graph.nodes + graph.dst[base]
    order = np.lexsort((message, timeline.ready_ns[message], queue))
    same = queue[order[1:]] == queue[order[:-1]]
    start = timeline.start_ns[message]
    for k in np.flatnonzero(same & (start[order[1:]] < start[order[:-1]])).tolist():
        yield f"task {message[order[k + 1]]}", f"it overtakes task {message[order[k]]}"
