"""Flux: circuits planned from the whole workload (the scheduler of arXiv 2609.25949, our method).

Objective: the steady-state time of one iteration, circuits carried over from each to the next.
Decisions: the plane of every message and the order of circuits at every port. Method: several
serial schedule-generation schemes (Kolisch, EJOR 90, 1996) make first programs; simulated annealing
over planes and priorities improves the best of them, moving symmetric messages together. See
`_kernels_flux` for the decoder and its complexity. It stops as soon
as a lower bound is reached.

Same arguments, same plan: the budget is spent by a count of work, never by a clock, so a plan does
not depend on what else the machine does. `_WORK_PER_SECOND` is what a slow core gets through.
"""

from __future__ import annotations

import dataclasses
import math
from itertools import cycle
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from scheduler.bounds import lower_bound_ns
from scheduler.model.program import Proof
from scheduler.policies._kernels_warm_up import compile_kernels
from scheduler.policies.base import Planner
from scheduler.policies.lifting import lift, phase_bound
from scheduler.policies.patterns import rotations
from scheduler.policies.workbench import ALL, Rules, Workbench

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scheduler.model.problem import Problem
    from scheduler.model.program import OrderedProgram, Status
    from scheduler.policies._kernels_flux import Wish

__all__ = ["Flux", "Search"]

_WORK_PER_SECOND: Final = 60_000_000  # tasks and arcs gone through, on a slow core,
_WORK_IN_CACHE: Final = 250_000_000  # and where there are no more of them than this:
_CACHED: Final = 20_000
_STEPS_PER_MESSAGE: Final = 80  # of a chain
_ITERATIONS_PER_STEP: Final = 4  # about
_PHASE_WORK_PER_SECOND: Final = 600_000  # of the budget: steps of `scheduler.phases`
_PHASE_SHARE: Final = 0.3  # of the budget, which they take
_CHAINS: Final = (  # which of the best found so far each begins with, and its first temperature
    (0, 0.1), (1, 0.02), (3, 0.1), (2, 0.02), (5, 0.3), (0, 0.02),
)  # fmt: skip


class Flux(Planner):
    """Circuits planned from the whole workload: reused, and changed while others compute.

    Its options leave parts of it out, to see what each is worth: see `Rules`.
    """

    name: ClassVar[str] = "flux"

    def __init__(
        self,
        *,
        reuse: bool = True,
        early: bool = True,
        planes: bool = True,
        search: bool = True,
        cyclic: bool = True,
    ) -> None:
        self.reuse = reuse
        self.early = early
        self.planes = planes
        self.search = search
        self.cyclic = cyclic

    def plan(self, problem: Problem) -> OrderedProgram:
        """Return the best program found within the budget.

        Raises `UsageError` where a message has no way or the tasks wait for each other in a circle.
        """
        compile_kernels()  # once, and not on the clock
        rules = Rules(
            reuse=self.reuse,
            early=self.early,
            planes=self.planes,
            search=self.search,
            cyclic=self.cyclic,
        )
        search = Search(problem, rules=rules)
        search.seed()
        search.phase()
        search.anneal()
        search.phase()
        return search.plan()


