"""`fluxbed topologies`: what fabrics can be named."""

from __future__ import annotations

import click

from testbed.cli.output import format_option, print_records

__all__ = ["command"]


@click.command("topologies")
@format_option
def command(style: str) -> None:
    """List the topologies that -t accepts.

    Example: fluxbed topologies
    """
    from topologies.registry import describe

    records = [{"topology": name, "description": line} for name, line in describe().items()]
    columns = [("topology", "topology", str), ("description", "description", str)]
    print_records(records, columns, style)
