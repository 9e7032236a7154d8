"""`fluxbed doctor`: what this machine can and cannot do."""

from __future__ import annotations

from typing import Final

import click

from testbed.cli.output import Column, format_option, note, print_records

__all__ = ["command"]


def _number(value: float) -> str:
    return f"{value:,.6g}"


_COLUMNS: Final[list[Column]] = [
    ("name", "capability", str),
    ("state", "state", str),
    ("detail", "found", str),
    ("fix", "what to do", lambda fix: fix or ""),
]
_MEASURES: Final[list[Column]] = [("measure", "measure", str), ("value", "value", _number)]


@click.command("doctor")
@click.option("--deep", is_flag=True, help="Also build two hosts and measure (root).")
@format_option
@click.pass_context
def command(context: click.Context, style: str, *, deep: bool) -> None:
    """Say what this machine has for the emulated fabric; exit 4 when something needed is missing.

    Example: fluxbed doctor
    """
    from testbed.emulator.capabilities import check_machine, deep_check, lack_of

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
    lacking = lack_of(found)
    if deep and lacking is None:
        measured = deep_check()
        rows = [{"measure": name, "value": value} for name, value in measured.facts().items()]
        print_records(rows, _MEASURES, style)
        note(measured.verdict)
    if lacking is not None:
        note(f"{lacking}; everything but `run` works without it")
        context.exit(lacking.exit_code)
