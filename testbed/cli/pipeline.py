"""The steps that plan, simulate and run share: load, expand, plan."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from testbed.cli.output import note
from topologies.errors import InputError, UsageError
from topologies.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from scheduler.model.expansion import Expansion
    from scheduler.model.options import ExpansionOptions
    from scheduler.model.perturbation import Perturbation
    from scheduler.model.workload import Workload
    from testbed.files.plan import Plan
    from topologies.fabric import Fabric

__all__ = [
    "Contender",
    "Job",
    "contenders",
    "expansion_options",
    "load",
    "parse_nic_buffer",
    "parse_ranks",
    "parse_stragglers",
    "perturbation",
    "plan_job",
    "planned",
    "prepare",
]

_IMPORT_KEYS: Final = ("importer", "ranks", "window", "groups", "strict", "compute_scale")
_SPAN: Final = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([1-9][0-9]{0,8}))?)?")
_EXPANSION_KEYS: Final = (
    "collectives",
    "channels",
    "chunk_bytes",
    "split",
    "protocol",
    "eager_send",
    "reduce_bw_bps",
    "scale_up_bps",
    "sizes",
    "iteration",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A workload, the fabric it runs on, and the messages it sends there, perturbed or not."""

    workload: Workload
    workload_sha256: str
    fabric: Fabric
    expansion: Expansion
    perturbation: Perturbation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """Something to compare: a scheduler's spelling, or the file of a plan made earlier."""

    label: str
    plan_file: Path | None = None


def parse_nic_buffer(text: str) -> int | None:
    """Read `4MiB` or `unlimited`, which is None; raises `UsageError`.

    >>> parse_nic_buffer("4MiB"), parse_nic_buffer("unlimited")
    (4194304, None)
    """
    if text == "unlimited":
        return None
    if (size_bytes := parse_bytes(text)) == 0:
        why = "nothing could ever be sent"
        raise UsageError("a NIC holds 0 bytes", "NIC buffer", why, "write 4MiB or unlimited")
    return size_bytes


def parse_ranks(text: str | None) -> tuple[int, ...] | None:
    """Read `0-3,8` or, every other one, `0-6:2`; raises `UsageError`.

    >>> parse_ranks("0-3,8"), parse_ranks("0-6:2")
    ((0, 1, 2, 3, 8), (0, 2, 4, 6))
    """
    return None if text is None else _ranks(text, "--ranks")


def _ranks(text: str, option: str) -> tuple[int, ...]:
    found: set[int] = set()
    for part in text.split(","):
        if (match := _SPAN.fullmatch(part.strip())) is None:
            why = "ranks are written as numbers and spans"
            raise UsageError(f"{part!r} is not a rank", option, why, "write 0-3,8 or 0-6:2")
        first, last, step = match.groups()
        found.update(range(int(first), int(last or first) + 1, int(step or 1)))
    if not found:
        why = "it ends before it begins"
        raise UsageError(f"{text!r} is no rank", option, why, "write 0-3,8 or 0-6:2")
    return tuple(sorted(found))


def load(paths: Sequence[Path], options: Mapping[str, Any]) -> Workload:
    """Load any trace or workload file, with the import options among `options`."""
    from testbed.traces import load_workload

    chosen = {key: options[key] for key in _IMPORT_KEYS}
    ranks = parse_ranks(chosen.pop("ranks"))
    groups = {name: _ranks(text, "--group") for name, text in chosen.pop("groups").items()}
    return load_workload(paths, ranks=ranks, groups=groups, **chosen)


def expansion_options(options: Mapping[str, Any]) -> ExpansionOptions:
    """Return how collectives become messages, as `options` say."""
    from scheduler.model.options import ExpansionOptions

    return ExpansionOptions(**{key: options[key] for key in _EXPANSION_KEYS})


def parse_stragglers(text: str) -> dict[int, float]:
    """Read `3=1.5,4=2`; raises `UsageError`.

    >>> parse_stragglers("3=1.5,4=2")
    {3: 1.5, 4: 2.0}
    """
    found = {}
    for item in filter(None, text.split(",")):
        rank, _, factor = item.partition("=")
        try:
            found[int(rank)] = float(factor)
        except ValueError as error:
            why = "a straggler is a rank and how many times as long it takes"
            raise UsageError(f"{item!r}", "straggler", why, "write 3=1.5") from error
    return found


def perturbation(options: Mapping[str, Any]) -> Perturbation:
    """Return how the execution differs from what is planned, as `options` say."""
    from scheduler.model.perturbation import Perturbation

    return Perturbation(
        jitter=options["jitter"],
        seed=options["jitter_seed"],
        stragglers=tuple(sorted(options["stragglers"].items())),
        skew=options["skew"],
    )


