"""`fluxbed simulate`: what schedulers would do, on a virtual clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from testbed.cli.contest import COLUMNS, compete, row
from testbed.cli.output import Column, format_option
from testbed.cli.parameters import (
    DURATION,
    EXPANSION,
    IMPORT,
    NIC,
    OUTPUT,
    PERTURBATION,
    PLAN_FILES,
    PLANNING,
    REPLANNING,
    SCHEDULERS,
    SIZE,
    TOPOLOGY_UNLESS_PLANNED,
    options,
    steady_state,
    workload_argument,
)
from testbed.cli.replanned import COLUMN, replanned
from testbed.cli.working import aside, doing
from topologies.units import format_duration

if TYPE_CHECKING:
    from testbed.cli.contest import Attempt

__all__ = ["command"]

_COLUMNS: list[Column] = [
    ("scheduler", "scheduler", str),
    ("iteration_ns", "iteration", format_duration),
    ("lower_bound_ns", "lower bound", format_duration),
    *COLUMNS,
]


@click.command("simulate")
@workload_argument
@options(TOPOLOGY_UNLESS_PLANNED, SCHEDULERS, PLAN_FILES, OUTPUT)
@options(steady_state(iterations=12, skip=2))
@click.option(
    "--quantum", "quantum_bytes", type=SIZE, default="0", help="Move messages in frames this large."
)
@click.option(
    "--guard", "guard_ns", type=DURATION, help="Send nothing this long before a slot ends."
)
@options(NIC, PERTURBATION, REPLANNING, PLANNING, EXPANSION, IMPORT)
@format_option
def command(**chosen: Any) -> None:  # noqa: ANN401 (options)
    """Predict iteration time, NIC queues and circuit use of WORKLOAD (a trace does too).

    Example: fluxbed simulate step.workload.jsonl -t rails,delay=10us -s flux -s bvn -o runs/demo
    """
    compete(chosen, _simulate, _COLUMNS if chosen["replan"] is None else [*_COLUMNS, COLUMN])


def _simulate(attempt: Attempt) -> dict[str, Any]:
    from scheduler.dispatch.simulator import simulate

    chosen = attempt.options
    frames = {"quantum_bytes": chosen["quantum_bytes"], "guard_ns": chosen["guard_ns"]}
    label = attempt.contender.label
    with attempt.directory("simulated", skip=chosen["skip"], **frames) as run:
        timeline = aside(
            f"{label}: simulating {chosen['iterations']} iterations",
            lambda: simulate(
                attempt.job.expansion.graph,
                attempt.plan.fabric,
                attempt.plan.program,
                iterations=chosen["iterations"],
                lookahead_ns=chosen["lookahead_ns"],
                nic_buffer_bytes=chosen["nic_buffer_bytes"],
                **frames,
            ),
        )
        again = replanned(attempt)
        with doing(f"{label}: accounting for queues and writing the tables"):
            summary = run.write_results(timeline, replanning=again)
    return row(summary, run.path)
