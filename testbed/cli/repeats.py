"""Several executions of the same: what their table row says.

The interval for the median comes from order statistics: with n independent executions, whatever
their distribution, the k-th smallest and the k-th largest enclose the median with probability
1 - 2 P(B < k), B binomial of n and 1/2. The narrowest such pair of at least 95 % is taken; fewer
than 6 executions have none.

Conover, *Practical Nonparametric Statistics*, section 3.2.
"""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["LEAST_EXECUTIONS", "median_interval", "together"]

_LEVEL: Final = 0.95
LEAST_EXECUTIONS: Final = 6
_COUNTED: Final = frozenset({"dropped", "drops", "lost_bytes"})  # one of them is one too many


def median_interval(samples: Sequence[float]) -> tuple[float, float] | None:
    """Return the bounds of a 95 % interval for the median; None with too few samples.

    >>> median_interval([3, 1, 2, 6, 5, 4])
    (1, 6)
    >>> median_interval([3, 1, 2, 6, 5]) is None
    True
    """
    ordered, count = sorted(samples), len(samples)
    outside, rank = 0.0, 0  # P(B < rank)
    while 2 * (outside + math.comb(count, rank) / 2**count) <= 1 - _LEVEL:
        outside += math.comb(count, rank) / 2**count
        rank += 1
    return (ordered[rank - 1], ordered[-rank]) if rank else None


def together(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one row for all: medians of numbers, sums of losses, and what is the same in each.

    `executions` keeps the rows, `interval_ns` is of `iteration_ns`. A number that is unknown in one
    row is unknown here. A single row is returned as it is.
    """
    if len(rows) == 1:
        return dict(rows[0])
    merged = {
        key: _merged([row.get(key) for row in rows], counted=key in _COUNTED) for key in rows[0]
    }
    times = [row.get("iteration_ns") for row in rows]
    known = [time for time in times if time is not None]
    merged["interval_ns"] = median_interval(known) if len(known) == len(rows) else None
    if rows[0].get("run") is not None:
        merged["run"] = f"{rows[0]['run']} and {len(rows) - 1} more"
    merged["overload"] = sorted({text for row in rows for text in row.get("overload") or ()})
    if None not in (kept := [row.get("pace_kept") for row in rows]):
        merged["pace_kept"] = all(kept)
    return {**merged, "executions": list(rows)}


def _merged(values: Sequence[Any], *, counted: bool) -> Any:  # noqa: ANN401 (what JSON can say)
    """Return one value for all: a median, or a sum where things are counted; also within tables."""
    first = values[0]
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        whole = all(isinstance(value, int) for value in values)
        middle = round(median(values)) if whole else median(values)
        return sum(values) if counted else middle
    if all(isinstance(value, dict) and value.keys() == first.keys() for value in values):
        return {key: _merged([value[key] for value in values], counted=counted) for key in first}
    return first if all(value == first for value in values) else None
