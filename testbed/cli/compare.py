"""`fluxbed compare`: runs beside the first of them that finished."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from testbed.cli.output import Column, format_option, note, print_records
from topologies.errors import InputError
from topologies.units import format_duration, format_number

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["command", "run_directories"]


def _times(ratio: float) -> str:
    return f"{format_number(ratio)}x"


def _signed(fraction: float) -> str:
    return f"{100 * fraction:+.2f} %"


_COLUMNS: Final[list[Column]] = [
    ("scheduler", "scheduler", str),
    ("origin", "origin", str),
    ("status", "status", str),
    ("iteration_ns", "iteration", format_duration),
    ("iteration_ns_ratio", "to the first", _times),
    ("predicted_ns", "predicted", format_duration),
    ("off", "off by", _signed),
    ("exposed_comm_ns_ratio", "exposed comm", _times),
    ("nic_peak_bytes_eager_ratio", "NIC peak eager", _times),
    ("nic_peak_bytes_paced_ratio", "NIC peak paced", _times),
    ("reconfigurations_ratio", "reconfigurations", _times),
    ("pace_kept", "pace", lambda kept: "kept" if kept else "NOT KEPT"),
    ("faulted", "faults", lambda faulted: "FAULTED" if faulted else "none"),
    ("place", "run", str),
]


def run_directories(paths: Sequence[Path]) -> list[Path]:
    """Return the runs in `paths`: run directories, or directories that hold some."""
    from testbed.files.rundir import find_runs

    found: list[Path] = []
    for path in paths:
        inside = find_runs(path)
        if not inside:
            why = "neither it nor a directory in it has a manifest.json"
            raise InputError("there is no run", str(path), why, "name a run directory")
        found += inside
    return found


def _abbreviate(records: list[dict[str, Any]]) -> None:
    """Add what tells each run's directory from the others'."""
    places = [Path(record["run"]).absolute() for record in records]
    shared = os.path.commonpath([place.parent for place in places])
    for record, place in zip(records, places, strict=True):
        record["place"] = str(place.relative_to(shared))


@click.command("compare")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write an HTML page that shows them side by side.",
)
@format_option
def command(runs: tuple[Path, ...], output: Path | None, style: str) -> None:
    """Show RUNS (or directories of runs) as ratios to the first that finished.

    Measured runs stand against their prediction; one that failed has a row that says so.

    Example: fluxbed compare runs/demo/bvn runs/demo/flux
    """
    from testbed.files.compare import compare_runs
    from testbed.files.rundir import read_run
    from testbed.report import write_comparison

    paths = run_directories(runs)
    compared = compare_runs([read_run(path) for path in paths])
    records: list[dict[str, Any]] = [
        {
            "scheduler": one.run.manifest.scheduler,
            "origin": one.run.manifest.origin,
            "status": one.run.manifest.status,
            **one.values,
            **{f"{name}_ratio": ratio for name, ratio in one.ratios.items()},
            "predicted_ns": one.predicted_ns,
            "off": one.off,
            "pace_kept": one.run.summary.pace_kept,
            "faulted": bool(one.run.manifest.faults),
            "run": str(one.run.path),
        }
        for one in compared
    ]
    if style == "table":
        _abbreviate(records)
    print_records(records, _COLUMNS, style)
    for one in compared:
        if one.failure:
            note(f"{one.run.path}: {one.failure}")
    if output is not None:
        note(f"written: {write_comparison(paths, output)}")
