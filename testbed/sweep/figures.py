"""The figures that an experiment declares, drawn from its table."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl

    from testbed.report.figure import Picture
    from testbed.report.figure_map import Map
    from testbed.sweep.experiment import FigureSpec

__all__ = ["compose_figure", "draw_figure"]


def compose_figure(frame: pl.DataFrame, spec: FigureSpec) -> Picture | Map:
    """Return what `spec` shows of `frame`. Raises `UsageError` as `compose` does."""
    from testbed.report.figure import compose
    from testbed.report.figure_map import compose_map

    if spec.map is not None:
        return compose_map(
            frame,
            x=spec.x,
            y=spec.y,
            value=spec.map,
            relative_to=spec.relative_to,
            by=spec.by,
            facets=spec.facets,
            where=spec.where,
        )
    return compose(
        frame,
        x=spec.x,
        y=spec.y,
        by=spec.by,
        facets=spec.facets,
        where=spec.where,
        relative_to=spec.relative_to,
        interval=spec.interval,
    )


def draw_figure(frame: pl.DataFrame, spec: FigureSpec, path: Path) -> None:
    """Write the figure. Raises `UsageError` where nothing is left to draw."""
    from testbed.report.figure_drawing import draw
    from testbed.report.figure_map import Map, draw_map

    picture = compose_figure(frame, spec)
    if isinstance(picture, Map):
        draw_map(picture, path)
    else:
        draw(picture, path)
