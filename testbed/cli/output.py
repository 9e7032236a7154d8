"""Tables on stdout, everything else on stderr; off a terminal nothing is shortened or moves."""

from __future__ import annotations

import csv
import json
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = ["Column", "format_option", "note", "print_records", "progress_line"]

Column: TypeAlias = "tuple[str, str, Callable[[Any], str]]"
"""A column of a table: the record's key, the heading with its unit, and how a value is written."""

UNKNOWN = "-"

format_option = click.option(
    "--format",
    "style",
    type=click.Choice(["table", "json", "csv"]),
    default="table",
    show_default=True,
    help="How results are written to stdout.",
)


def note(text: str) -> None:
    """Tell the user something that is not a result."""
    click.echo(text, err=True)


def _print_table(records: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> None:
    rows = [
        [UNKNOWN if record.get(key) is None else write(record[key]) for key, _, write in columns]
        for record in records
    ]
    if not sys.stdout.isatty():
        heads = [head for _, head, _ in columns]
        widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
        for row in (heads, *rows):
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            click.echo("  ".join(cells).rstrip())
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, (_, head, _) in enumerate(columns):
        table.add_column(head, justify="left" if index == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def print_records(
    records: Sequence[Mapping[str, Any]], columns: Sequence[Column], style: str
) -> None:
    """Write `records` as `style`; a table shows `columns`, json and csv keep every key."""
    if style == "json":
        click.echo(json.dumps(list(records), indent=2))
    elif style == "csv":
        keys = list(dict.fromkeys(key for record in records for key in record))
        writer = csv.DictWriter(sys.stdout, keys, lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {key: json.dumps(v) if isinstance(v, dict | list) else v for key, v in record.items()}
            for record in records
        )
    else:
        _print_table(records, columns)


@contextmanager
def progress_line() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the present state: one moving line, or nothing off a terminal."""
    if not sys.stderr.isatty():
        yield lambda _text: None
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(Text(""), console=Console(stderr=True), transient=True, refresh_per_second=5) as live:
        yield lambda text: live.update(Text(text, no_wrap=True, overflow="ellipsis"))
