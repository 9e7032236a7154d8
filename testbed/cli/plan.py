"""`fluxbed plan`: a schedule as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from testbed.cli.output import Column, format_option, print_records
from testbed.cli.parameters import (
    EXPANSION,
    IMPORT,
    PLANNING,
    TOPOLOGY,
    options,
    workload_argument,
)
from testbed.cli.working import aside
from topologies.units import format_duration

__all__ = ["command"]

_COLUMNS: list[Column] = [
    ("scheduler", "scheduler", str),
    ("iteration_ns", "iteration", format_duration),
    ("lower_bound_ns", "lower bound", format_duration),
    ("proven_optimal", "proven optimal", lambda proven: "yes" if proven else "no"),
    ("plan", "plan", str),
]


@click.command("plan")
@workload_argument
@options(TOPOLOGY)
@click.option("-s", "--scheduler", default="flux", show_default=True, metavar="SCHEDULER")
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="Plan file to write.",
)
@options(PLANNING, EXPANSION, IMPORT)
@format_option
def command(
    workload: Path,
    topology: str,
    scheduler: str,
    output: Path,
    style: str,
    **chosen: Any,  # noqa: ANN401 (options)
) -> None:
    """Decide the circuits for WORKLOAD, and say how good the decision is.

    Example: fluxbed plan step.workload.jsonl -t rails,planes=2,delay=10us -s flux -o plan.json
    """
    from testbed.cli.pipeline import expansion_options, load, plan_job, prepare
    from testbed.files.plan import write_plan

    job = prepare(load([workload], chosen), topology, expansion_options(chosen))
    plan = aside(f"{scheduler}: planning", lambda: plan_job(job, scheduler, chosen))
    write_plan(plan, output)
    record = {
        "scheduler": scheduler,
        "iteration_ns": plan.predicted.iteration_ns,
        "lower_bound_ns": plan.predicted.lower_bound_ns,
        "proven_optimal": plan.predicted.proven_optimal,
        "plan": str(output),
    }
    print_records([record], _COLUMNS, style)
