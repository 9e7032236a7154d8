"""The cyclic schedule as a constraint program: CP-SAT finds the best period and proves it.

Every task starts at s + i*T in iteration i; T, the period, is minimised. Each message takes one way
(plane, output port, input port). Two messages that meet at a port are in some order there, apart by
the port's delay unless their circuit is the same; pairs suffice, since delays obey the triangle
inequality. Across the wrap every message of an iteration comes after every message of the one
before at its ports. So a port that is idle while others compute changes its circuit for free, and
reuse costs nothing: neither needs a variable.

The period is whole nanoseconds, starts too: where the best period is a fraction the model finds it
rounded up.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from scheduler.policies._kernels_flux import DUPLEX, NEVER

if TYPE_CHECKING:
    from collections.abc import Collection

    from scheduler.model.taskgraph import Int64s, TaskGraph
    from scheduler.policies._kernels_flux import Instance

SAME: Final = 1  # two messages that meet: over the same circuit,
OTHER: Final = 2  # or over different ones

_NO_PATH: Final = -(1 << 58)

__all__ = ["Answer", "CyclicModel", "Way", "ways_of"]


class Way(NamedTuple):
    """Where a message can go; ports are numbered over all planes."""

    plane: int
    out_port: int
    in_port: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What the solver said: its status, a bound on the period, and the best schedule it found.

    `start_ns` (tasks,; of messages) and `way` are None and empty where it found none. `work_s` is
    what the solver did, in its own unit: about a second of a fast processor, and no clock.
    """

    status: str
    bound_ns: int
    period_ns: int | None
    start_ns: Int64s | None
    way: dict[int, Way]
    work_s: float


def ways_of(instance: Instance, message: int) -> list[Way]:
    """List all ways of `message`."""
    found = []
    for k in range(len(instance.mode)):
        if instance.wire_ns[k, message] == NEVER:
            continue
        rows = (k * instance.nodes + int(end[message]) for end in (instance.src, instance.dst))
        outs, ins = (instance.port[instance.port_ptr[r] : instance.port_ptr[r + 1]] for r in rows)
        found += [Way(k, a, b) for a in outs.tolist() for b in ins.tolist()]
    return found


