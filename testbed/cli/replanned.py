"""`simulate --replan`: the same execution with plans made anew where ranks drift."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from testbed.cli.output import note
from testbed.cli.working import aside
from topologies.errors import UsageError
from topologies.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scheduler.model.problem import Problem
    from scheduler.model.program import OrderedProgram
    from testbed.cli.contest import Attempt
    from testbed.cli.output import Column
    from testbed.files.summary import Replanning

__all__ = ["COLUMN", "replanned"]


def _written(found: Mapping[str, Any]) -> str:
    count = len(found["takeovers"])
    plans = f"{count} new plan{'' if count == 1 else 's'}"
    return f"{format_duration(found['iteration_ns'])}, {plans}"


COLUMN: Column = ("replanning", "replanned", _written)


def replanned(attempt: Attempt) -> Replanning | None:
    """Execute once more, planning anew as `--replan` says; None where it is not asked for.

    None, and a note, where there is no order to plan anew. Raises `UsageError` for the file of a
    plan, which no scheduler stands behind.
    """
    from scheduler.dispatch.replanning import simulate_replanned
    from scheduler.model.program import OrderedProgram
    from scheduler.policies.registry import find
    from testbed.files.summary import Replanning

    chosen, label, first = attempt.options, attempt.contender.label, attempt.plan.program
    if chosen["replan"] is None:
        return None
    if attempt.contender.plan_file is not None:
        why = "it is a file, and nobody is there to plan anew"
        raise UsageError("--replan is given", label, why, "name its scheduler with -s instead")
    if not isinstance(first, OrderedProgram):
        note(f"{label}: nothing is planned anew, because it does not plan an order of messages")
        return None

    def plan(problem: Problem) -> OrderedProgram:
        budget_s = chosen["budget_ns"] / 1e9
        program = find(label).plan(dataclasses.replace(problem, budget_s=budget_s))
        assert isinstance(program, OrderedProgram)  # as the first one was
        return program

    planning_ns = chosen["budget_ns"] if chosen["replan_ns"] is None else chosen["replan_ns"]
    found = aside(
        f"{label}: planning anew where computations drift",
        lambda: simulate_replanned(
            attempt.job.expansion.graph,
            attempt.plan.fabric,
            plan,
            threshold=chosen["replan"],
            planning_ns=planning_ns,
            iterations=chosen["iterations"],
            seed=chosen["seed"],
            first=first,
            lookahead_ns=chosen["lookahead_ns"],
            nic_buffer_bytes=chosen["nic_buffer_bytes"],
        ),
    )
    ends_ns, skip = found.ends_ns.tolist(), chosen["skip"]
    begin_ns = ends_ns[skip - 1] if skip else 0
    return Replanning(
        threshold=chosen["replan"],
        planning_ns=planning_ns,
        takeovers=list(found.takeovers),
        iteration_ns=(ends_ns[-1] - begin_ns) / (len(ends_ns) - skip),
        iterations_ns=[end - begin for begin, end in zip([0, *ends_ns], ends_ns, strict=False)],
    )
