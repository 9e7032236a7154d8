"""What a finished execution amounts to: the numbers of a run's summary, one formula each.

The steady window of n iterations, k skipped, runs from the end of iteration k to the end of
iteration n; without a skipped iteration it is the whole execution.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from scheduler.model.nic import wire_ns
from scheduler.model.taskgraph import COMPUTE, csr
from scheduler.model.timeline import NONE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scheduler.model.taskgraph import Int64s, TaskGraph
    from scheduler.model.timeline import Timeline
    from topologies.fabric import Fabric

__all__ = ["Metrics", "measure", "merged", "union_length_ns"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Numbers of an execution; None where they are unknown or do not exist."""

    iteration_ns: float | None
    iterations_ns: tuple[int | None, ...]
    reconfigurations: float | None
    dark_fraction: float | None
    circuit_utilisation: float | None
    exposed_comm_ns: float | None
    messages: int
    bytes: int
    lost_bytes: int
    schedule_error_p50_ns: float | None
    schedule_error_p99_ns: float | None


def measure(
    graph: TaskGraph,
    fabric: Fabric,
    timeline: Timeline,
    *,
    rank_to_node: Sequence[int],
    skip: int,
) -> Metrics:
    """Compute the metrics of an execution; the table says how.

    | field | formula |
    |---|---|
    | iteration_ns | (end_n - end_k) / (n - k) |
    | iterations_ns | end_i - end_(i-1), end_0 = 0 |
    | reconfigurations | requests made after iteration 1 ended, over n - 1 |
    | dark_fraction | sum of up_ns - dark_ns over a circuit's ends, over OCS ports * duration |
    | circuit_utilisation | time with bits on the wire over time with light, per direction |
    | exposed_comm_ns | per rank and iteration of the steady window: time with a message of its node
    ready and not arrived while no computation of the rank runs; the mean over ranks |
    | messages, bytes | of all iterations, that arrived |
    | lost_bytes | bytes of arrived messages that no last transfer carried |
    | schedule_error | percentiles of up_ns - planned_up_ns over circuits with both |
    """
    ends = timeline.iteration_ends_ns
    finished = bool((ends != NONE).all())
    duration = int(ends.max()) if finished else int(timeline.end_ns.max(initial=0))
    durations: list[int | None] = []
    last: int | None = 0
    for end in ends.tolist():
        known = end != NONE and last is not None
        durations.append(end - last if known and last is not None else None)
        last = end if end != NONE else None
    sizes = graph.sizes_bytes(timeline.iterations)
    arrived = (sizes > 0) & (timeline.end_ns != NONE)
    errors = _schedule_errors(timeline)
    return Metrics(
        iteration_ns=_iteration_ns(timeline, skip),
        iterations_ns=tuple(durations),
        reconfigurations=_reconfigurations(timeline),
        dark_fraction=_dark_fraction(fabric, timeline, duration),
        circuit_utilisation=_utilisation(fabric, timeline, duration),
        exposed_comm_ns=_exposed(graph, timeline, rank_to_node, skip) if finished else None,
        messages=int(arrived.sum()),
        bytes=int(sizes[arrived].sum()),
        lost_bytes=_lost(graph, timeline, sizes, arrived),
        schedule_error_p50_ns=float(np.percentile(errors, 50)) if len(errors) else None,
        schedule_error_p99_ns=float(np.percentile(errors, 99)) if len(errors) else None,
    )


def _iteration_ns(timeline: Timeline, skip: int) -> float | None:
    """Return the steady-state time; a single iteration counts from time 0."""
    if skip > 0:
        return timeline.iteration_ns(skip)
    end = int(timeline.iteration_ends_ns[-1])
    return None if end == NONE else end / timeline.iterations


def _reconfigurations(timeline: Timeline) -> float | None:
    ends = timeline.iteration_ends_ns
    if timeline.iterations == 1 or ends[0] == NONE or ends[-1] == NONE:
        return None
    requests = timeline.circuits.request_ns
    return int((requests > ends[0]).sum()) / (timeline.iterations - 1)


def _ends_per_circuit(fabric: Fabric) -> Int64s:
    """How many of a plane's port halves a circuit holds, per plane: 2, or 4 when duplex."""
    return np.asarray([4 if plane.duplex else 2 for plane in fabric.planes], np.int64)


