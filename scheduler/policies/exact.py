"""flux-exact: the best ordered program there is, by constraint programming (extra `exact`).

Flux's own plan comes first, as a hint, with the bound that its phases gave. Then the symmetric
schedules are searched (`fold`), where ranks are alike. Bounds come from a few nodes at a time,
other nodes' ports left out, and at last the whole model is solved with what is known of both sides.
See `cyclic_model` for the model.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import time
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from scheduler.bounds import lower_bound_ns
from scheduler.model.program import Proof
from scheduler.policies._kernels_warm_up import compile_kernels
from scheduler.policies.base import Planner
from scheduler.policies.flux import Search
from scheduler.policies.workbench import Workbench
from topologies.errors import MachineError, UsageError

if TYPE_CHECKING:
    from scheduler.model.problem import Problem
    from scheduler.model.program import OrderedProgram, Status
    from scheduler.model.taskgraph import Int64s
    from scheduler.policies.cyclic_model import Answer, CyclicModel, Way

__all__ = ["FluxExact"]

_LARGEST: Final = 4_000  # tasks: the model has a term for every two messages that share a node
_SHARE: Final = {"fold": 0.2, "nodes": 0.6}  # of the time left, for each step before the last
_LEAST_WORK_S: Final = 1e-3
_SETS: Final = 4  # nodes to begin a set of one at, half as many for two, and so on


class FluxExact(Planner):
    """The best ordered program, proven where time allows (CP-SAT; needs `fluxbed[exact]`).

    Stops after `time_ns` in all; where `repeatable`, that is no time but the work that the solver
    counts (about a second of a fast processor each second), so that the same seed and `workers`,
    CP-SAT's threads, give the same plan on every machine with the same version of OR-tools. `fold`
    also searches schedules in which ranks that are alike do alike, `warm` begins with Flux's plan.
    """

    name: ClassVar[str] = "flux-exact"

    def __init__(
        self,
        *,
        time_ns: int = 60_000_000_000,
        workers: int = 1,
        fold: bool = True,
        warm: bool = True,
        repeatable: bool = False,
    ) -> None:
        if time_ns <= 0 or workers < 1:
            what, why = f"time={time_ns}ns,workers={workers}", "a solver needs time and a thread"
            raise UsageError(what, self.name, why, "give time > 0 and workers >= 1")
        self.time_ns = time_ns
        self.workers = workers
        self.fold = fold
        self.warm = warm
        self.repeatable = repeatable

    def plan(self, problem: Problem) -> OrderedProgram:
        """Return the best program found, with its `proof`.

        Raises `MachineError` without OR-tools; `UsageError` where a plane is all-stop or switches
        packets, which the model does not cover, or where the workload is too large for it.
        """
        _check(problem)
        compile_kernels()
        return _Solve(self, problem).run()


def _check(problem: Problem) -> None:
    if importlib.util.find_spec("ortools") is None:
        what, why = "flux-exact cannot be used", "OR-tools is not installed"
        raise MachineError(what, "this Python", why, "pip install fluxbed[exact]")
    name = problem.fabric.name or "fabric"
    for k, plane in enumerate(problem.fabric.planes):
        if plane.kind == "eps" or plane.all_stop:
            kind = "switches packets" if plane.kind == "eps" else "is all-stop"
            why = f"plane {k} {kind}, which its model does not cover"
            raise UsageError("flux-exact cannot plan", name, why, "use flux there")
    if problem.graph.tasks > _LARGEST:
        why = f"{problem.graph.tasks} tasks are more than the {_LARGEST} it can hold"
        raise UsageError("flux-exact cannot plan", name, why, "use flux, or a smaller workload")


class _Solve:
    """One run: the candidates, the best bound so far, and the time that is left."""

    def __init__(self, options: FluxExact, problem: Problem) -> None:
        self.options, self.problem = options, problem
        self.worked_s = 0.0
        self.deadline_s = self.now_s() + options.time_ns / 1e9
        if options.warm:
            search = Search(problem)
            search.seed()
            search.phase()
            search.anneal()
            search.phase()
            self.bench, known_ns = search.bench, search.bound_ns
        else:
            self.bench, known_ns = Workbench(problem), 0.0
        self.update()
        least_ns = lower_bound_ns(problem.graph, problem.fabric).value_ns
        self.bound_ns = math.ceil(max(least_ns, known_ns))

    def update(self) -> None:
        """Take the best candidate, and its period in the long run, rounded up."""
        self.best = self.bench.best()
        self.best_ns = math.ceil(self.bench.ranked[0].value_ns)

    def now_s(self) -> float:
        """Return the time, or the solver's work so far where that is what counts."""
        return self.worked_s if self.options.repeatable else time.monotonic()

    def left_s(self) -> float:
        return self.deadline_s - self.now_s()

    def ask(self, model: CyclicModel, limit_s: float) -> Answer:
        """Let the solver work on a model."""
        answer = model.solve(
            limit_s=limit_s,
            workers=self.options.workers,
            seed=self.problem.seed,
            repeatable=self.options.repeatable,
        )
        # What is over at once counts too, or a search for nothing would never end.
        self.worked_s += max(answer.work_s, _LEAST_WORK_S)
        return answer

    def open(self) -> bool:
        """Say whether there is something to find or to prove, and time for it."""
        return self.best_ns > self.bound_ns and self.left_s() > 0

    def run(self) -> OrderedProgram:
        graph = self.problem.graph
        if self.open() and self.options.fold:
            from scheduler.policies.folding import fold

            duplex = any(plane.duplex for plane in self.problem.fabric.planes)
            classes = fold(graph, duplex=duplex)
            if int(classes.max(initial=0)) + 1 < graph.tasks:
                self.solve(_SHARE["fold"] * self.left_s(), classes=classes)
        self.relax()
        if self.open():
            answer = self.solve(self.left_s())
            self.bound_ns = max(self.bound_ns, answer.bound_ns)
        status: Status = "optimal" if self.best_ns <= self.bound_ns else "feasible"
        return dataclasses.replace(
            self.best, proof=Proof(status=status, lower_bound_ns=min(self.bound_ns, self.best_ns))
        )

    def relax(self) -> None:
        """Bound by the ports of one node, of two, of four and so on, those of all left out.

        Each set begins with another of the nodes that carry most and grows by the one that talks
        most with it.
        """
        until_s = self.now_s() + _SHARE["nodes"] * self.left_s()
        traffic = np.zeros((self.problem.graph.nodes,) * 2)
        graph, messages = self.problem.graph, self.problem.graph.messages
        np.add.at(traffic, (graph.src[messages], graph.dst[messages]), graph.size_bytes[messages])
        traffic += traffic.T
        heaviest = np.argsort(-traffic.sum(axis=1), kind="stable").tolist()
        size = 1
        while size < graph.nodes:
            for begin in heaviest[: max(_SETS // size, 1)]:
                left_s = until_s - self.now_s()
                if left_s <= 0 or not self.open():
                    return
                nodes = [begin]
                while len(nodes) < size:
                    pull = traffic[nodes].sum(axis=0)
                    pull[nodes] = -1
                    nodes.append(int(np.argmax(pull)))
                # One that takes long is not worth all the time: the next may do better.
                answer = self.ask(self.model(nodes=nodes), left_s / 3)
                self.bound_ns = max(self.bound_ns, answer.bound_ns)
            size *= 2

    def model(
        self, *, classes: Int64s | None = None, nodes: list[int] | None = None
    ) -> CyclicModel:
        from scheduler.policies.cyclic_model import CyclicModel

        return CyclicModel(
            self.problem.graph,
            self.bench.instance,
            least_ns=self.bound_ns,
            most_ns=self.best_ns,
            classes=classes,
            nodes=nodes,
        )

    def solve(self, limit_s: float, *, classes: Int64s | None = None) -> Answer:
        """Search the whole or the folded model, and note what is found as a candidate."""
        began_s = self.now_s()
        model = self.model(classes=classes)
        if classes is None:
            self.bench.add(self.bench.ranked[0].wish)  # builds it again, for its times
            schedule = self.bench.schedule
            model.hint(schedule.start, self._ways_taken())
        answer = self.ask(model, max(limit_s - (self.now_s() - began_s), 0.05))
        if answer.start_ns is not None:
            wish = self.bench.wish(key=answer.start_ns)
            for message, way in answer.way.items():
                wish.plane[message], wish.out_port[message], wish.in_port[message] = way
            self.bench.add(wish)
            self.update()
        return answer

    def _ways_taken(self) -> dict[int, Way]:
        from scheduler.policies.cyclic_model import Way

        schedule = self.bench.schedule
        return {
            m: Way(int(schedule.plane[m]), int(schedule.out_port[m]), int(schedule.in_port[m]))
            for m in self.bench.messages.tolist()
        }
