"""The figures that an experiment declares, drawn from its table."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl

    from testbed.report.figure import Picture
    from testbed.sweep.experiment import FigureSpec

__all__ = ["compose_figure", "draw_figure"]


def compose_figure(frame: pl.DataFrame, spec: FigureSpec) -> Picture:
    """Return what `spec` shows of `frame`. Raises `UsageError` as `compose` does."""
    from testbed.report.figure import compose

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

    draw(compose_figure(frame, spec), path)
