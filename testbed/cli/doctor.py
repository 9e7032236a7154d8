"""`fluxbed doctor`: what this machine can and cannot do."""

from __future__ import annotations

import dataclasses

import click

from testbed.cli.output import Column, format_option, note, print_records

__all__ = ["command"]

_COLUMNS: list[Column] = [
    ("name", "capability", str),
    ("state", "state", str),
    ("detail", "found", str),
    ("fix", "what to do", lambda fix: fix or ""),
]


@click.command("doctor")
@click.option("--deep", is_flag=True, help="Also build two hosts and measure (root).")
@format_option
@click.pass_context
def command(context: click.Context, style: str, *, deep: bool) -> None:
    """Say what this machine has for the emulated fabric; exit 4 when something needed is missing.

    Example: sudo fluxbed doctor --deep
    """
    from testbed.emulator.capabilities import check_machine, deep_check, require_emulation

    found = check_machine()
    records = [
        {
            "name": one.name,
            "state": "ok" if one.ok else "missing" if one.required else "worse",
            "detail": one.detail,
            "fix": "" if one.ok else one.fix,
        }
        for one in found
    ]
    print_records(records, _COLUMNS, style)
    if deep:
        require_emulation()
        measured = dataclasses.asdict(deep_check())
        rows = [{"measure": key, "value": value} for key, value in measured.items()]
        print_records(rows, [("measure", "measure", str), ("value", "value", str)], style)
    if any(one.required and not one.ok for one in found):
        note("the emulated fabric does not run here; everything but `run` does")
        context.exit(4)
