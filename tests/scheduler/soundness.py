"""Everything that holds of any scheduler on any workload, in one function.

`judge` plans, checks the plan, simulates, checks what was recorded, holds it against the lower
bound and against the second replay; it returns what is wrong. A scheduler may refuse a fabric that
it cannot serve, in a sentence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from scheduler.bounds import lower_bound_ns
from scheduler.check import check_plan
from scheduler.check_transfers import check_transfers
from scheduler.dispatch.simulator import simulate
from scheduler.model.problem import Problem
from scheduler.model.program import OrderedProgram, TimedProgram
from scheduler.policies.registry import BUILT_IN, find
from tests.scheduler.instances import random_dag, random_fabric, training
from tests.scheduler.replay import replay
from tests.scheduler.replay_greedy import replay_greedy
from tests.scheduler.replay_parts import TooLongError
from tests.scheduler.replay_prefetch import replay_prefetch
from tests.scheduler.replay_shared import replay_shared
from tests.scheduler.replay_two_hops import replay_two_hops
from topologies import UsageError

if TYPE_CHECKING:
    from scheduler.model.program import Program
    from scheduler.model.taskgraph import TaskGraph
    from scheduler.model.timeline import Timeline
    from tests.scheduler.replay_parts import Replay
    from topologies import Fabric

__all__ = ["SCHEDULERS", "TUNED", "Verdict", "judge", "workload"]

SCHEDULERS = tuple(name for name in BUILT_IN if name != "flux-exact")  # it needs an extra
TUNED = tuple(
    f"{name}-tuned" for name in SCHEDULERS if {"slot_ns", "phase_ns"} <= find(name).params.keys()
)
ITERATIONS = 3
BUDGET_S = 0.01
REACTIVE = {"greedy": replay_greedy, "prefetch": replay_prefetch}


class Verdict(NamedTuple):
    """What is wrong, [] if nothing; whether the plan was refused, or held against a replay."""

    complaints: list[str]
    refused: bool = False
    replayed: bool = False


def workload(seed: int) -> tuple[TaskGraph, Fabric]:
    """Return a random workload, two of three like training, and a random fabric for it."""
    graph = random_dag(seed, tasks=25) if seed % 3 == 2 else training(seed)
    return graph, random_fabric(seed, graph.nodes, plain=seed % 2 == 0)


def judge(spec: str, graph: TaskGraph, fabric: Fabric) -> Verdict:
    """Say what is wrong with a scheduler's plan and its execution; [] if nothing is."""
    scheduler = find(spec)
    fabric = scheduler.fabric_for(fabric)
    try:
        program = scheduler.plan(Problem(graph=graph, fabric=fabric, budget_s=BUDGET_S))
    except UsageError:
        return Verdict([], refused=True)
    found = [str(violation) for violation in check_plan(program, graph, fabric)]
    timeline = simulate(graph, fabric, program, iterations=ITERATIONS)
    moved = check_transfers(graph, fabric, program, timeline, tolerance_ns=0, quantum_bytes=0)
    found += [str(violation) for violation in moved]
    bound = lower_bound_ns(
        graph,
        fabric,
        atomic=not isinstance(program, TimedProgram),
        cyclic=isinstance(program, OrderedProgram),
    )
    end_ns = int(timeline.iteration_ends_ns[-1])
    if end_ns < (ITERATIONS - 1) * bound.value_ns - 1:  # iterations may overlap by one
        found.append(f"{ITERATIONS} iterations end at {end_ns}, one takes {bound.value_ns}")
    other = _replayed(spec, graph, fabric, program)
    if other is not None:
        found += _differences(timeline, other)
    return Verdict(found, replayed=other is not None)


def _replayed(spec: str, graph: TaskGraph, fabric: Fabric, program: Program) -> Replay | None:
    """Execute once more by the second replay; None where plain Python takes ages for it."""
    if isinstance(program, OrderedProgram):
        return replay(graph, fabric, program, iterations=ITERATIONS)
    if not isinstance(program, TimedProgram):
        return REACTIVE[spec](graph, fabric, iterations=ITERATIONS)
    try:
        if program.routing != "direct":
            return replay_two_hops(graph, fabric, program, iterations=ITERATIONS, quantum_bytes=0)
        if any(plane.kind == "eps" for plane in fabric.planes):
            return replay_shared(graph, fabric, program, iterations=ITERATIONS)
        return replay(graph, fabric, program, iterations=ITERATIONS)
    except TooLongError:
        return None


def _differences(timeline: Timeline, other: Replay) -> list[str]:
    """Return where the second replay says another time."""
    return [
        f"{what} of task {task} is {ns} and not {wanted.get(task)}"
        for what, times, wanted in (
            ("ready", timeline.ready_ns, other.ready),
            ("start", timeline.start_ns, other.start),
            ("end", timeline.end_ns, other.end),
        )
        for task, ns in enumerate(times.tolist())
        if wanted.get(task) != ns
    ][:3]