class Search:
    """One run of Flux: about `steps` evaluations, by default what the budget allows."""

    def __init__(self, problem: Problem, steps: int | None = None, *, rules: Rules = ALL) -> None:
        from scheduler.policies._kernels_flux_search import PER_EVALUATION

        self.bench = Workbench(problem, rules)
        self.rules = rules
        self.problem = problem
        bound = lower_bound_ns(problem.graph, problem.fabric)
        # Packet planes serve whoever is ready, which the decoder only estimates: no early end.
        exact = all(plane.kind == "ocs" for plane in problem.fabric.planes)
        self.target_ns = bound.value_ns if exact and rules.cyclic else 0.0
        self.bound_ns = 0.0  # what `phase` finds beyond it,
        self.phased_ns = math.inf  # when this was the best
        size = problem.graph.tasks + len(problem.graph.arcs.before)
        rate = _WORK_IN_CACHE if size <= _CACHED else _WORK_PER_SECOND
        iterations = min(_ITERATIONS_PER_STEP, len(self.bench.ends_ns))
        self.per_step = iterations * size + PER_EVALUATION
        self.work = int(problem.budget_s * rate) if steps is None else steps * self.per_step

    def done(self) -> bool:
        """Say whether nothing better can be found, or the budget is used up."""
        return self.bench.ranked[0].value_ns <= self.target_ns or self.work <= 0

    def seed(self) -> None:
        """Make first programs, until one is optimal or the budget is used up."""
        from scheduler.policies._kernels_flux_search import effort

        for wish, bias_ns, lazy in self._ways():
            if self.done():
                return
            self.bench.add(wish, bias_ns, lazy=lazy)
            self.work -= effort(self.bench.instance, self.bench.ends_ns)

    def phase(self) -> None:
        """Bound the period by the ports of a few nodes, and try their best order for all.

        Done before the search, which may then be over, and again if that found something shorter.
        """
        rules, problem, bench = self.rules, self.problem, self.bench
        best_ns, least_ns = bench.ranked[0].value_ns, self.target_ns
        if best_ns <= least_ns or least_ns == 0 or not (rules.search and rules.planes):
            return
        if best_ns >= self.phased_ns:
            return
        self.phased_ns = best_ns
        if not (rules.reuse and rules.early):
            return
        found = phase_bound(
            problem,
            bench.instance,
            least_ns=least_ns,
            most_ns=best_ns,
            work=int(_PHASE_WORK_PER_SECOND * problem.budget_s),
        )
        if found.least_ns > least_ns:
            self.bound_ns = self.target_ns = found.least_ns
        self.work -= int(_PHASE_SHARE * self.work)
        head = bench.head_and_tail[0]
        for order in found.orders:
            bench.add(lift(order, found.classes, bench.messages, bench.wish, head))

    def plan(self) -> OrderedProgram:
        """Return the best program, with the bound on it where that is more than `bounds` knows."""
        best = self.bench.best()
        if self.bound_ns == 0:
            return best
        optimal = self.bench.ranked[0].value_ns <= self.bound_ns
        status: Status = "optimal" if optimal else "feasible"
        return dataclasses.replace(best, proof=Proof(status, self.bound_ns))

    def _ways(self) -> Iterator[tuple[Wish, int, bool]]:
        """Yield ways to build a first program: (wish, cost of a change, earliest first).

        Which messages come first: the one that can start first; the one that could start first if
        ports did not count; the one most work depends on; whole steps one after another. What a
        change of circuit costs beyond its time: nothing, up to twice tau, so that circuits are
        grouped. And one circuit for every pair for good, where the ports suffice.
        """
        bench = self.bench
        head, tail = bench.head_and_tail
        yield bench.wish(key=-tail), 0, True
        if self.rules.planes:
            for wish in bench.standing()[0]:
                yield wish, 0, False
                yield wish, 0, True
            for plane, key in rotations(self.problem.graph, self.problem.fabric, bench.depth):
                yield bench.wish(plane=plane, key=key), 0, False
        tau_ns = int(bench.instance.delay_ns.max())
        for bias_ns in dict.fromkeys((0, tau_ns // 2, tau_ns, 2 * tau_ns)):
            for key, lazy in ((head, False), (-tail, False), (-tail, True), (bench.depth, False)):
                yield bench.wish(key=key), bias_ns, lazy

    def anneal(self) -> None:
        """Improve the best candidates, a chain each, until the steps are used up."""
        from scheduler.policies._kernels_flux_search import copy_wish, search
        from scheduler.policies.blocks import blocks_of, make_blocks

        bench = self.bench
        if not self.rules.search or self.done() or len(bench.messages) == 0:
            return
        levels = blocks_of(self.problem.graph, bench.depth)
        blocks = make_blocks(bench.instance, bench.messages, levels)
        length = _STEPS_PER_MESSAGE * len(bench.messages) * self.per_step
        for chain, (start, hot) in enumerate(cycle(_CHAINS)):
            if self.done():
                return
            ranked = bench.ranked
            best = bench.wish()
            copy_wish(ranked[start % len(ranked)].wish, best)
            rng = np.random.default_rng([self.problem.seed, chain])
            self.work -= search(
                bench.instance, bench.schedule, bench.ports, bench.scratch, blocks, bench.messages,
                bench.wish(), bench.wish(), best, bench.ends_ns,
                self.work if self.work < 2 * length else length,
                hot, self.rules.planes, rng, self.target_ns,
            )  # fmt: skip
            bench.add(best)
