"""`fluxbed check`: hold a plan or a finished run against the rules of the model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from testbed.cli.output import Column, format_option, note, print_records
from topologies.errors import InputError, UsageError

if TYPE_CHECKING:
    from scheduler.check import Violation

__all__ = ["command"]

_COLUMNS: Final[list[Column]] = [
    ("rule", "rule", str),
    ("where", "where", str),
    ("what", "what", str),
]
_VIOLATED: Final = 3


@click.command("check")
@click.argument("files", nargs=-1, required=True, metavar="PLAN WORKLOAD | RUN")
@format_option
@click.pass_context
def command(context: click.Context, files: tuple[str, ...], style: str) -> None:
    """Check PLAN for WORKLOAD, or re-check RUN from its files alone; exit 3 on any violation.

    Neither the dispatcher nor the simulator takes part in it.

    Example: fluxbed check plan.json step.workload.jsonl
    """
    paths = [Path(name) for name in files]
    if len(paths) == 1:
        violations = _check_run(paths[0])
    elif len(paths) == len(("plan", "workload")):
        violations = _check_plan(*paths)
    else:
        why = "a run is checked by itself and a plan with its workload"
        fix = "write fluxbed check RUN, or fluxbed check PLAN WORKLOAD"
        raise UsageError(f"{len(paths)} files are given", "check", why, fix)
    if violations or style != "table":
        print_records([violation._asdict() for violation in violations], _COLUMNS, style)
    if violations:
        note(f"{files[0]}: {len(violations)} violations")
        context.exit(_VIOLATED)
    note(f"{files[0]}: nothing is violated")
    if len(paths) == 1:
        _tell_pace(paths[0])


def _check_run(path: Path) -> list[Violation]:
    from testbed.files.rundir import read_run
    from testbed.files.verify import check_run_directory

    if path.is_file():
        why = "a plan is checked with the workload it was made for"
        fix = f"write fluxbed check {path} WORKLOAD"
        raise UsageError("no workload is given", str(path), why, fix)
    read_run(path)
    return check_run_directory(path)


def _tell_pace(path: Path) -> None:
    """Say that a sound run is worth nothing where its machine did not keep up."""
    from testbed.files.rundir import read_run

    for sentence in read_run(path).manifest.overload or ():
        note(f"{path}: but its numbers are NOT those of the fabric: {sentence}")


def _check_plan(plan_path: Path, workload_path: Path) -> list[Violation]:
    from scheduler.check import check_plan
    from testbed.cli.pipeline import prepare
    from testbed.files.plan import read_plan
    from testbed.traces import load_workload

    plan = read_plan(plan_path)
    job = prepare(load_workload([workload_path]), plan.fabric, plan.options)
    if job.expansion.sha256 != plan.expansion_sha256:
        raise InputError(
            "the plan was made for other messages",
            str(plan_path),
            f"{workload_path} expands to {job.expansion.sha256[:12]}, "
            f"not {plan.expansion_sha256[:12]}",
            "give the workload it was made for",
        )
    return check_plan(plan.program, job.expansion.graph, plan.fabric)