class CyclicModel:
    """A model of `instance`.

    `classes` (tasks,) makes the tasks of a class start together and their messages take the same
    plane: fewer variables, and the best symmetric schedule. `nodes` are those whose ports count;
    leaving some out relaxes the model, so its bound is one of the whole. Only messages at ports
    that count have a start; what lies between them is contracted into the arcs that join them.
    """

    def __init__(
        self,
        graph: TaskGraph,
        instance: Instance,
        *,
        least_ns: int,
        most_ns: int,
        classes: Int64s | None = None,
        nodes: Collection[int] | None = None,
    ) -> None:
        from ortools.sat.python import cp_model

        self._graph, self._instance = graph, instance
        self._solver = cp_model
        self._model = cp_model.CpModel()
        self._class = np.arange(graph.tasks, dtype=np.int64) if classes is None else classes
        self._nodes = range(graph.nodes) if nodes is None else nodes
        touched = np.isin(graph.src[graph.messages], list(self._nodes))
        touched |= np.isin(graph.dst[graph.messages], list(self._nodes))
        self._kept = graph.messages[touched]
        self._first: dict[int, int] = {}  # the first message of each class stands for it
        for task in self._kept.tolist():
            self._first.setdefault(int(self._class[task]), task)
        rows = np.repeat(np.arange(len(instance.port_ptr) - 1), np.diff(instance.port_ptr))
        self._node = np.empty(len(rows), np.int64)
        self._node[instance.port] = rows % instance.nodes
        self._period = self._model.new_int_var(least_ns, most_ns, "period")
        self._ways = {task: ways_of(instance, task) for task in self._first.values()}
        self._add_starts()
        self._add_choices()
        self._add_dependencies()
        self._add_conflicts()
        self._add_loads()
        self._model.minimize(self._period)

    def _at(self, task: int) -> int:
        return self._first[int(self._class[task])]

    def _add_starts(self) -> None:
        """One start for each class of messages, counted from that of the first message."""
        instance = self._instance
        around_ns = instance.latency_ns + abs(instance.known_ns) + instance.heard_ns
        around_ns += int(instance.delay_ns.max())
        span_ns = int(self._graph.dur_ns.sum()) + sum(
            max(int(instance.wire_ns[w.plane, t]) for w in ways) + around_ns
            for t, ways in self._ways.items()
        )
        root = next(iter(self._ways))
        self._start = {
            t: self._model.new_int_var(*((0, 0) if t == root else (-span_ns, span_ns)), "")
            for t in self._ways
        }

    def _add_choices(self) -> None:
        """One way each."""
        model, instance = self._model, self._instance
        self._takes: dict[int, dict[Way, Any]] = {}
        self._wire: dict[int, Any] = {}
        for task, ways in self._ways.items():
            times = [int(instance.wire_ns[w.plane, task]) for w in ways]
            if len(ways) == 1:
                self._takes[task] = {ways[0]: 1}
                self._wire[task] = times[0]
                continue
            literals = [model.new_bool_var("") for _ in ways]
            model.add_exactly_one(literals)
            self._takes[task] = dict(zip(ways, literals, strict=True))
            self._wire[task] = (
                times[0] if len(set(times)) == 1
                else sum(x * time for x, time in zip(literals, times, strict=True))
            )  # fmt: skip

    def _add_dependencies(self) -> None:
        weights: dict[tuple[int, int, int], int] = {}
        for a, b, d, weight in contract(self._graph, self._instance, self._kept):
            key = self._at(a), self._at(b), d
            weights[key] = max(weights.get(key, 0), weight)
        for (a, b, d), weight in weights.items():
            length = self._wire[a] + self._instance.latency_ns + weight
            if a == b:
                self._model.add(d * self._period >= length)
            else:
                self._model.add(self._start[b] + d * self._period >= self._start[a] + length)

    def _add_conflicts(self) -> None:
        """Order every two messages that meet at a port that counts."""
        after = _reach(self._graph)
        pairs: dict[tuple[int, int], set[tuple[int, int]]] = {}
        counted = set(self._nodes)
        for node in sorted(counted):
            touching = [
                t for t in self._kept.tolist()
                if node in (self._instance.src[t], self._instance.dst[t])
            ]  # fmt: skip
            for i, j in combinations(touching, 2):
                a, b = self._at(i), self._at(j)
                pairs.setdefault((min(a, b), max(a, b)), set()).add((i, j) if a < b else (j, i))
        for (a, b), members in pairs.items():
            if a != b:
                given = int(any(after[i, j] for i, j in members))
                given = given or -int(any(after[j, i] for i, j in members))
                self._separate(a, b, self._meetings(a, b, members, counted), given)

    def _meetings(
        self, a: int, b: int, members: set[tuple[int, int]], counted: set[int]
    ) -> dict[tuple[Way, Way], int]:
        """Return for each pair of ways that meet whether the circuit is the SAME or OTHER."""
        instance = self._instance
        found: dict[tuple[Way, Way], int] = {}
        for i, j in members:
            same_i = ways_of(instance, i) if i != a else self._ways[a]
            same_j = ways_of(instance, j) if j != b else self._ways[b]
            for w, x in zip(self._ways[a], same_i, strict=True):
                if w not in self._takes[a]:
                    continue
                for y, z in zip(self._ways[b], same_j, strict=True):
                    if y in self._takes[b] and w.plane == y.plane:
                        kind = self._kind(x, z, counted)
                        found[w, y] = max(found.get((w, y), 0), kind)
        return {ways: kind for ways, kind in found.items() if kind}

    def _kind(self, one: Way, other: Way, counted: set[int]) -> int:
        """Return SAME or OTHER where two ways of one plane meet, else 0."""
        if one == other:
            return SAME
        duplex = bool(self._instance.mode[one.plane] & DUPLEX)
        if duplex and (one.out_port, one.in_port) == (other.in_port, other.out_port):
            return 0
        outs, ins = {one.out_port} & {other.out_port}, {one.in_port} & {other.in_port}
        shared = outs | ins
        if duplex:
            shared = {one.out_port, one.in_port} & {other.out_port, other.in_port}
        return OTHER if any(self._node[port] in counted for port in shared) else 0

    def _separate(self, a: int, b: int, meetings: dict[tuple[Way, Way], int], given: int) -> None:
        """Keep a and b apart where they meet; `given` is 1 if a comes first anyway, -1 if b."""
        model = self._model
        order = model.new_bool_var("") if meetings and given == 0 else None
        for (w, y), kind in meetings.items():
            both = [x for x in (self._takes[a][w], self._takes[b][y]) if not isinstance(x, int)]
            for first, second, sign in ((a, b, 1), (b, a, -1)):
                gap_ns = self._gap_ns(first, w.plane, kind)
                later = self._start[second] - self._start[first]
                model.add(later + self._period >= gap_ns).only_enforce_if(both)
                if order is not None:
                    literal = order if sign == 1 else ~order
                    model.add(later >= gap_ns).only_enforce_if([*both, literal])
                elif given == sign:
                    model.add(later >= gap_ns).only_enforce_if(both)

    def _gap_ns(self, message: int, plane: int, kind: int) -> int:
        """Return the least time from a message's start to the next one's at its port."""
        instance = self._instance
        wire_ns = int(instance.wire_ns[plane, message])
        if kind == SAME:
            return wire_ns
        known_ns = max(wire_ns + instance.known_ns, instance.heard_ns)
        return known_ns + int(instance.delay_ns[plane])

    def _add_loads(self) -> None:
        """The period is no shorter than what a port carries and the changes it cannot avoid."""
        model, instance = self._model, self._instance
        load: dict[int, list[Any]] = {}
        served: dict[int, dict[int, list[Any]]] = {}
        for task in self._kept.tolist():
            first = self._at(task)
            own = ways_of(instance, task)
            for way, same in zip(self._ways[first], own, strict=True):
                if (x := self._takes[first].get(way)) is None:
                    continue
                wire = int(instance.wire_ns[way.plane, first])
                duplex = bool(instance.mode[way.plane] & DUPLEX)
                for port, far in (
                    (2 * same.out_port, same.in_port), (2 * same.in_port + 1, same.out_port)
                ):  # fmt: skip
                    if self._node[port // 2] in self._nodes:
                        load.setdefault(port, []).append(x * wire)
                        side = port if not duplex else port & ~1
                        served.setdefault(side, {}).setdefault(far, []).append(x)
        for port, parts in load.items():
            changes_ns = self._changes_ns(port // 2, served.get(port, {}))
            model.add(self._period >= sum(parts) + changes_ns)

    def _changes_ns(self, port: int, served: dict[int, list[Any]]) -> Any:  # noqa: ANN401 (linear)
        """Return how long a port is dark that changes between all it serves, if more than one."""
        if len(served) <= 1:
            return 0
        model, instance = self._model, self._instance
        serves = []
        for literals in served.values():
            serves.append(model.new_bool_var(""))
            for x in literals:
                model.add_implication(True if isinstance(x, int) else x, serves[-1])
        alone = model.new_bool_var("")
        model.add(sum(serves) <= 1).only_enforce_if(alone)
        plane = int(np.searchsorted(instance.port_base, port, side="right")) - 1
        delay_ns = int(instance.delay_ns[plane]) + min(instance.known_ns, 0)
        return delay_ns * (sum(serves) - alone)

    def hint(self, start_ns: Int64s, way: dict[int, Way]) -> None:
        """Begin the search at a schedule."""
        base_ns = int(start_ns[next(iter(self._start))])
        for task, variable in self._start.items():
            self._model.add_hint(variable, int(start_ns[task]) - base_ns)
        for task, literals in self._takes.items():
            for w, x in literals.items():
                if not isinstance(x, int):
                    self._model.add_hint(x, int(way.get(task) == w))

    def solve(self, *, limit_s: float, workers: int, seed: int, repeatable: bool = False) -> Answer:
        """Solve within `limit_s`, which are seconds, or the solver's unit of work if `repeatable`.

        Then the same seed and number of workers give the same answer on every machine.
        """
        solver = self._solver.CpSolver()
        if repeatable:
            solver.parameters.max_deterministic_time = limit_s
            solver.parameters.interleave_search = workers > 1  # else they race one another
        else:
            solver.parameters.max_time_in_seconds = limit_s
        solver.parameters.num_workers = workers
        solver.parameters.random_seed = seed
        status = solver.solve(self._model)
        name = solver.status_name(status).lower()
        bound_ns = int(np.ceil(solver.best_objective_bound - 1e-6))
        work_s = float(solver.response_proto.deterministic_time)
        if name not in {"optimal", "feasible"}:
            return Answer(name, bound_ns, None, None, {}, work_s)
        start = np.zeros(self._graph.tasks, np.int64)
        way = {}
        for task in self._kept.tolist():
            first = self._at(task)
            start[task] = solver.value(self._start[first])
            own = ways_of(self._instance, task)
            for w, same in zip(self._ways[first], own, strict=True):
                x = self._takes[first].get(w, 0)
                if x if isinstance(x, int) else solver.value(x):
                    way[task] = same
        return Answer(name, bound_ns, round(solver.objective_value), start, way, work_s)


def contract(graph: TaskGraph, instance: Instance, kept: Int64s) -> list[tuple[int, int, int, int]]:
    """Return arcs (u, v, wraps, ns) between messages of `kept`: v starts that long after u ended.

    Each is the longest path between them through other tasks over so many wraps, 0 to 2; messages
    among those last what they last on their fastest plane. Paths that others imply are left out.
    """
    wraps, count = 3, len(kept)
    length = graph.dur_ns.copy()
    messages = graph.messages
    length[messages] = instance.wire_ns[:, messages].min(axis=0) + instance.latency_ns
    place = np.full(graph.tasks, -1)
    place[kept] = np.arange(count)
    path = np.full((wraps, graph.tasks, count), _NO_PATH, np.int64)
    pointer, pred, distance = instance.pred_ptr, instance.pred, instance.pred_distance
    order = graph.topological_order().tolist()
    for wrap in range(wraps):
        for task in order:
            row = path[wrap, task]
            for k in range(pointer[task], pointer[task + 1]):
                before, left = pred[k], wrap - distance[k]
                if place[before] < 0:
                    if left >= 0:
                        np.maximum(row, path[left, before] + length[before], out=row)
                elif left == 0:
                    row[place[before]] = max(row[place[before]], 0)
    return _needed(kept, path[:, kept].transpose(0, 2, 1), length[kept][:, None])


def _needed(kept: Int64s, path: Int64s, least_ns: Int64s) -> list[tuple[int, int, int, int]]:
    """Return the paths, (wraps, from, to), that no two others imply."""
    found: list[tuple[int, int, int, int]] = []
    for wrap in range(len(path)):
        implied = np.full(path.shape[1:], _NO_PATH, np.int64)
        for first in range(wrap + 1):
            for middle in range(len(kept)):
                front = path[first, :, middle, None] + least_ns[middle]
                np.maximum(implied, front + path[wrap - first, middle], out=implied)
        for u, v in np.argwhere((path[wrap] >= 0) & (path[wrap] > implied)).tolist():
            found.append((int(kept[u]), int(kept[v]), wrap, int(path[wrap, u, v])))
    return found


def _reach(graph: TaskGraph) -> Any:  # noqa: ANN401 (a matrix of booleans)
    """Return which task comes before which within an iteration, shape (tasks, tasks)."""
    after = np.zeros((graph.tasks, graph.tasks), bool)
    arcs = graph.arcs
    inside = arcs.distance == 0
    order = graph.topological_order()
    place = np.empty(graph.tasks, np.int64)
    place[order] = np.arange(graph.tasks)
    before, behind = arcs.before[inside], arcs.after[inside]
    for k in np.argsort(-place[before], kind="stable"):
        after[before[k]] |= after[behind[k]]
        after[before[k], behind[k]] = True
    return after
