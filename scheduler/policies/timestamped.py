"""Flux's own plan, by the clock: the circuits at the times that were planned, come what may."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from scheduler.model.program import Slot, TimedProgram
from scheduler.model.timeline import NONE
from scheduler.policies.base import Planner
from scheduler.policies.flux import Flux
from topologies.errors import UsageError

if TYPE_CHECKING:
    from scheduler.model.problem import Problem
    from scheduler.model.timeline import Timeline
    from topologies.fabric import Plane

__all__ = ["FluxTimestamped", "by_the_clock"]

_ITERATIONS: Final = 12  # as many as `simulate` executes by default


class FluxTimestamped(Planner):
    """Flux's plan replayed by the clock: circuits change when planned, whatever happens.

    What a controller does that hears of no event: it shows what order without times is worth where
    computations take longer or shorter than planned. A message that misses its circuit waits for
    the next one of its pair. `iterations` are planned by the clock; then they come round again.
    """

    name: ClassVar[str] = "flux-timestamped"

    def __init__(self, iterations: int = _ITERATIONS) -> None:
        if iterations < 1:
            why = "one iteration at least is planned"
            fix = f"write iterations={_ITERATIONS}"
            raise UsageError(f"iterations={iterations}", self.name, why, fix)
        self.iterations = iterations

    def plan(self, problem: Problem) -> TimedProgram:
        """Plan with Flux, simulate undisturbed, and keep the times; raises `UsageError` as Flux."""
        from scheduler.dispatch.simulator import simulate

        program = Flux().plan(problem)
        timeline = simulate(
            problem.graph.planned(),
            problem.fabric,
            program,
            iterations=self.iterations,
            lookahead_ns=problem.lookahead_ns,
        )
        return by_the_clock(timeline, problem.fabric.planes)


def by_the_clock(timeline: Timeline, planes: tuple[Plane, ...]) -> TimedProgram:
    """Return the circuits of an execution, from time zero to its end, as a cycle.

    A slot begins wherever a circuit is made or torn down, and only the ports that change are dark.
    """
    period_ns = max(int(timeline.iteration_ends_ns[-1]), 1)
    return TimedProgram(
        period_ns=period_ns,
        planes=tuple(
            _slots(timeline, k, plane, period_ns) if plane.kind == "ocs" else ()
            for k, plane in enumerate(planes)
        ),
        partial=True,
    )


def _slots(timeline: Timeline, number: int, plane: Plane, period_ns: int) -> tuple[Slot, ...]:
    rows = timeline.circuits
    mine = (rows.plane == number).nonzero()[0]
    stays = [
        (max(int(rows.dark_ns[row]), 0), int(rows.down_ns[row]), int(row))  # NONE: stood at 0
        for row in mine
    ]
    times = {0}
    for from_ns, to_ns, _ in stays:
        times |= {time for time in (from_ns, to_ns) if 0 <= time < period_ns}
    slots: list[Slot] = []
    for time in sorted(times):
        to = [-1] * plane.ports
        for from_ns, to_ns, row in stays:
            if from_ns <= time and (to_ns == NONE or time < to_ns):
                src, dst = int(rows.src_port[row]), int(rows.dst_port[row])
                to[src] = dst
                if plane.duplex:
                    to[dst] = src
        if not slots or slots[-1].dst_ports != tuple(to):
            slots.append(Slot(time, tuple(to)))
    return tuple(slots)
