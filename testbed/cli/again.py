"""`fluxbed run --from RUN`: what a run directory says of how to do the same again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from topologies.errors import UsageError

if TYPE_CHECKING:
    from testbed.cli.pipeline import Contender, Job
    from testbed.emulator.dilation import Dilation
    from testbed.files.rundir import Run

__all__ = ["Repetition", "read_repetition"]

_OPEN: Final = frozenset({"workload", "importer", "output", "style", "repeat", "pcap", "dry_run"})
"""What may be said beside a run: where results go and what else is seen, not what is executed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """A run's workload on its fabric, its plan, its options and its dilation."""

    job: Job
    contender: Contender
    options: dict[str, Any]
    dilation: Dilation


def read_repetition(context: click.Context) -> Repetition | None:
    """Return what `--from` names without a WORKLOAD; None where it is no run but a format.

    Raises `UsageError` for anything beside it that the run decides, and where it was no emulation;
    `InputError` where it is no run.
    """
    chosen, source = context.params, context.params["importer"]
    if chosen["workload"] is not None:
        if source is not None and (Path(source) / "manifest.json").is_file():
            what = f"a workload and the run {source} are given"
            why = "the run has its own workload"
            raise UsageError(what, "--from", why, "leave one of them out")
        return None
    if source is None:
        why = "nothing says what to replay"
        fix = "give a trace or a workload file, or --from RUN"
        raise UsageError("no workload is given", "command line", why, fix)
    for option in context.command.params:
        given = context.get_parameter_source(option.name or "")
        if given is click.core.ParameterSource.COMMANDLINE and option.name not in _OPEN:
            what = f"{option.opts[-1]} is given beside --from {source}"
            fix = f"leave it out, or run {source}/workload.jsonl -p {source}/plan.json with it"
            raise UsageError(what, "command line", "the run has decided it", fix)
    return _repetition(source, chosen)


def _repetition(source: str, chosen: dict[str, Any]) -> Repetition:
    from testbed.cli.pipeline import Contender, Job
    from testbed.files.plan import workload_sha256
    from testbed.files.rundir import read_run

    run = read_run(source)
    manifest, workload = run.manifest, run.workload()
    job = Job(
        workload=workload,
        workload_sha256=workload_sha256(workload),
        fabric=run.fabric(),
        expansion=run.expansion(),
        perturbation=run.perturbation(),
    )
    recorded = {
        "iterations": manifest.iterations,
        "skip": manifest.skip,
        "lookahead_ns": manifest.lookahead_ns,
        "nic_buffer_bytes": manifest.injection.buffer_bytes,
        "faults": tuple(manifest.faults),
        "seed": manifest.fault_seed or 0,
    }
    return Repetition(
        job=job,
        contender=Contender(label=manifest.scheduler, plan_file=run.path / "plan.json"),
        options={**chosen, **recorded},
        dilation=_dilation(run),
    )


def _dilation(run: Run) -> Dilation:
    """Return the run's dilation to the byte, whatever this machine carries now."""
    from testbed.emulator.dilation import Dilation

    manifest = run.manifest
    factor, scale = manifest.dilation, manifest.bytes_per_wall_byte
    if factor is None or scale is None:
        why = "it has no dilation"
        fix = f"run {run.path}/workload.jsonl -p {run.path}/plan.json"
        raise UsageError("the run was simulated, not emulated", str(run.path), why, fix)
    rate_bps = max(plane.rate_bps for plane in run.fabric().planes)
    return Dilation(
        factor=factor,
        bytes_per_wall_byte=scale,
        wall_bps=round(rate_bps / factor / scale),
        frame_bytes=round(manifest.quantum_bytes / scale),
        quantum_bytes=manifest.quantum_bytes,
        guard_ns=manifest.guard_ns or 0,
        gather_ns=manifest.gather_ns,
        bound_by=f"as {run.path}",
        expected_wall_s=manifest.expected_wall_s,
    )
