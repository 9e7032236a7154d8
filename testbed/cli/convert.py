"""`fluxbed convert`: any trace to a workload file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from testbed.cli.output import note
from testbed.cli.parameters import IMPORT, options

__all__ = ["command"]


@click.command("convert")
@click.argument("trace", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="Workload file: .workload.jsonl, also with .gz or .zst.",
)
@options(IMPORT)
def command(trace: tuple[Path, ...], output: Path, **chosen: Any) -> None:  # noqa: ANN401 (options)
    """Read TRACE (files, archives or directories of all ranks) and write one workload.

    Example: fluxbed convert examples/traces/llama-tp4-dp2 -o llama.workload.jsonl.gz
    """
    from testbed.cli.pipeline import load
    from testbed.files.workload import write_workload

    workload = load(trace, chosen)
    write_workload(workload, output)
    note(f"{output}: {workload.world} ranks, {len(workload.operations)} operations")
    for loss in workload.losses:
        example = f", as {loss.example}" if loss.example else ""
        note(f"  {loss.what}: {loss.count}{example}")
