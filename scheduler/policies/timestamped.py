"""Flux's own plan, by the clock: the circuits at the times that were planned, come what may."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, Final

from scheduler.model.program import Slot, TimedProgram
from scheduler.model.timeline import NONE
from scheduler.policies.base import Planner
from scheduler.policies.flux import Flux

if TYPE_CHECKING:
    from scheduler.model.problem import Problem
    from scheduler.model.taskgraph import Int64s
    from scheduler.model.timeline import Timeline
    from topologies.fabric import Plane

__all__ = ["FluxTimestamped", "by_the_clock"]

_ITERATIONS: Final = 13
_PATTERNS: Final = (1, 2, 3, 4, 6)  # iterations after which a steady state may repeat


class FluxTimestamped(Planner):
    """Flux's plan replayed by the clock: circuits change when planned, whatever happens.

    What a controller does that hears of no event: it shows what order without times is worth where
    computations take longer or shorter than planned. Circuits come round every period, so a message
    that misses its own waits for the next one of the pair.
    """

    name: ClassVar[str] = "flux-timestamped"

    def plan(self, problem: Problem) -> TimedProgram:
        """Plan with Flux, simulate undisturbed, and keep the times; raises `UsageError` as Flux."""
        from scheduler.dispatch.simulator import simulate

        program = Flux().plan(problem)
        timeline = simulate(
            problem.graph.planned(),
            problem.fabric,
            program,
            iterations=_ITERATIONS,
            lookahead_ns=problem.lookahead_ns,
        )
        return by_the_clock(timeline, problem.fabric.planes)


def by_the_clock(timeline: Timeline, planes: tuple[Plane, ...]) -> TimedProgram:
    """Return the cycle of circuits of an execution's last iterations, as many as its pattern has.

    A slot begins wherever a circuit is made or torn down, and only the ports that change are dark.
    Ordered programs settle into a pattern of one or a few iterations; where none shows, the second
    half of the execution is the cycle.
    """
    begin_ns, end_ns = _window(timeline.iteration_ends_ns)
    return TimedProgram(
        period_ns=end_ns - begin_ns,
        phase_ns=begin_ns % (end_ns - begin_ns),
        planes=tuple(
            _slots(timeline, k, plane, begin_ns, end_ns) if plane.kind == "ocs" else ()
            for k, plane in enumerate(planes)
        ),
        partial=True,
    )


def _window(ends_ns: Int64s) -> tuple[int, int]:
    ends = ends_ns.tolist()
    for length in _PATTERNS:
        steps = [b - a for a, b in pairwise(ends[-1 - 2 * length :])]
        if steps[:length] == steps[length:] and sum(steps[length:]) > 0:
            return ends[-1 - length], ends[-1]
    half = len(ends) // 2
    return (ends[half], ends[-1]) if ends[-1] > ends[half] else (ends[-1], ends[-1] + 1)


def _slots(
    timeline: Timeline, number: int, plane: Plane, begin_ns: int, end_ns: int
) -> tuple[Slot, ...]:
    rows = timeline.circuits
    mine = (rows.plane == number).nonzero()[0]
    stays = [
        (max(int(rows.dark_ns[row]), 0), int(rows.down_ns[row]), int(row))  # NONE: stood at 0
        for row in mine
    ]
    times = {begin_ns}
    for from_ns, to_ns, _ in stays:
        times |= {time for time in (from_ns, to_ns) if begin_ns <= time < end_ns}
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
            slots.append(Slot(time - begin_ns, tuple(to)))
    return tuple(slots)
