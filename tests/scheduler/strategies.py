"""Hypothesis strategies: small workloads, fabrics and programs that fit together.

An ordered program is derived from one serial order of the messages that respects the graph: every
message is appended to a plane's list in that order, so no port ever waits for a later message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
from hypothesis import strategies as st

from scheduler.model.program import Entry, OrderedProgram, Slot, TimedProgram
from scheduler.model.taskgraph import COMPUTE, MARKER, MESSAGE, Arcs, TaskGraph
from topologies import Circuit, Fabric, Plane

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn

__all__ = ["fabrics", "ordered_programs", "task_graphs", "timed_programs"]


@st.composite
def task_graphs(draw: DrawFn, *, max_nodes: int = 4, max_tasks: int = 14) -> TaskGraph:
    """Draw one iteration: computes, markers and messages with arcs that point forward.

    Arcs of distance 1 go anywhere. Some iterations have no arc between them at all.
    """
    nodes = draw(st.integers(2, max_nodes))
    count = draw(st.integers(1, max_tasks))
    kind = [draw(st.sampled_from([MESSAGE, MESSAGE, COMPUTE, MARKER])) for _ in range(count)]
    rows = []
    for task, k in enumerate(kind):
        src = draw(st.integers(0, nodes - 1))
        dst = draw(st.integers(0, nodes - 2))
        message = k == MESSAGE
        rows.append(
            {
                "kind": k,
                "op": task // 2,
                "rank": -1 if message else src,
                "stream": -1 if message else 0,
                "position": -1 if message else task,
                "src": src if message else -1,
                "dst": (dst + (dst >= src)) if message else -1,
                "size_bytes": draw(st.integers(1, 4000)) if message else 0,
                "dur_ns": draw(st.integers(0, 3000)) if k == COMPUTE else 0,
                "group": task if message else -1,
                "step": 0 if message else -1,
            }
        )
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    inside = {(a, b, 0) for a, b in draw(st.lists(pairs, max_size=2 * count)) if a < b}
    across = {(a, b, 1) for a, b in draw(st.lists(pairs, max_size=3))}
    arcs = np.array(sorted(inside | across), np.int64).reshape(-1, 3)
    return TaskGraph(
        nodes=nodes,
        arcs=Arcs(
            before=arcs[:, 0].copy(),
            after=arcs[:, 1].copy(),
            distance=arcs[:, 2].copy(),
            origin=np.zeros(len(arcs), np.int64),
        ),
        **{name: np.array([row[name] for row in rows], np.int64) for name in rows[0]},
    )


@st.composite
def fabrics(
    draw: DrawFn,
    nodes: int,
    *,
    kinds: tuple[Literal["ocs", "eps"], ...] = ("ocs", "eps"),
    all_stop: bool = True,
    max_planes: int = 3,
) -> Fabric:
    """Draw planes that join all nodes, some with several ports per node, odd rates and delays."""
    planes = []
    for index in range(draw(st.integers(1, max_planes))):
        extra = draw(st.lists(st.integers(0, nodes - 1), max_size=2))
        kind: Literal["ocs", "eps"] = draw(st.sampled_from(kinds)) if index else "ocs"
        planes.append(
            Plane(
                node_of=(*draw(st.permutations(range(nodes))), *extra),
                rate_bps=draw(st.sampled_from([8 * 10**9, 10**9, 7 * 10**9 + 13, 800 * 10**9])),
                delay_ns=draw(st.sampled_from([0, 1, 50, 1000])),
                kind=kind,
                duplex=draw(st.booleans()),
                all_stop=all_stop and kind == "ocs" and draw(st.booleans()),
            )
        )
    few = st.sampled_from([0, 0, 1, 30, 200])
    return Fabric(
        nodes=nodes,
        planes=tuple(planes),
        control_ns=draw(few),
        notify_ns=draw(few),
        latency_ns=draw(few),
    )


def _matching(draw: DrawFn, plane: Plane) -> list[tuple[int, int]]:
    """Draw circuits that can stand together."""
    free_out, free_in = set(range(plane.ports)), set(range(plane.ports))
    circuits = []
    for src, dst in draw(
        st.lists(st.tuples(st.integers(0, plane.ports - 1), st.integers(0, plane.ports - 1)))
    ):
        ends = ({src, dst}, {src, dst}) if plane.duplex else ({src}, {dst})
        if src != dst and ends[0] <= free_out and ends[1] <= free_in:
            circuits.append((src, dst))
            free_out -= ends[0]
            free_in -= ends[1]
    return circuits


@st.composite
def ordered_programs(draw: DrawFn, graph: TaskGraph, fabric: Fabric) -> OrderedProgram:
    """Draw a program that cannot stall: entries follow one serial order of the messages."""
    order = [t for t in graph.topological_order().tolist() if graph.kind[t] == MESSAGE]
    lists: list[list[Entry]] = [[] for _ in fabric.planes]
    for message in order:
        index = draw(st.integers(0, len(fabric.planes) - 1))
        ports = (
            fabric.ports_of(index, int(graph.src[message])),
            fabric.ports_of(index, int(graph.dst[message])),
        )
        src, dst = (draw(st.sampled_from(choice)) for choice in ports)
        last = lists[index][-1] if lists[index] else None
        if last and last[:2] == (src, dst) and draw(st.booleans()):
            lists[index][-1] = Entry(src, dst, (*last.messages, message))
        else:
            lists[index].append(Entry(src, dst, (message,)))
    numbers = []
    for plane, entries in zip(fabric.planes, lists, strict=True):
        current: list[Circuit] = []
        number = 0
        row: list[int] = []
        for src, dst, _ in entries:
            uses = plane.uses(Circuit(src, dst))
            hits = [c for c in current if plane.uses(c) & uses and plane.uses(c) != uses]
            apart: bool = draw(st.booleans())
            if current and (hits or apart):
                number, current = number + 1, []
            current.append(Circuit(src, dst))
            row.append(number)
        numbers.append(row)
    initial = [
        (index, src, dst)
        for index, plane in enumerate(fabric.planes)
        if plane.kind == "ocs" and draw(st.booleans())
        for src, dst in _matching(draw, plane)
    ]
    return OrderedProgram.from_entries(lists, initial, numbers)


@st.composite
def timed_programs(draw: DrawFn, fabric: Fabric) -> TimedProgram:
    """Draw slots of random permutations; nothing says that every pair of nodes is ever joined."""
    period_ns = draw(st.integers(200, 20_000))
    planes = []
    for plane in fabric.planes:
        offsets = draw(st.sets(st.integers(0, period_ns - 1), min_size=1, max_size=5))
        slots = []
        for offset in sorted(offsets):
            to = [-1] * plane.ports
            for src, dst in _matching(draw, plane):
                to[src] = dst
                if plane.duplex:
                    to[dst] = src
            slots.append(Slot(offset, tuple(to)))
        planes.append(tuple(slots) if plane.kind == "ocs" else ())
    return TimedProgram(
        period_ns=period_ns,
        planes=tuple(planes),
        phase_ns=draw(st.integers(0, period_ns - 1)),
        guard_ns=draw(st.sampled_from([0, 0, 1, 40])),
        partial=draw(st.booleans()),
    )