def _dark_fraction(fabric: Fabric, timeline: Timeline, duration_ns: int) -> float | None:
    circuits = timeline.circuits
    halves = sum(2 * plane.ports for plane in fabric.planes if plane.kind == "ocs")
    if not halves or duration_ns <= 0:
        return None
    made = circuits.dark_ns != NONE
    dark = np.minimum(circuits.up_ns, duration_ns) - np.minimum(circuits.dark_ns, duration_ns)
    dark = np.where(made, dark, 0) * _ends_per_circuit(fabric)[circuits.plane]
    return int(dark.sum()) / (halves * duration_ns)


def _utilisation(fabric: Fabric, timeline: Timeline, duration_ns: int) -> float | None:
    circuits, moved = timeline.circuits, timeline.transfers
    down = np.where(circuits.down_ns == NONE, duration_ns, circuits.down_ns)
    up = np.maximum(down - circuits.up_ns, 0) * (_ends_per_circuit(fabric)[circuits.plane] // 2)
    optical = moved.circuit != NONE
    busy = wire_ns(fabric, moved.plane[optical], moved.size_bytes[optical])
    return int(busy.sum()) / int(up.sum()) if up.sum() > 0 else None


def _lost(graph: TaskGraph, timeline: Timeline, sizes: Int64s, arrived: Int64s) -> int:
    moved = timeline.transfers
    target = graph.dst[moved.task % graph.tasks]
    final = moved.to_node == target
    carried = np.zeros(len(sizes), np.int64)
    np.add.at(carried, moved.task[final], moved.size_bytes[final])
    return int(np.maximum(sizes - carried, 0)[arrived].sum())


def _schedule_errors(timeline: Timeline) -> Int64s:
    circuits = timeline.circuits
    known = (circuits.planned_up_ns != NONE) & (circuits.request_ns != NONE)
    return np.asarray(circuits.up_ns[known] - circuits.planned_up_ns[known], np.int64)


def union_length_ns(begin: Int64s, end: Int64s) -> int:
    """Return how much time at least one of the intervals [begin, end) covers.

    >>> union_length_ns(np.array([0, 5, 20]), np.array([10, 12, 21]))
    13
    """
    begin, end = merged(begin, end)
    return int((end - begin).sum())


def merged(begin: Int64s, end: Int64s) -> tuple[Int64s, Int64s]:
    """Join overlapping intervals, ordered by begin; empty ones vanish."""
    real = end > begin
    begin, end = begin[real], end[real]
    if not len(begin):
        return begin, end
    order = np.argsort(begin, kind="stable")
    begin, reach = begin[order], np.maximum.accumulate(end[order])
    first = np.ones(len(begin), bool)
    first[1:] = begin[1:] > reach[:-1]
    starts = np.flatnonzero(first)
    return begin[first], np.asarray(reach[np.append(starts[1:], len(reach)) - 1], np.int64)


def _exposed(
    graph: TaskGraph, timeline: Timeline, rank_to_node: Sequence[int], skip: int
) -> float | None:
    """Time a rank has a message outstanding and computes nothing: |M or C| - |C|, intervals."""
    ends = timeline.iteration_ends_ns
    window = (int(ends[skip - 1]) if skip else 0), int(ends[-1])
    count = timeline.iterations - skip
    if window[1] <= window[0] or count <= 0 or not rank_to_node:
        return None
    messages, computing = graph.messages, graph.kind == COMPUTE
    own = np.flatnonzero(computing & (graph.stream >= 0) & (graph.rank >= 0))  # not in a collective
    begin = np.clip(timeline.ready_ns.reshape(-1, graph.tasks), *window)
    work = np.clip(timeline.start_ns.reshape(-1, graph.tasks), *window)
    end = np.clip(timeline.end_ns.reshape(-1, graph.tasks), *window)
    ends_of = np.concatenate([graph.src[messages], graph.dst[messages]])
    touching = _listed(ends_of, np.tile(messages, 2), graph.nodes)
    computed = _listed(graph.rank[own], own, max(len(rank_to_node), graph.rank.max(initial=-1) + 1))
    total = 0
    for rank, node in enumerate(rank_to_node):
        sent, done = touching[node], computed[rank]
        both = union_length_ns(
            np.concatenate([begin[:, sent].ravel(), work[:, done].ravel()]),
            np.concatenate([end[:, sent].ravel(), end[:, done].ravel()]),
        )
        total += both - union_length_ns(work[:, done].ravel(), end[:, done].ravel())
    return total / len(rank_to_node) / count


def _listed(rows: Int64s, values: Int64s, count: int) -> list[Int64s]:
    """Return the values of each row."""
    pointers, listed = csr(rows, values, count)
    return np.split(listed, pointers[1:-1])
