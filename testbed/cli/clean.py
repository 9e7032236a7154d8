"""`fluxbed clean`: remove what dead runs left behind."""

from __future__ import annotations

import click

from testbed.cli.output import format_option, print_records

__all__ = ["command"]


@click.command("clean")
@click.option("--run", "run_id", metavar="ID", help="Only what this run made.")
@format_option
def command(run_id: str | None, style: str) -> None:
    """Remove namespaces and links of runs whose process is gone; live runs are left alone.

    Example: sudo fluxbed clean
    """
    from testbed.emulator.cleanup import clean

    records = [{"removed": item} for item in clean(run_id)]
    print_records(records, [("removed", "removed", str)], style)
