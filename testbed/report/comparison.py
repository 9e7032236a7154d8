"""The page that shows several runs side by side."""

from __future__ import annotations

import os
from html import escape
from typing import TYPE_CHECKING
from urllib.parse import quote

from testbed.report.colours import base_of, colours_of
from testbed.report.data import percent
from testbed.report.page import document
from topologies.units import format_bytes, format_duration, format_number

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from testbed.files.compare import Comparison

__all__ = ["comparison_page"]

_ROWS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("iteration_ns", "Iteration", format_duration),
    ("exposed_comm_ns", "Exposed communication", format_duration),
    ("nic_peak_bytes_eager", "NIC peak, eager", format_bytes),
    ("nic_peak_bytes_paced", "NIC peak, paced", format_bytes),
    ("reconfigurations", "Reconfigurations per iteration", format_number),
    ("circuit_utilisation", "Circuits in use, of the time with light", percent),
)


def comparison_page(comparisons: Sequence[Comparison], place: Path) -> bytes:
    """Return the page: bars per number, and a table of values, ratios and predictions.

    Reports are linked from `place`, the directory the page will be in.
    """
    names = _names(comparisons)
    title = ", ".join(names) if len(names) <= 3 else f"{len(names)} runs"  # noqa: PLR2004
    reference = next(name for each, name in zip(comparisons, names, strict=True) if each.reference)
    cards = [_bars(comparisons, names, *row) for row in _ROWS]
    body = (
        f"<header><h1>{escape(title)}</h1><p>{escape(comparisons[0].run.manifest.topology)}; "
        f"ratios are to {escape(reference)}</p></header>"
        f'<div class="columns broad">{"".join(cards)}</div>{_table(comparisons, names, place)}'
    )
    return document(f"fluxbed: {title}", body)


def _names(comparisons: Sequence[Comparison]) -> list[str]:
    schedulers = [each.run.manifest.scheduler for each in comparisons]
    origins = {each.run.manifest.origin for each in comparisons}
    names = [
        f"{each.run.manifest.scheduler}, {each.run.manifest.origin}"
        if len(origins) > 1
        else each.run.manifest.scheduler
        for each in comparisons
    ]
    unique = len(set(names)) == len(names)
    return names if unique else [f"{s} ({k + 1})" for k, s in enumerate(schedulers)]


def _bars(
    comparisons: Sequence[Comparison],
    names: Sequence[str],
    field: str,
    title: str,
    write: Callable[[float], str],
) -> str:
    most = max((each.values[field] or 0 for each in comparisons), default=0) or 1
    colours = colours_of([each.run.manifest.scheduler for each in comparisons])
    rows = []
    for each, name in zip(comparisons, names, strict=True):
        scheduler = each.run.manifest.scheduler
        value, ratio = each.values[field], each.ratios[field]
        wide = 100 * (value or 0) / most
        unknown = each.run.manifest.status if each.failure else "unknown"
        text = unknown if value is None else write(value)
        times = "" if ratio is None or each.reference else f"{format_number(ratio)} x"
        look = "" if base_of(scheduler) == scheduler else ' class="tuned"'
        rows.append(
            f"<tr><td>{escape(name)}</td>"
            f'<td><div{look} style="--c:{colours[scheduler]};width:{wide:.2f}%"></div></td>'
            f'<td class="number whole">{text}</td><td class="number whole">{times}</td></tr>'
        )
    table = f'<table class="bars">{"".join(rows)}</table>'
    return f'<section class="card"><h2>{title}</h2>{table}</section>'


def _table(comparisons: Sequence[Comparison], names: Sequence[str], place: Path) -> str:
    rows = []
    for each, name in zip(comparisons, names, strict=True):
        link = quote(os.path.relpath(each.run.path / "report.html", place))
        predicted = "-" if each.predicted_ns is None else format_duration(each.predicted_ns)
        off = "-" if each.off is None else f"{100 * each.off:+.2f} %"
        reached = each.values["iteration_ns"]
        rows.append(
            f'<tr><td><a href="{escape(link)}">{escape(name)}</a></td>'
            f"<td>{each.run.manifest.origin}</td>"
            f"<td>{escape(each.failure or 'ok')}</td>"
            f'<td class="number">{"-" if reached is None else format_duration(reached)}</td>'
            f'<td class="number">{predicted}</td><td class="number">{off}</td>'
            f'<td class="path">{escape(str(each.run.path))}</td></tr>'
        )
    head = "".join(
        f"<th{' class=number' if number else ''}>{name}</th>"
        for name, number in (
            ("run", 0), ("origin", 0), ("ended", 0), ("iteration", 1), ("predicted", 1),
            ("off by", 1), ("directory", 0),
        )
    )  # fmt: skip
    return (
        '<section class="card"><h2>Predicted and reached</h2>'
        f'<div class="wide"><table><tr>{head}</tr>{"".join(rows)}</table></div></section>'
    )
