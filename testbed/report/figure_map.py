"""Maps for papers: over two quantities, what the best of the others needs, and who suffices.

A tile is one workload on one fabric, where x and y put it. Its colour and number are the least
`value` of all but the reference over that of the reference; its letters name who suffices, that is
needs at most `SUFFICES` times as much. Below 1 the reference is beaten.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from testbed.report.figure import as_text, as_word, divided, name_of, rows_like, said_of
from topologies.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

__all__ = ["SUFFICES", "Map", "Tile", "compose_map", "draw_map"]

SUFFICES: Final = 1.02
_PANEL_INCHES: Final = (4.3, 2.9)
_DARK: Final = 0.45  # of the colours: letters on darker ones are white


@dataclass(frozen=True, slots=True)
class Tile:
    """One cell: where it is, the least ratio, whose that is, and who suffices."""

    x: float
    y: float
    ratio: float
    best: str
    sufficing: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Map:
    """All that is drawn. `letters` stand for series, `panels` are by the values of the facets."""

    x: str
    y: str
    value: str
    relative_to: str
    letters: dict[str, str]
    facets: tuple[str, ...]
    panels: dict[tuple[str, ...], tuple[Tile, ...]]
    caption: str


def compose_map(
    frame: pl.DataFrame,
    *,
    x: str,
    y: str,
    value: str,
    relative_to: str | None,
    by: str = "scheduler",
    facets: Sequence[str] = (),
    where: Mapping[str, Sequence[str]] | None = None,
) -> Map:
    """Choose and reduce what `frame`, the table of a sweep, holds.

    References (`packet-ideal`, `packet-fair`) do not compete. Raises `UsageError` for a column that
    does not exist or has no numbers, where nothing is left, and where points share a place.
    """
    if relative_to is None:
        why = "its colours are ratios"
        raise UsageError("a map is of nothing", "map", why, "add --relative-to, as flux")
    frame = rows_like(frame, (x, y, value, by, *facets), where or {}, "map")
    for name in (x, y, value):
        if not frame[name].dtype.is_numeric():
            why = f"it is of type {frame[name].dtype}"
            raise UsageError(f"{name!r} has no numbers", "map", why, "choose another column")
    frame = frame.filter(pl.all_horizontal(pl.col(x, y, value).is_not_null()))
    if not frame.is_empty():
        frame = divided(frame, value, by, relative_to)
    others = frame.filter(as_text(by) != relative_to, ~as_text(by).str.starts_with("packet-"))
    if others.is_empty():
        why = f"no point of {relative_to} has another's beside it"
        raise UsageError("nothing is left to draw", "map", why, "ask for less with --where")
    letters = _letters([as_word(each) for each in others[by].unique(maintain_order=True)])
    panels: dict[tuple[str, ...], tuple[Tile, ...]] = {}
    groups = others.group_by(facets, maintain_order=True) if facets else [((), others)]
    for key, part in groups:
        panels[tuple(map(as_word, key))] = _tiles(part, x, y, value, by)
    said = said_of(frame, value, (x, y, by, *facets))
    legend = ", ".join(f"{letter} {name}" for name, letter in letters.items())
    first = (
        f"{name_of(value)} of the best other scheduler over that of {relative_to}, against "
        f"{name_of(x)} and {name_of(y)}. Letters: who suffices, taking at most "
        f"{100 * (SUFFICES - 1):.0f} % more than {relative_to} ({legend})."
    )
    return Map(
        x=x,
        y=y,
        value=value,
        relative_to=relative_to,
        letters=letters,
        facets=tuple(facets),
        panels=panels,
        caption=" ".join([first[:1].upper() + first[1:], *said]),
    )


def _letters(names: Sequence[str]) -> dict[str, str]:
    """Give every name the first of its letters that is free, else a number.

    >>> _letters(["static", "greedy", "sunflow"])
    {'static': 'S', 'greedy': 'G', 'sunflow': 'U'}
    """
    found: dict[str, str] = {}
    for name in names:
        free = (c.upper() for c in name if c.isalpha() and c.upper() not in found.values())
        found[name] = next(free, str(len(found)))
    return found


def _tiles(part: pl.DataFrame, x: str, y: str, value: str, by: str) -> tuple[Tile, ...]:
    tiles = []
    for (at_x, at_y), cell in part.group_by(x, y, maintain_order=True):
        ratios = dict(zip(map(as_word, cell[by]), cell[value].to_list(), strict=True))
        if len(ratios) < len(cell):
            what = f"several points share {x} = {at_x:g} and {y} = {at_y:g}"
            why = "a tile is one workload on one fabric"
            raise UsageError(what, "map", why, "give another --facet, or less with --where")
        best = min(ratios, key=ratios.__getitem__)
        sufficing = tuple(name for name, ratio in ratios.items() if ratio <= SUFFICES)
        tiles.append(Tile(float(at_x), float(at_y), ratios[best], best, sufficing))
    return tuple(tiles)


def draw_map(picture: Map, output: Path) -> None:
    """Write `picture` to a .pdf, .svg or .png file. Raises `UsageError` where it cannot be."""
    from testbed.report.figure_drawing import page

    title, grid = name_of(picture.value), (1, len(picture.panels))
    with page(output, title, picture.caption, panel_inches=_PANEL_INCHES, grid=grid) as made:
        figure, axes = made
        shade = _shades(picture)
        rows = sorted({tile.y for tiles in picture.panels.values() for tile in tiles})
        for at, (titles, tiles) in zip(axes[0], picture.panels.items(), strict=True):
            _fill(at, tiles, rows, picture, shade)
            named = zip(picture.facets, titles, strict=True)
            at.set_title(", ".join(f"{name_of(key)} {title}" for key, title in named))
            at.set_xlabel(name_of(picture.x))
        ends = [_span(tiles, tile) for tiles in picture.panels.values() for tile in tiles]
        axes[0, 0].set_xlim(min(left for left, _ in ends), max(right for _, right in ends))
        axes[0, 0].set_ylabel(name_of(picture.y))
        label = f"{name_of(picture.value)}, best other over {picture.relative_to}"
        bar = figure.colorbar(shade, ax=axes, label=label, pad=0.02)
        bar.ax.yaxis.set_major_formatter("{x:g}")
        bar.ax.yaxis.set_minor_formatter("{x:g}")


def _shades(picture: Map) -> Any:  # noqa: ANN401 (a matplotlib.cm.ScalarMappable)
    """Return what gives a ratio its colour: cividis, made for colour-blind eyes, logarithmic."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm

    ratios = [tile.ratio for tiles in picture.panels.values() for tile in tiles]
    least, most = min(1.0, *ratios), max(SUFFICES, *ratios)
    return ScalarMappable(LogNorm(least, most), "cividis_r")


