"""`fluxbed run`: the same on the emulated fabric, with real packets."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Any, Final

import click

from testbed.cli.again import read_repetition
from testbed.cli.contest import COLUMNS, compete, contest
from testbed.cli.output import Column, format_option
from testbed.cli.parameters import (
    EXPANSION,
    FAULTS,
    IMPORT,
    NIC,
    OUTPUT,
    PERTURBATION,
    PLAN_FILES,
    PLANNING,
    SCHEDULERS,
    TOPOLOGY_UNLESS_PLANNED,
    options,
    steady_state,
)
from topologies.errors import UsageError
from topologies.units import format_duration

__all__ = ["command"]

_COLUMNS: Final[list[Column]] = [
    ("scheduler", "scheduler", str),
    ("predicted_iteration_ns", "predicted", format_duration),
    ("iteration_ns", "measured", format_duration),
    ("difference", "difference", lambda value: f"{100 * value:+.2f} %"),
    *COLUMNS[:4],
    ("lost_bytes", "lost bytes", str),
    ("dropped", "drops", str),
    ("pace_kept", "pace", lambda kept: "kept" if kept else "NOT KEPT"),
    ("faulted", "faults", lambda faulted: "FAULTED" if faulted else "none"),
    *COLUMNS[4:],
]
_INTERVAL: Final[Column] = (
    "interval_ns",
    "95 % interval",
    lambda ends: " to ".join(format_duration(end) for end in ends),
)


@click.command("run")
@click.argument("workload", required=False, type=click.Path(path_type=Path))
@options(TOPOLOGY_UNLESS_PLANNED, SCHEDULERS, PLAN_FILES, OUTPUT)
@options(steady_state(iterations=4, skip=1))
@click.option(
    "--dilation",
    default="auto",
    show_default=True,
    metavar="auto|FACTOR",
    help="How much slower than the fabric to run.",
)
@click.option("--dry-run", is_flag=True, help="Predict, and say how long the run would take.")
@click.option(
    "--repeat",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="Execute each so often; the table shows medians, with an interval from 6 on.",
)
@click.option(
    "--pcap",
    multiple=True,
    metavar="HOST|all",
    help="Capture what host h0, h1, ... sends and receives; may be repeated.",
)
@click.option(
    "--from",
    "importer",
    metavar="RUN|FORMAT",
    help="Without WORKLOAD: the same as this run again. Else read the trace as this format.",
)
@click.option("--replan", hidden=True)
@options(FAULTS)
@options(NIC, PERTURBATION, PLANNING, EXPANSION, IMPORT[1:])
@format_option
def command(**chosen: Any) -> None:  # noqa: ANN401 (options)
    """Replay WORKLOAD (a trace does too) over a software OCS and measure; needs root.

    Example: sudo fluxbed run step.workload.jsonl -t rails,delay=10us -s flux -s bvn -o runs/real

    \b
    Faults (KIND:key=value,...; at=0 by default, without for they last; all in virtual time):
      stuck-dark:plane=0,port=3,at=2ms,for=1ms   the port passes no light
      lost-plane:plane=1,at=2ms[,for=...]        none of the plane's ports does
      slow-plane:plane=0,rate=100Gbps            frames leave at that rate
      paused-host:host=h2,at=1ms,for=500us       computes and sends nothing
      frame-loss:share=0.01[,plane=,port=]       arrive spoilt, are sent again
      late-commands:mean=20us[,dist=,plane=]     circuits are asked for later
      late-lock:mean=5us[,dist=,plane=,port=]    receivers lock later
    dist is exponential (default), uniform or fixed; --seed seeds the draws. A run that cannot go
    on exits with 6 and says what is blocked; one that ends says FAULTED and what each fault did.
    """  # noqa: D301 (click takes the backspace for "do not wrap")
    from testbed.cli.stage import Stage
    from testbed.emulator.capabilities import require_emulation

    _refuse_replanning(chosen.pop("replan"))
    factor = _factor(chosen["dilation"])
    repetition = read_repetition(click.get_current_context())
    require_emulation()
    columns = list(_COLUMNS)
    if chosen["repeat"] > 1:
        columns.insert(3, _INTERVAL)
    with contextlib.ExitStack() as stack:
        if repetition is None:
            stage = Stage(stack, factor, dry=chosen["dry_run"])
            compete(chosen, stage.execute, columns)
        else:
            stage = Stage(stack, repetition.dilation, dry=chosen["dry_run"])
            entered = [repetition.contender]
            contest(repetition.job, entered, repetition.options, stage.execute, columns)


def _refuse_replanning(share: str | None) -> None:
    if share is not None:
        why = "its engine executes one plan, which is written before it starts"
        fix = "use fluxbed simulate --replan"
        raise UsageError("an emulated run cannot plan anew", "--replan", why, fix)


def _factor(text: str) -> float | None:
    if text == "auto":
        return None
    try:
        factor = float(text)
    except ValueError:
        factor = math.nan
    if not 0 < factor < math.inf:
        why = "it must be auto or a positive number"
        raise UsageError(f"{text!r} is no dilation", "--dilation", why, "write --dilation auto")
    return factor
