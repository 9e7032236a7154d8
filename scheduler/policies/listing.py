"""List scheduling as a base class: one iteration played on paper, a message at a time.

A serial schedule-generation scheme (Kolisch, EJOR 90, 1996): of the messages that are ready, the
one that became ready first is given ports for good, then the next. The order in which every port
is used is the program; a subclass says which ports, and which message comes first.

>>> class Latest(ListPlanner):
...     '''Whatever else, the last plane.'''
...     name = "latest"
...     def choose(self, choices):
...         return max(choices, key=lambda choice: choice.plane)
>>> Latest().describe()
'Whatever else, the last plane.'
"""

from __future__ import annotations

from collections import defaultdict
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from scheduler.model.program import Entry, OrderedProgram
from scheduler.model.taskgraph import csr
from scheduler.policies.base import Planner
from scheduler.policies.ordered import first_circuits
from topologies.errors import UsageError
from topologies.fabric import Circuit

if TYPE_CHECKING:
    from scheduler.model.problem import Problem
    from scheduler.model.taskgraph import Int64s
    from topologies.fabric import Fabric, Plane, Port

__all__ = ["Choice", "ListPlanner"]


class Choice(NamedTuple):
    """A way for `message`: its ports, the earliest start, and whether the circuit stands by then.

    Where it stands (always so on a packet plane) nothing is dark for it.
    """

    start_ns: int
    end_ns: int
    plane: int
    src_port: int
    dst_port: int
    stands: bool
    message: int


class ListPlanner(Planner):
    """A planner that decides message by message; subclasses override `choose` and `urgency`.

    O(messages x (log messages + pairs of ports)), in plain Python. Raises `UsageError` for a
    message that no plane can carry, and for what is no choice or no urgency.
    """

    def choose(self, choices: list[Choice]) -> Choice:
        """Return one of the ways of a message, all of them given: here the one that starts first.

        There is one for every pair of ports of its nodes, planes ascending.
        """
        return min(choices)

    def urgency(self, problem: Problem) -> Int64s:
        """Return a number per task, (tasks,): of those ready at one time, larger ones come first.

        Here equal for all, so that ids decide.
        """
        return np.zeros(problem.graph.tasks, np.int64)

    def _ranks(self, problem: Problem) -> list[float]:
        """Return what `urgency` said, the most urgent lowest."""
        said = np.asarray(self.urgency(problem))
        if said.shape != (problem.graph.tasks,) or said.dtype.kind not in "iuf":
            what = f"urgency returned {said.dtype} of shape {said.shape}"
            why = f"it must be numbers of shape ({problem.graph.tasks},), one per task"
            raise UsageError(what, self.name, why, "return an array like np.zeros(tasks)")
        return [-number for number in said.tolist()]

    def plan(self, problem: Problem) -> OrderedProgram:
        """Play one iteration and return the order in which it used the ports."""
        graph, fabric = problem.graph, problem.fabric
        inside = graph.arcs.distance == 0
        before, after = graph.arcs.before[inside], graph.arcs.after[inside]
        pointer, successor = (a.tolist() for a in csr(before, after, graph.tasks))
        waits = np.bincount(after, minlength=graph.tasks).tolist()
        rank = self._ranks(problem)
        message = set(graph.messages.tolist())
        ready_ns = [0] * graph.tasks
        paper = _Paper(fabric)
        todo = [(0, rank[task], task) for task in range(graph.tasks) if waits[task] == 0]
        todo.sort()
        while todo:
            now_ns, _, task = heappop(todo)
            end_ns = now_ns + int(graph.dur_ns[task])
            if task in message:
                ends, size = (int(graph.src[task]), int(graph.dst[task])), graph.size_bytes[task]
                choices = paper.choices(task, *ends, int(size), now_ns)
                if not choices:
                    what = f"message {task} from node {ends[0]} to node {ends[1]} has no way"
                    why = "no plane has a port of both"
                    raise UsageError(what, self.name, why, "use a topology that joins them")
                chosen = self.choose(choices)
                if chosen not in choices:
                    what, why = f"choose returned {chosen!r}", "it must be one of the choices given"
                    raise UsageError(what, self.name, why, "return an element of its argument")
                end_ns = paper.write(chosen) + fabric.latency_ns
            for follower in successor[pointer[task] : pointer[task + 1]]:
                ready_ns[follower] = max(ready_ns[follower], end_ns)
                waits[follower] -= 1
                if waits[follower] == 0:
                    heappush(todo, (ready_ns[follower], rank[follower], follower))
        return paper.program()


class _Paper:
    """What has been decided: when every port is free, and the circuit it was last used for."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.entries: list[list[Entry]] = [[] for _ in fabric.planes]
        self._free_ns: dict[tuple[int, Port], int] = defaultdict(int)
        self._holds: dict[tuple[int, Port], frozenset[Port]] = {}
        self._ports = [
            [fabric.ports_of(k, node) for node in range(fabric.nodes)]
            for k in range(len(fabric.planes))
        ]

    def choices(
        self, message: int, src: int, dst: int, size_bytes: int, now_ns: int
    ) -> list[Choice]:
        """List the ways of a message that is ready at `now_ns`."""
        found = []
        for k, plane in enumerate(self.fabric.planes):
            wire_ns = plane.transfer_ns(size_bytes)
            for a in self._ports[k][src]:
                for b in self._ports[k][dst]:
                    uses = plane.uses(Circuit(a, b))
                    held = _held(plane, uses)
                    stands = plane.kind == "eps" or all(
                        self._holds.get((k, port), uses) == uses for port in held
                    )  # a port not used yet is as it is wanted: circuits may stand at time 0
                    free_ns = max(self._free_ns[k, port] for port in held)
                    if not stands:
                        free_ns += self.fabric.control_ns + plane.delay_ns
                    start_ns = max(now_ns, free_ns)
                    found.append(Choice(start_ns, start_ns + wire_ns, k, a, b, stands, message))
        return found

    def write(self, choice: Choice) -> int:
        """Decide for `choice`; returns when the last bit has left."""
        k, a, b = choice.plane, choice.src_port, choice.dst_port
        plane = self.fabric.planes[k]
        uses = plane.uses(Circuit(a, b))
        for port in _held(plane, uses):
            self._free_ns[k, port] = choice.end_ns
            self._holds[k, port] = uses
        self.entries[k].append(Entry(a, b, (choice.message,)))
        return choice.end_ns

    def program(self) -> OrderedProgram:
        """Return what was written; circuits that come first at both their ports stand at time 0."""
        program = OrderedProgram.from_entries(self.entries)
        columns = np.stack([program.plane, program.src_port, program.dst_port])
        first = first_circuits(self.fabric, columns, program.matching)
        return OrderedProgram.from_entries(self.entries, first)


def _held(plane: Plane, uses: frozenset[Port]) -> frozenset[Port]:
    """Return the ports that a circuit of these ports keeps from others."""
    if plane.all_stop and plane.kind == "ocs":
        return frozenset({("out", -1)})  # the whole plane
    return uses