def _fill(
    at: Axes,
    tiles: Sequence[Tile],
    rows: Sequence[float],
    picture: Map,
    shade: Any,  # noqa: ANN401 (a matplotlib.cm.ScalarMappable)
) -> None:
    """Draw rows of tiles: y values one above the other, tiles as wide as to their neighbours."""
    from matplotlib.patches import Rectangle

    for tile in tiles:
        left, right = _span(tiles, tile)
        row = rows.index(tile.y)
        colour = shade.to_rgba(tile.ratio)
        at.add_patch(Rectangle((left, row - 0.5), right - left, 1, facecolor=colour, edgecolor="w"))
        bright = 0.2126 * colour[0] + 0.7152 * colour[1] + 0.0722 * colour[2]
        letters = "".join(picture.letters[name] for name in tile.sufficing)
        at.text(
            math.sqrt(left * right),
            row,
            f"{tile.ratio:.3g}\n{letters}".strip(),
            ha="center",
            va="center",
            fontsize=6.5,
            color="white" if bright < _DARK else "black",
        )
    at.set_xscale("log")
    at.set_ylim(-0.5, len(rows) - 0.5)
    at.set_yticks(range(len(rows)), [f"{value:.3g}" for value in rows])
    at.grid(visible=False)


def _span(tiles: Sequence[Tile], tile: Tile) -> tuple[float, float]:
    return _edges(sorted(other.x for other in tiles if other.y == tile.y), tile.x)


def _edges(places: Sequence[float], place: float) -> tuple[float, float]:
    """Return where the tile at `place` begins and ends: half way to its neighbours, in logarithm.

    >>> _edges([1.0, 4.0, 64.0], 4.0), _edges([1.0, 4.0], 4.0)
    ((2.0, 16.0), (2.0, 8.0))
    """
    if len(places) == 1:
        return place / 2, place * 2
    middles = [math.sqrt(low * high) for low, high in itertools.pairwise(places)]
    ends = [places[0] ** 2 / middles[0], *middles, places[-1] ** 2 / middles[-1]]
    number = list(places).index(place)
    return ends[number], ends[number + 1]
