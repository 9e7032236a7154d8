"""Drawing a figure with matplotlib: legible in a column of a paper and safe for colour-blind eyes.

No series is told apart by colour alone: each has its own mark. `-tuned` has the colour of what it
tunes, dashed.
"""

from __future__ import annotations

import math
import textwrap
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from testbed.report.colours import base_of, colours_of
from testbed.report.figure import name_of
from topologies.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from testbed.report.figure import Panel, Picture, Series

__all__ = ["FORMATS", "draw", "page"]

FORMATS: Final = (".pdf", ".svg", ".png")
_MARKS: Final = "osD^vP*X<>ph"
_DASHES: Final = {"tuned": (0, (4, 1.5)), "reference": (0, (1, 1.2)), "plain": "solid"}
_SCALES: Final = {
    "_ns": ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns")),
    "_bps": ((1e12, "Tb/s"), (1e9, "Gb/s"), (1e6, "Mb/s"), (1.0, "b/s")),
    "_bytes": ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")),
}
_LOG_X: Final = 16  # largest over smallest value from which an axis is logarithmic
_LOG_Y: Final = 8
_FEW_DECADES: Final = 300  # below, 2 and 5 are labelled too
_PLAIN_BELOW: Final = 50_000  # a larger axis counts in powers of ten
_PANEL_INCHES: Final = (3.1, 2.35)
_LEGEND_INCHES: Final = 1.5
_LETTERS_PER_INCH: Final = 17.8  # of a caption
_STYLE: Final[dict[Any, Any]] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e7ea",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "fluxbed",
}


def _scale(column: str, values: Iterable[float]) -> tuple[float, str]:
    """Return what to divide by, and the unit that makes the middle of `values` a handy number."""
    sizes = {abs(value) for value in values if value}
    steps = next((steps for unit, steps in _SCALES.items() if unit in column), None)
    if steps is None or not sizes:
        return 1.0, ""
    middle = math.exp(sum(map(math.log, sizes)) / len(sizes))
    return next(((size, unit) for size, unit in steps if middle >= size), steps[-1])


def _label(column: str, unit: str) -> str:
    return name_of(column) + (f" ({unit})" if unit else "")


def _is_wide(values: Sequence[float], ratio: float) -> bool:
    return min(values) > 0 and max(values) / min(values) >= ratio


