"""`fluxbed report`: (re)write the report of a run."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.compare import run_directories
from testbed.cli.output import note

__all__ = ["command"]


@click.command("report")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--format",
    "form",
    type=click.Choice(["html", "md", "csv", "json"]),
    default="html",
    show_default=True,
    help="html is written into the run; the others go to stdout.",
)
def command(runs: tuple[Path, ...], form: str) -> None:
    """Write report.html into each of RUNS, or their summaries to stdout.

    Example: fluxbed report runs/demo --format md
    """
    from testbed.report import render, write_report

    paths = run_directories(runs)
    if form == "html":
        for path in paths:
            note(f"written: {write_report(path)}")
    else:
        click.echo(render(paths, form), nl=False)
