"""`-tuned`: any timed scheduler with the slot and phase that suit the workload best."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from scheduler.model.program import TimedProgram
from scheduler.policies.base import Scheduler
from topologies.errors import StalledError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from scheduler.model.problem import Problem
    from scheduler.policies.base import Option

__all__ = ["PHASES", "SLOTS_PER_DELAY", "Tuned"]

SLOTS_PER_DELAY: Final = (1.1, 1.25, 1.5, 2, 3, 5, 10, 20, 50, 100, 200)
PHASES: Final = 4  # equally spaced over the period
_DELAY_IF_NONE_NS: Final = 1_000  # tau = 0 gives no scale
_SKIP: Final = 2


class Tuned(Scheduler):
    """A timed scheduler with the slot and phase that suit the workload best.

    Every combination of `SLOTS_PER_DELAY` times tau and `PHASES` phases is simulated on the
    problem; an option that was given is not varied. The shortest steady iteration wins, the first
    of equal ones. A cycle that is longer than the iterations measured is passed over: it would be
    seen standing still. Budget and seed do not matter.
    """

    def __init__(self, cls: type[Scheduler], options: Mapping[str, Any], spec: str) -> None:
        self.name = f"{cls.name}-tuned"  # type: ignore[misc]  # one class, many names
        self.version = cls.version  # type: ignore[misc]  # likewise
        self.reference = cls.reference  # type: ignore[misc]  # likewise
        self._cls = cls
        self._given = dict(options)
        self._chosen = dict(options)
        self._spec = spec
        known = cls(**options).params
        if not {"slot_ns", "phase_ns"} <= known.keys():
            why = "only timed schedulers have a slot and a phase"
            fix = f"use {cls.name} as it is"
            raise UsageError(f"{cls.name} cannot be tuned", spec, why, fix)

    @property
    def params(self) -> Mapping[str, Option]:
        """The options of the scheduler as given, and after `plan` those it chose."""
        return self._cls(**self._chosen).params

    def plan(self, problem: Problem) -> TimedProgram:
        """Return the best program of the grid; if all are refused, raises as the last one did."""
        from scheduler.dispatch.simulator import iteration_ends

        best: tuple[int, TimedProgram, dict[str, Any]] | None = None
        refusal: UsageError | StalledError | None = None
        for options in self._grid(problem):
            try:
                program = self._timed(options, problem)
                ends = iteration_ends(problem.graph, problem.fabric, program)
            except (UsageError, StalledError) as error:
                refusal = error
                continue
            value = int(ends[-1] - ends[_SKIP - 1])
            if best is not None and program.period_ns > value:
                continue
            if best is None or value < best[0]:
                best = (value, program, options)
        if best is None:
            assert refusal is not None  # the grid is not empty
            raise refusal
        self._chosen = best[2]
        return best[1]

    def _grid(self, problem: Problem) -> Iterator[dict[str, Any]]:
        delay_ns = max((p.delay_ns for p in problem.fabric.planes if p.kind == "ocs"), default=0)
        unit_ns = delay_ns or _DELAY_IF_NONE_NS
        slots = [max(int(share * unit_ns), delay_ns + 1) for share in SLOTS_PER_DELAY]
        if (given := self._given.get("slot_ns")) is not None:
            slots = [given]
        for slot_ns in slots:
            options = {**self._given, "slot_ns": slot_ns}
            if "phase_ns" in self._given:
                yield options
                continue
            period_ns = self._timed(options, problem).period_ns
            for k in range(PHASES):
                yield {**options, "phase_ns": k * period_ns // PHASES}

    def _timed(self, options: Mapping[str, Any], problem: Problem) -> TimedProgram:
        program = self._cls(**options).plan(problem)
        if not isinstance(program, TimedProgram):
            why = "it does not plan a timed program"
            raise UsageError(f"{self._cls.name} cannot be tuned", self._spec, why, "omit -tuned")
        return program
