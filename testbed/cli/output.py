"""Tables on stdout, everything else on stderr; off a terminal nothing is shortened or moves."""

from __future__ import annotations

import csv
import json
import re
import sys
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["Column", "format_option", "note", "print_records"]

Column: TypeAlias = "tuple[str, str, Callable[[Any], str]]"
"""A column of a table: the record's key, the heading with its unit, and how a value is written."""

UNKNOWN = "-"
_NUMBER: Final = re.compile(r"[-+]?[0-9]|-$")

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
    told = [{row[index] for row in rows} - {UNKNOWN, ""} for index in range(len(columns))]
    known = [index for index, said in enumerate(told) if said or not rows]
    heads = [columns[index][1] for index in known]
    _print_fitting(heads, [[row[index] for index in known] for row in rows])


def _print_fitting(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table on a terminal: as columns, as rows where only those fit, or folded."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    upright = _width([heads, *rows])
    turned = [list(line) for line in zip(heads, *rows, strict=True)]
    if upright > console.width and len(rows) > 0 and _width(turned) <= console.width:
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(style="bold")
        for _ in rows:
            table.add_column(justify="right")
        for line in turned:
            table.add_row(*line)
    else:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for index, head in enumerate(heads):
            numbers = index > 0 and all(_NUMBER.match(row[index]) for row in rows)
            table.add_column(head, justify="right" if numbers else "left", overflow="fold")
        for row in rows:
            table.add_row(*row)
    console.print(table)


def _width(lines: Sequence[Sequence[str]]) -> int:
    """Return how wide a table of these lines is, with two spaces between its columns."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return sum(widths) + 2 * (len(widths) - 1)


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
