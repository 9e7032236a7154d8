"""The best ordered program by CP-SAT: an oracle for small workloads (needs ortools)."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from scheduler.model.taskgraph import TaskGraph
    from topologies import Fabric

__all__ = ["Optimum", "optimal_period"]


class Optimum(NamedTuple):
    """The shortest period found and a proof that none is shorter than `bound_ns`."""

    period_ns: float
    bound_ns: float
    proven: bool
    wall_s: float


def optimal_period(
    graph: TaskGraph, fabric: Fabric, *, limit_s: float = 20.0, hint_ns: int | None = None
) -> Optimum:
    """Minimise the period of a cyclic schedule: every task at start + i * period in iteration i.

    One port per node and plane, per-port changes, no packet planes, no control or notify delay.
    Two messages that share a port of a plane are ordered, apart by tau unless their circuit is the
    same; across the wrap every message comes after every message of the iteration before.
    """
    from ortools.sat.python import cp_model

    assert all(p.kind == "ocs" and not p.all_stop for p in fabric.planes)
    assert all(p.node_of == tuple(range(fabric.nodes)) for p in fabric.planes)
    assert fabric.control_ns == fabric.notify_ns == fabric.latency_ns == 0
    model = cp_model.CpModel()
    messages = graph.messages.tolist()
    longest = [
        max((p.transfer_ns(int(graph.size_bytes[t])) for p in fabric.planes), default=0)
        if t in set(messages)
        else int(graph.dur_ns[t])
        for t in range(graph.tasks)
    ]
    tau = max(p.delay_ns for p in fabric.planes)
    horizon = hint_ns or sum(longest) + tau * (len(messages) + 1)
    start = [model.new_int_var(0, 2 * horizon, f"s{t}") for t in range(graph.tasks)]
    period = model.new_int_var(0, horizon, "period")
    on: dict[int, list[Any]] = {}
    end: list[Any] = [start[t] + longest[t] for t in range(graph.tasks)]
    for m in messages:
        on[m] = [model.new_bool_var(f"x{m}_{k}") for k in range(len(fabric.planes))]
        model.add_exactly_one(on[m])
        times = [p.transfer_ns(int(graph.size_bytes[m])) for p in fabric.planes]
        end[m] = start[m] + sum(x * time for x, time in zip(on[m], times, strict=True))
    arcs = graph.arcs
    for before, after, distance in zip(arcs.before, arcs.after, arcs.distance, strict=True):
        model.add(start[after] + int(distance) * period >= end[before])
    for k, plane in enumerate(fabric.planes):
        for i, j in combinations(messages, 2):
            pair_i = int(graph.src[i]), int(graph.dst[i])
            pair_j = int(graph.src[j]), int(graph.dst[j])
            if plane.duplex:
                shared = bool(set(pair_i) & set(pair_j))
                same = set(pair_i) == set(pair_j)
                if pair_i == pair_j[::-1]:
                    continue  # both ways at once
            else:
                shared = pair_i[0] == pair_j[0] or pair_i[1] == pair_j[1]
                same = pair_i == pair_j
            if not shared:
                continue
            gap = 0 if same else plane.delay_ns
            order = model.new_bool_var("")
            both = [on[i][k], on[j][k]]
            model.add(start[j] >= end[i] + gap).only_enforce_if([order, *both])
            model.add(start[i] >= end[j] + gap).only_enforce_if([order.negated(), *both])
            model.add(start[i] + period >= end[j] + gap).only_enforce_if(both)
            model.add(start[j] + period >= end[i] + gap).only_enforce_if(both)
        for m in messages:
            model.add(start[m] + period >= end[m])
    model.minimize(period)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit_s
    solver.parameters.num_workers = 2
    solver.parameters.random_seed = 1
    status = solver.solve(model)
    return Optimum(
        solver.objective_value,
        solver.best_objective_bound,
        status == cp_model.OPTIMAL,
        solver.wall_time,
    )
