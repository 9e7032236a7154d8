"""Several schedulers on one workload: each gets a run directory and a row, whatever happens.

One failure does not stop the others; the exit code is the first failure's.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import click
import msgspec

from testbed.cli.output import Column, note, print_records
from testbed.cli.pipeline import (
    contenders,
    expansion_options,
    load,
    perturbation,
    planned,
    prepare,
)
from testbed.cli.repeats import together
from testbed.cli.working import aside, doing
from topologies.errors import FluxbedError, UsageError
from topologies.units import format_bytes, format_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from testbed.cli.pipeline import Contender, Job
    from testbed.files.plan import Plan
    from testbed.files.rundir import RunDirectory
    from testbed.files.summary import Summary

__all__ = ["COLUMNS", "Attempt", "compete", "contest", "percent", "row"]

Execute: TypeAlias = "Callable[[Attempt], dict[str, Any]]"


def percent(fraction: float) -> str:
    """Write a fraction for people.

    >>> percent(0.1234)
    '12.3 %'
    """
    return f"{100 * fraction:.1f} %"


COLUMNS: Final[list[Column]] = [
    ("nic_peak_bytes_eager", "NIC peak eager", format_bytes),
    ("nic_peak_bytes_paced", "NIC peak paced", format_bytes),
    ("reconfigurations", "reconfigurations", lambda value: f"{value:.1f}"),
    ("circuit_utilisation", "circuits used", percent),
    ("exposed_comm_ns", "exposed comm", format_duration),
    ("status", "status", str),
]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One contender's turn: what to execute, and how to make the directory that records it."""

    contender: Contender
    job: Job
    plan: Plan
    options: Mapping[str, Any]
    output: Path | None

    def directory(
        self,
        origin: Literal["simulated", "emulated"],
        *,
        skip: int,
        **known: Any,  # noqa: ANN401 (fields of the manifest)
    ) -> RunDirectory:
        """Make this attempt's run directory."""
        from testbed.files.manifest import Injection, JitterRecord
        from testbed.files.rundir import RunDirectory

        return RunDirectory.create(
            self.output,
            scheduler=self.contender.label,
            plan=self.plan,
            workload=self.job.workload,
            expansion=self.job.expansion,
            origin=origin,
            iterations=self.options["iterations"],
            skip=skip,
            lookahead_ns=self.options["lookahead_ns"],
            topology=self.job.fabric.name,
            injection=Injection(buffer_bytes=self.options["nic_buffer_bytes"]),
            jitter=JitterRecord.of(self.job.perturbation),
            **known,
        )


def _outputs(
    output: Path | None, contender: Contender, contenders: int, repeat: int
) -> list[Path | None]:
    """Name the directory of each execution of `contender`: all directly in `output`."""
    from testbed.files.rundir import directory_name

    if output is None:
        return [None] * repeat
    name = directory_name(contender.label)
    if repeat > 1:
        return [output / f"{name}-{number}" for number in range(1, repeat + 1)]
    return [output if contenders == 1 else output / name]


def _job(options: Mapping[str, Any]) -> Job:
    from testbed.files.plan import read_plan

    workload, differs = load([options["workload"]], options), perturbation(options)
    if options["topology"] is not None:
        return prepare(workload, options["topology"], expansion_options(options), differs)
    if not options["plans"]:
        why = "nothing says what fabric to use"
        raise UsageError("no topology is given", "command line", why, "add -t rails,planes=2")
    plan = read_plan(options["plans"][0])
    return prepare(workload, plan.fabric, plan.options, differs)


def compete(
    options: Mapping[str, Any],
    execute: Execute,
    columns: Sequence[Column],
) -> None:
    """Let every contender of `options` have its turn, as `contest` does.

    Raises `UsageError` or `InputError` for what concerns all of them.
    """
    if options["skip"] >= options["iterations"]:
        what = f"--skip {options['skip']} leaves nothing of {options['iterations']} iterations"
        why = "the steady state is measured over what is left"
        raise UsageError(what, "command line", why, "skip fewer or execute more")
    entered = contenders(options["schedulers"], options["plans"])
    with doing(f"reading {options['workload']}"):
        job = _job(options)
    contest(job, entered, options, execute, columns)


def contest(
    job: Job,
    entered: Sequence[Contender],
    options: Mapping[str, Any],
    execute: Execute,
    columns: Sequence[Column],
) -> None:
    """Execute every contender, `repeat` times if asked, print the table, exit with what failed."""
    records: list[dict[str, Any]] = []
    failure: FluxbedError | None = None
    for contender in entered:
        record: dict[str, Any] = {"scheduler": contender.label, "status": "failed", "run": None}
        records.append(record)
        rows: list[dict[str, Any]] = []
        try:
            own_job, plan = aside(
                f"{contender.label}: planning", partial(planned, job, contender, options)
            )
            for output in _outputs(
                options["output"], contender, len(entered), options.get("repeat", 1)
            ):
                attempt = Attempt(
                    contender=contender, job=own_job, plan=plan, options=options, output=output
                )
                rows.append(execute(attempt))
            record |= together(rows)
        except FluxbedError as error:
            if len(entered) == 1 and not rows:
                raise
            note(str(error) if error.where == contender.label else f"{contender.label}: {error}")
            record |= {"error": str(error)} | ({"executions": rows} if rows else {})
            failure = failure or error
    print_records(records, columns, options["style"])
    _tell_places([Path(record["run"]) for record in records if record["run"]])
    for record in records:
        for remark in record.get("remarks") or ():
            note(f"{record['scheduler']}: {remark}")
        if record.get("pace_kept") is False:
            why = "this machine did not keep up: raise the dilation"
            note(f"{record['scheduler']}: these numbers are NOT those of the fabric, {why}")
    if failure is not None:
        click.get_current_context().exit(failure.exit_code)


def _tell_places(runs: Sequence[Path]) -> None:
    """Say where the runs are: once for all that lie in one directory."""
    together = {run.parent for run in runs}
    if len(runs) > 1 and len(together) == 1:
        note(f"written: {together.pop()}, with {', '.join(run.name for run in runs)}")
        return
    for run in runs:
        note(f"written: {run}")


def row(summary: Summary, directory: Path) -> dict[str, Any]:
    """Return what a table shows of a run, and write its report."""
    from testbed.report import write_report

    with doing(f"writing {directory}/report.html"):
        write_report(directory)
    record: dict[str, Any] = msgspec.to_builtins(summary)
    return record | {"run": str(directory)}
