"""What a sweep does at one point: the steps of simulate and run, told by settings."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from testbed.cli.pipeline import (
    Contender,
    expansion_options,
    load,
    parse_nic_buffer,
    parse_stragglers,
    perturbation,
    plan_job,
    prepare,
)
from topologies.errors import FluxbedError, UsageError
from topologies.units import parse_bytes, parse_duration_ns, parse_rate_bps

if TYPE_CHECKING:
    from scheduler.model.nic import Injection as InjectionKind
    from scheduler.model.program import Program
    from scheduler.model.workload import Workload
    from testbed.cli.pipeline import Job
    from testbed.files.plan import Plan
    from testbed.files.summary import Summary
    from testbed.sweep.point import Point
    from topologies.fabric import Fabric

__all__ = ["emulate_point", "simulate_point"]

_PARSERS: Final = {
    "bucket": ("bucket_bytes", parse_bytes),
    "chunk": ("chunk_bytes", parse_bytes),
    "reduce_bw": ("reduce_bw_bps", parse_rate_bps),
    "scale_up": ("scale_up_bps", parse_rate_bps),
}
_IMPORT: Final[dict[str, Any]] = {
    "importer": None, "ranks": None, "groups": {}, "window": None, "strict": False,
    "compute_scale": None,
}  # fmt: skip
_EXPANSION: Final[dict[str, Any]] = {
    "channels": 1, "chunk_bytes": None, "split": 1, "protocol": "Simple", "eager_send": False,
    "reduce_bw_bps": None, "scale_up_bps": None, "sizes": {}, "iteration": None,
}  # fmt: skip
_KEPT: Final = 4  # jobs a process remembers: the points of one follow each other
_REMEMBERED: Final = 16  # plans
_plans: dict[tuple[Any, ...], tuple[Plan, float]] = {}


def _parsed(settings: dict[str, Any]) -> dict[str, Any]:
    """Read what is written with a unit, under the name of its parameter."""
    parsed = dict(settings)
    for name in _PARSERS.keys() & settings.keys():
        parameter, parse = _PARSERS[name]
        parsed[parameter] = parse(parsed.pop(name))
    return parsed


@lru_cache(maxsize=_KEPT)
def _workload(encoded: bytes) -> Workload:
    source = msgspec.json.decode(encoded)
    if "path" in source:
        return load([Path(source.pop("path"))], {**_IMPORT, **source})
    from testbed.synth import synth

    return synth(source.pop("model"), **_parsed(source))


@lru_cache(maxsize=_KEPT)
def _job(source: bytes, topology: str, expansion: bytes) -> Job:
    from testbed.files.fabric import load_fabric

    workload = _workload(source)
    options = expansion_options(msgspec.json.decode(expansion))
    return prepare(workload, load_fabric(topology, workload.world), options)


def _job_of(point: Point) -> Job:
    source = point.part("workload") or point.part("synth") | {"seed": point["seed"]}
    topology = point.part("topology")
    spec = [str(topology.pop("name"))]
    spec += [f"{key}={_written(value)}" for key, value in topology.items()]
    expansion = point.part("expansion")
    collectives = _collectives(expansion.pop("algorithm", None))
    for key in [key for key in expansion if key.startswith("collectives.")]:
        collectives[key.removeprefix("collectives.")] = expansion.pop(key)
    chosen = {**_EXPANSION, **_parsed(expansion), "collectives": collectives}
    job = _job(
        msgspec.json.encode(source, order="deterministic"),
        ",".join(spec),
        msgspec.json.encode(chosen, order="deterministic"),
    )
    differs = perturbation(
        {
            "jitter": point.get("jitter", 0.0),
            "jitter_seed": point.get("jitter_seed", 0),
            "stragglers": parse_stragglers(str(point.get("straggler", ""))),
            "skew": point.get("skew", 0.0),
        }
    )
    graph = differs.apply(job.expansion.graph, job.workload)
    expansion_made = dataclasses.replace(job.expansion, graph=graph)
    return dataclasses.replace(job, expansion=expansion_made, perturbation=differs)


def _written(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _collectives(algorithm: str | None) -> dict[str, str]:
    """Name `algorithm` for every kind of collective that has one of that name."""
    from scheduler.model.collectives import ALGORITHMS

    if algorithm is None:
        return {}
    found = {kind: algorithm for kind, named in ALGORITHMS.items() if algorithm in named}
    if not found:
        known = ", ".join(dict.fromkeys(name for named in ALGORITHMS.values() for name in named))
        what = f"there is no algorithm {algorithm!r}"
        why = f"the algorithms are {known}"
        raise UsageError(what, "expansion", why, "choose one of them")
    return found


def _options(point: Point) -> dict[str, Any]:
    """Return what planning and executing take from the command line elsewhere."""
    return {
        "seed": point["seed"],
        "budget_ns": parse_duration_ns(str(point.get("budget", "1s"))),
        "lookahead_ns": parse_duration_ns(str(point.get("lookahead", "0"))),
        "nic_buffer_bytes": parse_nic_buffer(str(point.get("nic_buffer", "unlimited"))),
        "iterations": point["iterations"],
        "skip": point["skip"],
        "faults": _faults(str(point.get("faults", ""))),
    }


def _faults(text: str) -> list[str]:
    """Separate faults.

    >>> _faults("lost-plane:plane=1; frame-loss:share=0.1"), _faults("")
    (['lost-plane:plane=1', 'frame-loss:share=0.1'], [])
    """
    return [part.strip() for part in text.split(";") if part.strip()]


def simulate_point(point: Point) -> dict[str, Any]:
    """Plan and simulate a point; return its summary as flat results.

    Raises `FluxbedError` where it cannot be done.
    """
    job, options = _job_of(point), _options(point)
    plan, wall_s = _planned(job, str(point["scheduler"]), options)
    result = {"plan_wall_s": wall_s}
    summary = _simulated(job, plan, str(point["scheduler"]), options)
    phases = int(point.get("phases", 1))
    return {
        **_flat(summary),
        **_size(job),
        **result,
        **_over_phases(job, plan.fabric, plan.program, options, phases),
    }


def _planned(job: Job, spec: str, options: dict[str, Any]) -> tuple[Plan, float]:
    """Return the plan of a point and the wall time it took, when it was made.

    Same arguments, same plan: what no planner knows (jitter, skew, finite NICs, a reference's tau)
    differs between points that share one, so the last few are remembered.
    """
    from scheduler.policies.registry import find

    known = (options[key] for key in ("seed", "budget_ns", "lookahead_ns"))
    fabric = dataclasses.replace(find(spec).fabric_for(job.fabric), name="")
    expansion = (job.expansion.sha256, repr(job.expansion.options))
    key = (spec, job.workload_sha256, *expansion, fabric, *known)
    if key not in _plans:
        began_s = time.perf_counter()
        plan = plan_job(job, spec, options)
        _plans[key] = plan, time.perf_counter() - began_s
        if len(_plans) > _REMEMBERED:
            _plans.pop(next(iter(_plans)))
    _plans[key] = _plans.pop(key)  # the last used is the last to go
    return _plans[key]


def _simulated(job: Job, plan: Plan, label: str, options: dict[str, Any]) -> Summary:
    from scheduler.dispatch.simulator import simulate
    from scheduler.model.nic import account_nics
    from testbed.files.manifest import Injection
    from testbed.files.summary import summarise

    graph, window = job.expansion.graph, Injection()
    timeline = simulate(
        graph,
        plan.fabric,
        plan.program,
        iterations=options["iterations"],
        lookahead_ns=options["lookahead_ns"],
        nic_buffer_bytes=options["nic_buffer_bytes"],
    )
    kinds: tuple[InjectionKind, ...] = ("eager", "paced")
    accounts = {
        kind: account_nics(
            graph,
            plan.fabric,
            timeline,
            kind,
            feedback_ns=window.feedback_ns,
            mtu_bytes=window.mtu_bytes,
            nic_buffer_bytes=options["nic_buffer_bytes"],
        )
        for kind in kinds
    }
    return summarise(
        graph,
        plan.fabric,
        timeline,
        accounts,
        scheduler=label,
        rank_to_node=job.expansion.rank_to_node,
        skip=options["skip"],
        promised=plan.predicted,
        nic_buffer_bytes=options["nic_buffer_bytes"],
    )


def _flat(summary: Summary) -> dict[str, Any]:
    """Return a summary without lists, its inner tables by dotted name and times by their unit."""
    flat: dict[str, Any] = {}
    for key, value in msgspec.to_builtins(summary).items():
        if isinstance(value, dict):
            flat |= {f"{key}.{inner}": number for inner, number in value.items()}
        elif not isinstance(value, list) and key not in ("scheduler", "status"):
            flat[key] = value
    return flat


def _size(job: Job) -> dict[str, Any]:
    """Return what a workload asks of a fabric.

    `compute_window_ns` is the mean compute of a rank per collective it takes part in: what there is
    to hide a change of circuit behind. `peers_per_port` is the largest number of nodes that one
    node sends to, over its optical ports; `delay_over_window` the slowest plane's tau over
    `compute_window_ns`.
    """
    import numpy as np

    from scheduler.model.taskgraph import COMPUTE, MESSAGE
    from scheduler.model.workload import Collective

    graph, fabric, world = job.expansion.graph, job.fabric, job.workload.world
    used = set(graph.op[graph.kind != COMPUTE].tolist())
    entered = sum(
        len(each.ranks)
        for each in job.workload.operations
        if isinstance(each, Collective) and each.id in used
    )
    compute_ns = int(graph.dur_ns[graph.kind == COMPUTE].sum())
    sent = graph.kind == MESSAGE
    pairs = np.unique(np.stack([graph.src[sent], graph.dst[sent]]), axis=1)
    peers = int(np.bincount(pairs[0]).max(initial=0))
    optical = [plane.node_of for plane in fabric.planes if plane.kind == "ocs"]
    ports = max(sum(nodes.count(node) for nodes in optical) for node in range(fabric.nodes))
    window_ns = compute_ns / entered if entered else None
    delay_ns = max((plane.delay_ns for plane in fabric.planes if plane.kind == "ocs"), default=0)
    return {
        "ranks": world,
        "tasks": graph.tasks,
        "compute_ns": compute_ns / world,
        "compute_window_ns": window_ns,
        "delay_over_window": delay_ns / window_ns if window_ns else None,
        "peers_per_port": peers / ports if ports else None,
    }


def _over_phases(
    job: Job, fabric: Fabric, program: Program, options: dict[str, Any], phases: int
) -> dict[str, Any]:
    """Return mean and range of the iteration over start phases; nothing has a phase but cycles."""
    from scheduler.dispatch.simulator import simulate_phases
    from scheduler.model.program import TimedProgram

    if phases == 1 or not isinstance(program, TimedProgram):
        return {}
    found = simulate_phases(
        job.expansion.graph,
        fabric,
        program,
        phases=phases,
        iterations=options["iterations"],
        skip=options["skip"],
        nic_buffer_bytes=options["nic_buffer_bytes"],
    )
    return {
        "iteration_mean_ns": found.mean_ns,
        "iteration_least_ns": found.least_ns,
        "iteration_most_ns": found.most_ns,
    }


def emulate_point(point: Point, runs: Path) -> dict[str, Any]:
    """Execute a point on the emulated fabric; its run directory goes into `runs`, by its id.

    Raises `FluxbedError` where it cannot be done.
    """
    from testbed.cli.contest import Attempt
    from testbed.cli.stage import Stage

    job, options = _job_of(point), _options(point)
    label = str(point["scheduler"])
    attempt = Attempt(
        contender=Contender(label=label),
        job=job,
        plan=plan_job(job, label, options),
        options=options,
        output=_unused(runs, point.id),
    )
    factor = point.get("dilation", 0.0)
    with contextlib.ExitStack() as stack:
        record = Stage(stack, float(factor) or None, dry=False).execute(attempt)
    if record["status"] != "ok":
        why = "the run did not finish"
        raise FluxbedError(
            f"its status is {record['status']}", record["run"], why, "see its report"
        )
    flat = {
        key: value
        for key, value in record.items()
        if not isinstance(value, list | dict) and key not in ("scheduler", "status")
    }
    found = record["overload"]
    pace = {"pace": "not kept" if found else "kept", "overload": "; ".join(found)}
    drops = {f"drops.{cause}": count for cause, count in record["drops"].items()}
    return flat | pace | drops | _size(job) | {"run": Path(record["run"]).name}


def _unused(runs: Path, name: str) -> Path:
    """Return a directory for a run: a second attempt at a point does not touch the first."""
    number = 1
    while (path := runs / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return path
