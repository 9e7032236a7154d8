"""`fluxbed topologies`: what fabrics can be named, and what one looks like."""

from __future__ import annotations

import click

from testbed.cli.output import format_option, print_records

__all__ = ["command"]


@click.group("topologies", invoke_without_command=True)
@format_option
@click.pass_context
def command(context: click.Context, style: str) -> None:
    """List the topologies that -t accepts, or show one as a picture.

    Example: fluxbed topologies
    """
    if context.invoked_subcommand is not None:
        return
    from topologies.registry import describe, options_of

    records = [
        {"topology": name, "description": line, "options": options_of(name)}
        for name, line in describe().items()
    ]
    columns = [("topology", "topology", str), ("description", "description", str)]
    print_records(records, columns, style)


@command.command("show")
@click.argument("topology", metavar="TOPOLOGY")
@click.option(
    "--ranks", type=click.IntRange(2), default=8, show_default=True, help="Ranks to hold."
)
@click.option(
    "--format",
    "style",
    type=click.Choice(["text", "svg"]),
    default="text",
    show_default=True,
    help="A picture for this terminal, or one for a browser or a paper.",
)
def show(topology: str, ranks: int, style: str) -> None:
    """Draw TOPOLOGY: its nodes, planes, ports and rates.

    It is written as after -t: name[,key=value...], or the path of a topology file.

    Example: fluxbed topologies show hybrid,nodes=16 --format svg > hybrid.svg
    """
    from testbed.files.fabric import load_fabric

    fabric = load_fabric(topology, ranks)
    if style == "svg":
        from topologies.svg import svg as draw
    else:
        from topologies.picture import text as draw
    click.echo(draw(fabric))
