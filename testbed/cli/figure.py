"""`fluxbed figure`: a figure for a paper, from the table of a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from testbed.cli.output import note
from topologies.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["command"]


@click.command("figure")
@click.argument("sweep", type=click.Path(path_type=Path))
@click.option("-x", required=True, metavar="COLUMN", help="As topology.delay.")
@click.option("-y", required=True, metavar="COLUMN", help="As iteration_ns.")
@click.option(
    "--by", default="scheduler", show_default=True, metavar="COLUMN", help="A line per value."
)
@click.option(
    "--facet",
    "facets",
    multiple=True,
    metavar="COLUMN",
    help="A panel per value; given twice, rows and columns.",
)
@click.option(
    "--where",
    multiple=True,
    metavar="COLUMN=VALUE",
    help="Only points like this; may be repeated, also with other values.",
)
@click.option("--relative-to", metavar="VALUE", help="Divide by the point of this line, as flux.")
@click.option(
    "--map",
    metavar="COLUMN",
    help="A map over x and y instead: this column's ratio of the best other to --relative-to.",
)
@click.option(
    "--interval",
    type=click.Choice(["quartiles", "range"]),
    default="quartiles",
    show_default=True,
    help="What bars around medians span.",
)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The figure to write: .pdf, .svg or .png.",
)
def command(
    sweep: Path,
    output: Path,
    where: tuple[str, ...],
    **chosen: Any,  # noqa: ANN401 (as a figure of an experiment has them)
) -> None:
    """Draw the table of SWEEP, a directory that sweep wrote, and print the figure's caption.

    Example: fluxbed figure runs/switch-speed -x topology.delay -y iteration_ns -o speed.pdf
    """
    from testbed.sweep import read_table
    from testbed.sweep.experiment import FigureSpec
    from testbed.sweep.figures import compose_figure, draw_picture

    spec = FigureSpec(name=output.stem, where=_conditions(where), **chosen)
    picture = compose_figure(read_table(sweep), spec)
    draw_picture(picture, output)
    click.echo(picture.caption)
    note(f"written: {output}")


def _conditions(written: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for item in written:
        name, equals, value = item.partition("=")
        if not equals:
            why = "a condition is COLUMN=VALUE"
            fix = "write scheduler=flux"
            raise UsageError(f"{item!r} is no condition", "--where", why, fix)
        found.setdefault(name, []).append(value)
    return found