def prepare(
    workload: Workload,
    topology: str | Fabric,
    expansion: ExpansionOptions,
    perturbation: Perturbation | None = None,
) -> Job:
    """Expand `workload` for a fabric, or for the one that `topology` names, and perturb it.

    Told a name, it notes where ranks shared hosts that the topology takes apart.
    """
    from scheduler.model.expansion import expand
    from scheduler.model.perturbation import UNPERTURBED
    from scheduler.model.placement import sharing_note
    from testbed.files.fabric import load_fabric
    from testbed.files.plan import workload_sha256

    if isinstance(topology, str):
        fabric = load_fabric(topology, workload.world)
        if (remark := sharing_note(workload, fabric)) is not None:
            note(remark)
    else:
        fabric = topology
    expanded = expand(workload, fabric, expansion)
    perturbation = perturbation or UNPERTURBED
    graph = perturbation.apply(expanded.graph, workload)
    return Job(
        workload=workload,
        workload_sha256=workload_sha256(workload),
        fabric=fabric,
        expansion=dataclasses.replace(expanded, graph=graph),
        perturbation=perturbation,
    )


def plan_job(job: Job, spec: str, options: Mapping[str, Any]) -> Plan:
    """Let the scheduler that `spec` names plan `job`; the plan says what it promises."""
    from scheduler.bounds import lower_bound_ns
    from scheduler.dispatch.simulator import simulate
    from scheduler.model.problem import Problem
    from scheduler.model.program import OrderedProgram, ReactiveProgram, TimedProgram
    from scheduler.policies.registry import find
    from testbed.files.plan import Plan, Prediction

    scheduler = find(spec)
    fabric = scheduler.fabric_for(job.fabric)
    graph = job.expansion.graph.planned()
    budget_s = options["budget_ns"] / 1e9
    problem = Problem(
        graph=graph,
        fabric=fabric,
        seed=options["seed"],
        budget_s=budget_s,
        lookahead_ns=options["lookahead_ns"],
    )
    program: object = scheduler.plan(problem)  # of a class that may be the user's
    if not isinstance(program, OrderedProgram | TimedProgram | ReactiveProgram):
        why = f"plan returned {type(program).__name__}"
        fix = "return an OrderedProgram, a TimedProgram or a ReactiveProgram"
        raise UsageError("the scheduler made no program", spec, why, fix)
    timeline = simulate(graph, fabric, program, lookahead_ns=options["lookahead_ns"])
    iteration_ns = timeline.iteration_ns(skip=SKIP_SIMULATED)
    proof = program.proof if isinstance(program, OrderedProgram) else None
    bound = lower_bound_ns(graph, fabric, atomic=not isinstance(program, TimedProgram))
    bound_ns = max(bound.value_ns, proof.lower_bound_ns if proof else 0.0)
    return Plan.of(
        program,
        scheduler=scheduler,
        fabric=fabric,
        workload_sha256=job.workload_sha256,
        expansion=job.expansion,
        seed=options["seed"],
        budget_s=budget_s,
        predicted=Prediction(
            iteration_ns=iteration_ns,
            lower_bound_ns=bound_ns,
            proven_optimal=iteration_ns is not None and iteration_ns <= bound_ns,
            solver_status=proof.status if proof else None,
            gap=iteration_ns / bound_ns - 1 if iteration_ns and bound_ns else None,
        ),
    )


SKIP_SIMULATED: Final = 2


def contenders(schedulers: Sequence[str], plans: Sequence[Path]) -> list[Contender]:
    """List what to compare, in the order given.

    Raises `UsageError` when there is nothing, something twice, or a scheduler that does not exist.
    """
    from scheduler.policies.registry import find

    for spec in schedulers:
        find(spec)
    found = [Contender(label=spec) for spec in schedulers]
    found += [Contender(label=path.stem, plan_file=path) for path in plans]
    if not found:
        why = "nothing says what decides the circuits"
        raise UsageError("no scheduler is given", "command line", why, "add -s flux or -p PLAN")
    labels = [contender.label for contender in found]
    for label in labels:
        if labels.count(label) > 1:
            why = "their results would have the same name"
            raise UsageError(f"{label!r} is given twice", "command line", why, "remove one")
    return found


def planned(job: Job, contender: Contender, options: Mapping[str, Any]) -> tuple[Job, Plan]:
    """Plan for `contender`, or read its plan and expand the workload as that plan was made for.

    A plan made for another fabric of the same ports is executed on the one of `job`: what it
    promised is then its own affair.
    """
    if contender.plan_file is None:
        return job, plan_job(job, contender.label, options)
    from testbed.files.plan import read_plan

    plan = read_plan(contender.plan_file)
    job = prepare(job.workload, job.fabric, plan.options, job.perturbation)
    for what, ours, theirs in (
        ("workload", job.workload_sha256, plan.workload_sha256),
        ("set of messages", job.expansion.sha256, plan.expansion_sha256),
    ):
        if ours != theirs:
            raise InputError(
                f"it was made for another {what}",
                str(contender.plan_file),
                f"the sha256 of this one is {ours[:12]}, not {theirs[:12]}",
                "plan again, or give the workload it was made for",
            )
    return job, plan
