"""`fluxbed report`: (re)write the report of a run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from testbed.cli.compare import run_directories
from testbed.cli.output import note
from topologies.errors import UsageError
from topologies.units import parse_duration_ns

if TYPE_CHECKING:
    from testbed.files.rundir import Run

__all__ = ["command"]

_ITERATIONS: Final = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")


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
@click.option(
    "--iterations",
    metavar="FIRST-LAST",
    help="Draw these, counted from 0.  [default: all, of a very long run a part]",
)
@click.option("--span", metavar="FROM-TO", help="Draw this stretch of virtual time, as 5ms-6ms.")
def command(runs: tuple[Path, ...], form: str, iterations: str | None, span: str | None) -> None:
    """Write report.html into each of RUNS, or their summaries to stdout.

    The timeline of a very long run shows a part of it; --iterations and --span choose which, and
    write timeline.json likewise.

    Example: fluxbed report runs/demo --format md
    """
    from testbed.files.rundir import read_run
    from testbed.report import render, rewrite_timeline, write_report

    if iterations is not None and span is not None:
        why = "each of them says what to draw"
        raise UsageError("--iterations and --span are given", "command line", why, "give one")
    paths = run_directories(runs)
    if form != "html":
        click.echo(render(paths, form), nl=False)
        return
    for path in paths:
        asked = None if span is None else _span(span)
        if iterations is not None:
            asked = _iterations(read_run(path), iterations)
        rewrite_timeline(path, asked)
        note(f"written: {write_report(path, asked)}")


def _span(text: str) -> tuple[int, int]:
    """Read `5ms-6ms`; raises `UsageError`.

    >>> _span("5ms-6ms")
    (5000000, 6000000)
    """
    begin, dash, end = text.partition("-")
    if not dash:
        why = "a stretch of time has a beginning and an end"
        raise UsageError(f"{text!r} is no stretch of time", "--span", why, "write 5ms-6ms")
    found = parse_duration_ns(begin), parse_duration_ns(end)
    if found[0] >= found[1]:
        why = "it ends before it begins"
        raise UsageError(f"{text!r} is no stretch of time", "--span", why, "write 5ms-6ms")
    return found


def _iterations(run: Run, text: str) -> tuple[int, int]:
    """Return when the iterations that `text` names, as 3 or 3-5, begin and end."""
    from testbed.files.excerpt import iterations_ns

    match = _ITERATIONS.fullmatch(text)
    found = None
    if match and (run.path / "tasks.parquet").is_file():
        found = iterations_ns(run.timeline(), int(match[1]), int(match[2] or match[1]))
    if found is None:
        why = f"iterations 0 to {run.manifest.iterations - 1} were executed"
        if match and run.manifest.status != "ok":
            why = f"the run is {run.manifest.status} and did not finish them"
        fix = "write one of them, or the first and the last as 3-5"
        raise UsageError(f"there is no iteration {text!r}", str(run.path), why, fix)
    return found