def _looks(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Choose colour, mark and dash of every series: `-tuned` as its base, references dotted."""
    colours = colours_of(names)
    looks = {}
    for number, name in enumerate(names):
        base = base_of(name)
        kind = "tuned" if base != name else "reference" if base.startswith("packet-") else "plain"
        looks[name] = {
            "color": colours[name],
            "marker": _MARKS[number % len(_MARKS)],
            "linestyle": _DASHES[kind],
            "linewidth": 2.0 if name == "flux" else 1.2,
            "zorder": 4 if name == "flux" else 3,
            "markerfacecolor": "white" if kind == "tuned" else colours[name],
        }
    return looks


def draw(picture: Picture, output: Path) -> None:
    """Write `picture` to a .pdf, .svg or .png file. Raises `UsageError` where it cannot be."""
    grid = _grid(picture)
    title = name_of(picture.y)
    with page(
        output,
        title,
        picture.caption,
        panel_inches=_PANEL_INCHES,
        grid=grid,
        beside_inches=_LEGEND_INCHES,
    ) as made:
        figure, axes = made
        _fill(picture, axes, grid[1])
        handles: dict[str, Any] = {}
        for each in axes.flat:
            found, labels = each.get_legend_handles_labels()
            handles |= dict(zip(labels, found, strict=True))
        figure.legend(handles.values(), handles, loc="outside right upper", title=picture.by)


@contextmanager
def page(
    output: Path,
    title: str,
    caption: str,
    *,
    panel_inches: tuple[float, float],
    grid: tuple[int, int],
    beside_inches: float = 0.0,
) -> Iterator[tuple[Figure, Any]]:
    """Yield a figure and its axes, rows by columns, over its caption; written at the end.

    Raises `UsageError` where `output` is no figure's name or cannot be written.
    """
    if output.suffix not in FORMATS:
        why = f"figures are {', '.join(FORMATS)}"
        raise UsageError("it is no kind of figure", str(output), why, "name a .pdf file")
    import matplotlib as mpl
    from matplotlib.figure import Figure

    rows, columns = grid
    width = panel_inches[0] * columns + beside_inches
    lines = textwrap.wrap(caption, width=round(width * _LETTERS_PER_INCH))
    below = 0.12 + 0.135 * len(lines)
    height = panel_inches[1] * rows + below + 0.15
    dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(output.suffix, {})
    about = {"Title": title, _ABOUT[output.suffix]: caption}
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        share = below / height
        figure.get_layout_engine().set(rect=(0, share, 1, 1 - share))  # type: ignore[union-attr,call-arg]
        yield figure, figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        figure.text(0.06 / width, 0.05 / height, "\n".join(lines), fontsize=7, va="bottom")
        try:
            figure.savefig(output, dpi=160, metadata={**about, **dates})
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise UsageError("it cannot be written", str(output), why, "choose another") from error


_ABOUT: Final = {".pdf": "Subject", ".svg": "Description", ".png": "Description"}


def _grid(picture: Picture) -> tuple[int, int]:
    """Return rows and columns: of one facet side by side, of two the first down, second across."""
    if len(picture.facets) == 2:  # noqa: PLR2004 (both ways)
        rows = len({panel.titles[0] for panel in picture.panels})
        return rows, len({panel.titles[1] for panel in picture.panels})
    across = min(len(picture.panels), 3)
    return math.ceil(len(picture.panels) / across), across


def _place(picture: Picture, panel: Panel, number: int, columns: int) -> tuple[int, int]:
    if len(picture.facets) == 2:  # noqa: PLR2004 (both ways)
        places = [list(dict.fromkeys(p.titles[k] for p in picture.panels)) for k in range(2)]
        row, column = (
            where.index(title) for where, title in zip(places, panel.titles, strict=True)
        )
        return row, column
    return divmod(number, columns)


def _fill(picture: Picture, axes: Any, columns: int) -> None:  # noqa: ANN401 (an array of axes)
    every = [series for panel in picture.panels for series in panel.series]
    names = list(dict.fromkeys(series.name for series in every))
    looks = _looks(names)
    xs = [x for series in every for x in series.x]
    ys = [value for series in every for value in (*series.low, *series.median, *series.high)]
    words = list(dict.fromkeys(map(str, xs))) if isinstance(xs[0], str | bool) else None
    x_scale, x_unit = (1.0, "") if words else _scale(picture.x, xs)
    y_scale, y_unit = (1.0, "") if picture.relative_to else _scale(picture.y, ys)
    filled = set()
    for number, panel in enumerate(picture.panels):
        row, column = _place(picture, panel, number, columns)
        filled.add((row, column))
        at = axes[row, column]
        for series in panel.series:
            shift = (names.index(series.name) - len(names) / 2) * 0.06
            x = [words.index(str(v)) + shift if words else v / x_scale for v in series.x]
            _line(at, series, x, y_scale, looks[series.name], joined=words is None)
        title = ", ".join(
            f"{name_of(key)} {value}"
            for key, value in zip(picture.facets, panel.titles, strict=True)
        )
        at.set_title(title)
    _finish(axes, filled)
    first = axes[0, 0]
    if words:
        for at in axes[-1]:
            at.set_xticks(range(len(words)), words, rotation=35, ha="right")
    elif _is_wide(xs, _LOG_X):
        _logarithmic(first, "x")
    if _is_wide(ys, _LOG_Y):
        _logarithmic(first, "y")
    else:
        first.set_ylim(bottom=0)
    y_label = _label(picture.y, y_unit)
    if picture.relative_to:
        y_label = f"{name_of(picture.y)}\nover that of {picture.relative_to}"
    for at in axes[:, 0]:
        at.set_ylabel(y_label)
    for at in axes[-1]:
        at.set_xlabel(_label(picture.x, x_unit))


def _finish(axes: Any, filled: set[tuple[int, int]]) -> None:  # noqa: ANN401 (an array of axes)
    rows, columns = axes.shape
    for row in range(rows):
        for column in range(columns):
            if (row, column) not in filled:
                axes[row, column].set_visible(False)


def _line(
    at: Axes,
    series: Series,
    x: Sequence[float],
    scale: float,
    look: dict[str, Any],
    *,
    joined: bool,
) -> None:
    y = [value / scale for value in series.median]
    errors = [
        [(m - low) / scale for m, low in zip(series.median, series.low, strict=True)],
        [(high - m) / scale for m, high in zip(series.median, series.high, strict=True)],
    ]
    bars = errors if any(map(any, errors)) else None
    look = look if joined else {**look, "linestyle": "none"}
    at.errorbar(x, y, yerr=bars, label=series.name, capsize=2, elinewidth=0.8, **look)


def _logarithmic(at: Axes, which: str) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    getattr(at, f"set_{which}scale")("log")
    axis = getattr(at, f"{which}axis")
    least, most = getattr(at, f"get_{which}lim")()
    finely = most / least < _FEW_DECADES
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if finely else (1,), numticks=12))
    if most < _PLAIN_BELOW:
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
