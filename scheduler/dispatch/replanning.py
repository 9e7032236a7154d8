"""Planning again while a workload runs, when computations drift from what was planned.

After every iteration the controller compares what computations took with what its plan assumed. If
a rank is off by more than a threshold it plans again, with the durations it has seen. Meanwhile the
old plan goes on; when the new one is there and the iteration under way has ended on every rank, all
circuits are drained: nothing of the next iteration begins before that. The new plan takes over
with the circuits that stand, and asks for those it wants instead.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from scheduler.dispatch.simulator import simulate
from scheduler.model.problem import Problem
from scheduler.model.taskgraph import COMPUTE
from scheduler.model.timeline import NONE

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from scheduler.model.program import OrderedProgram
    from scheduler.model.taskgraph import Int64s, TaskGraph
    from scheduler.model.timeline import Circuits
    from topologies.fabric import Fabric

__all__ = ["Replanned", "simulate_replanned"]


class Replanned(NamedTuple):
    """When each iteration ended, ns, (iterations,); before which ones a new plan took over."""

    ends_ns: Int64s
    takeovers: tuple[int, ...]


def simulate_replanned(
    graph: TaskGraph,
    fabric: Fabric,
    plan: Callable[[Problem], OrderedProgram],
    *,
    threshold: float,
    planning_ns: int,
    iterations: int = 12,
    seed: int = 0,
    first: OrderedProgram | None = None,
    lookahead_ns: int = 0,
    nic_buffer_bytes: int | None = None,
) -> Replanned:
    """Execute a perturbed `graph` under `plan`, planned again where a rank drifts.

    `threshold`: how far, as a part of one, a rank's computing in one iteration may be from what the
    plan in force assumed. `planning_ns` is how long planning takes of the workload's time. Each
    plan assumes of a rank what it took on average since the last one. A plan is made at most once
    per iteration, and one at a time. `first` is the plan to begin with, where it is there. Raises
    `UsageError` and `StalledError` as `simulate` does, whose last two options these are.
    """
    how: dict[str, Any] = {"lookahead_ns": lookahead_ns, "nic_buffer_bytes": nic_buffer_bytes}
    asked: dict[str, Any] = {
        "fabric": fabric, "seed": seed, "budget_s": planning_ns / 1e9, "lookahead_ns": lookahead_ns
    }  # fmt: skip
    ends: list[int] = []
    takeovers: list[int] = []
    assumed = graph.planned()
    program = first or plan(Problem(graph=assumed, **asked))
    while len(ends) < iterations:
        left = iterations - len(ends)
        rest = _from_iteration(graph, len(ends))
        took = _computing(rest, left)
        drifts = np.abs(took / np.maximum(_computing(assumed, 1), 1) - 1).max(axis=1) > threshold
        timeline = simulate(rest, fabric, program, iterations=left, **how)
        begin_ns = ends[-1] if ends else 0
        found = begin_ns + timeline.iteration_ends_ns
        last = _last_under_old_plan(found, drifts, planning_ns)
        if last is None:
            ends += found.tolist()
            break
        noticed = int(np.argmax(drifts))
        ratio = took[: noticed + 1].mean(axis=0) / np.maximum(_computing(graph.planned(), 1)[0], 1)
        assumed = _scaled(graph.planned(), ratio)
        drained = last + 1  # iterations, and no more than these
        stands = simulate(rest, fabric, program, iterations=drained, **how)
        ends += (begin_ns + stands.iteration_ends_ns).tolist()
        takeovers.append(len(ends))
        program = dataclasses.replace(
            plan(Problem(graph=assumed, **asked)),
            initial_circuits=_standing(stands.circuits),
            proof=None,
        )
    return Replanned(np.asarray(ends, np.int64), tuple(takeovers))


def _last_under_old_plan(
    ends_ns: Int64s, drifts: NDArray[np.bool_], planning_ns: int
) -> int | None:
    """Return the last iteration before a new plan takes over; None if none does."""
    if not drifts.any():
        return None
    noticed = int(np.argmax(drifts))
    ready = np.flatnonzero(ends_ns >= ends_ns[noticed] + planning_ns)
    return int(ready[0]) if len(ready) and ready[0] < len(ends_ns) - 1 else None


def _from_iteration(graph: TaskGraph, first: int) -> TaskGraph:
    if graph.variation is None:
        return graph
    return dataclasses.replace(graph, variation=dataclasses.replace(graph.variation, first=first))


def _computing(graph: TaskGraph, iterations: int) -> NDArray[np.float64]:
    """Return how long each rank computes in each iteration, shape (iterations, ranks)."""
    own = graph.kind == COMPUTE
    ranks, width = graph.rank[own], int(graph.rank.max(initial=-1)) + 1
    durations = graph.durations_ns(iterations).reshape(iterations, -1)[:, own]
    return np.stack([np.bincount(ranks, row, width) for row in durations])


def _scaled(graph: TaskGraph, ratio: NDArray[np.float64]) -> TaskGraph:
    factor = np.where(graph.kind == COMPUTE, ratio[np.maximum(graph.rank, 0)], 1.0)
    return dataclasses.replace(graph, dur_ns=np.rint(graph.dur_ns * factor).astype(np.int64))


def _standing(circuits: Circuits) -> tuple[tuple[int, int, int], ...]:
    rows = np.flatnonzero(circuits.down_ns == NONE)
    columns = (circuits.plane, circuits.src_port, circuits.dst_port)
    return tuple(zip(*(column[rows].tolist() for column in columns), strict=True))
