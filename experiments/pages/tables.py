"""What all pages need: cells, ratios between schedulers of a cell, and Markdown."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from testbed.report.figure import settings_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

Row = dict[str, Any]
NOT_OF_A_CELL: Final = {"scheduler", "phases", "label"}
REFERENCES: Final = ("packet-ideal", "packet-fair")
TIED: Final = 1.001  # what is within a thousandth counts as equal


def good(frame: pl.DataFrame, mode: str = "simulate") -> pl.DataFrame:
    """Keep the points of one mode that have a result."""
    return frame.filter((pl.col("mode") == mode) & (pl.col("status") == "ok"))


def as_planned(frame: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the ablation's points, and those of them at the usual budget with nothing else varied.

    A table without a point that varies a setting has no column of it: then it is null everywhere.
    """
    varied = ("lookahead", "expansion.split")
    missing = [pl.lit(None).alias(name) for name in varied if name not in frame.columns]
    whole = frame.with_columns(missing)
    usual = pl.col("budget") == "500ms"
    return whole, whole.filter(usual, *(pl.col(name).is_null() for name in varied))


def cells(frame: pl.DataFrame) -> list[dict[str, Row]]:
    """Group points by workload and fabric: each cell has its schedulers' rows by name."""
    keys = [name for name in settings_of(frame) if name not in NOT_OF_A_CELL]
    found: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in frame.iter_rows(named=True):
        found.setdefault(tuple(row[key] for key in keys), {})[row["scheduler"]] = row
    return list(found.values())


def time_of(row: Row) -> float:
    """Return the iteration time: over start phases where there were several, their mean."""
    mean = row.get("iteration_mean_ns")
    return float(row["iteration_ns"] if mean is None else mean)


def ratios(
    grouped: Iterable[Mapping[str, Row]],
    scheduler: str,
    value: Callable[[Row], float] = time_of,
    to: str = "flux",
) -> list[tuple[float, Row]]:
    """Return `value` of `scheduler` over that of `to`, with the scheduler's row, in every cell.

    A cell without either is left out; over nothing it is infinite, nothing over nothing 1.
    """
    found = []
    for cell in grouped:
        if scheduler not in cell or to not in cell:
            continue
        own, other = value(cell[scheduler]), value(cell[to])
        ratio = own / other if other else (math.inf if own else 1.0)
        found.append((ratio, cell[scheduler]))
    return found


def best_other(cell: Mapping[str, Row], leave: Sequence[str] = ()) -> Row | None:
    """Return the row of the shortest iteration that is neither Flux's nor a reference's."""
    others = [
        row for name, row in cell.items() if name != "flux" and name not in (*REFERENCES, *leave)
    ]
    return min(others, key=time_of, default=None)


def middle(values: Iterable[float]) -> float:
    """Return the median; nan of nothing."""
    ordered = sorted(values)
    count = len(ordered)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2 if ordered else math.nan


def times(ratio: float) -> str:
    """Write a ratio: three digits, a cross.

    >>> times(11.284), times(1918.2), times(float("inf"))
    ('11.3x', '1918x', 'unbounded')
    """
    if math.isinf(ratio):
        return "unbounded"
    return f"{ratio:.0f}x" if ratio >= 100 else f"{ratio:.3g}x"  # noqa: PLR2004 (three digits)


def percent(fraction: float) -> str:
    """Write a difference with its sign.

    >>> percent(0.00331)
    '+0.33 %'
    """
    return f"{100 * fraction:+.2f} %"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
