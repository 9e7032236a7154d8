"""`fluxbed schedulers`: what can decide circuits."""

from __future__ import annotations

import click

from testbed.cli.output import format_option, print_records

__all__ = ["command"]


@click.command("schedulers")
@format_option
def command(style: str) -> None:
    """List the schedulers that -s accepts.

    Example: fluxbed schedulers
    """
    from scheduler.policies.registry import describe

    records = [{"scheduler": name, "description": line} for name, line in describe().items()]
    columns = [("scheduler", "scheduler", str), ("description", "description", str)]
    print_records(records, columns, style)
