"""The figures that an experiment declares, drawn from its table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl

    from testbed.report.figure import Picture
    from testbed.report.figure_map import Map
    from testbed.sweep.experiment import FigureSpec

__all__ = ["compose_figure", "draw_figure", "draw_picture"]


def compose_figure(frame: pl.DataFrame, spec: FigureSpec) -> Picture | Map:
    """Return what `spec` shows of `frame`. Raises `UsageError` as `compose` does."""
    from testbed.report.figure import compose
    from testbed.report.figure_map import compose_map

    chosen: dict[str, Any] = {
        name: getattr(spec, name) for name in ("x", "y", "by", "facets", "where", "relative_to")
    }
    if spec.map is not None:
        return compose_map(frame, value=spec.map, **chosen)
    return compose(frame, interval=spec.interval, **chosen)


def draw_picture(picture: Picture | Map, path: Path) -> None:
    """Write it to a .pdf, .svg or .png file. Raises `UsageError` where it cannot be."""
    from testbed.report.figure_drawing import draw
    from testbed.report.figure_map import Map, draw_map

    if isinstance(picture, Map):
        draw_map(picture, path)
    else:
        draw(picture, path)


def draw_figure(frame: pl.DataFrame, spec: FigureSpec, path: Path) -> None:
    """Write the figure. Raises `UsageError` where nothing is left to draw."""
    draw_picture(compose_figure(frame, spec), path)
