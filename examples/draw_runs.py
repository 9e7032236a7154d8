"""Draw one node's iteration under several schedulers, from nothing but their run directories.

    python examples/draw_runs.py RUN... -o figure.svg [--node 0]

It shows how to read a run: `summary.json`, `plan.json` and the Parquet tables that polars opens.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import polars as pl
from matplotlib import pyplot as plt
from matplotlib.patches import Patch

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COMPUTE, DARK, LIT = "#8fa3ad", "#20262b", "#f2e6c2"
PEERS = ("#1b6ca8", "#d1495b", "#3a9d6e", "#e0a030", "#7a5ba6", "#5f7a1f", "#b5651d", "#2f8f9d")


@dataclass(frozen=True)
class Run:
    """A run directory: its summary and the window of its last iteration."""

    path: Path
    summary: dict[str, Any]
    begin_ns: int
    end_ns: int

    @classmethod
    def read(cls, path: Path) -> Run:
        """Read what says how long an iteration took and when the last one ran."""
        summary = json.loads((path / "summary.json").read_text())
        ends = (
            pl.scan_parquet(path / "tasks.parquet")
            .group_by("iteration")
            .agg(pl.col("end_ns").max())
            .sort("iteration")
            .collect()["end_ns"]
            .to_list()
        )
        return cls(path, summary, ends[-2], ends[-1])

    def table(self, name: str) -> pl.DataFrame:
        """Return one of the run's tables."""
        return pl.read_parquet(self.path / f"{name}.parquet")

    def inside(self, begin: pl.Expr, end: pl.Expr) -> list[pl.Expr]:
        """Return begin and length in us since the iteration's start, cut to the iteration."""
        first = begin.clip(self.begin_ns, self.end_ns)
        last = end.fill_null(self.end_ns).clip(self.begin_ns, self.end_ns)
        return [
            ((first - self.begin_ns) / 1e3).alias("at_us"),
            ((last - first) / 1e3).alias("length_us"),
        ]


def spans(axes: Axes, row: float, frame: pl.DataFrame, color: str, height: float = 0.8) -> None:
    """Draw the intervals of `frame` in one row."""
    parts = frame.filter(pl.col("length_us") > 0).select("at_us", "length_us").rows()
    axes.broken_barh(parts, (row - height / 2, height), facecolors=color, linewidth=0)


def draw_iteration(axes: Axes, run: Run, node: int) -> None:
    """Draw when `node` computed, and per plane when its sending port was dark, lit and sending."""
    plan = json.loads((run.path / "plan.json").read_text())
    rank = plan["rank_to_node"].index(node)
    planes = len(plan["fabric"]["planes"])
    start, end = pl.col("start_ns"), pl.col("end_ns")
    tasks = run.table("tasks").filter(kind="compute", rank=rank)
    spans(axes, 0, tasks.select(run.inside(start, end)), COMPUTE)
    circuits = run.table("circuits").filter(src=node)
    transfers = run.table("transfers").filter(from_node=node)
    for plane in range(planes):
        row = 1 + plane
        here = circuits.filter(plane=plane)
        lit = here.select(run.inside(pl.col("up_ns"), pl.col("down_ns")))
        dark = here.drop_nulls("dark_ns").select(run.inside(pl.col("dark_ns"), pl.col("up_ns")))
        spans(axes, row, lit, LIT)
        spans(axes, row, dark, DARK)
        for peer, color in enumerate(PEERS):
            moved = transfers.filter(plane=plane, to_node=peer)
            spans(axes, row, moved.select(run.inside(start, end)), color, height=0.5)
    axes.set_yticks(range(1 + planes), ["computes", *(f"plane {k}" for k in range(planes))])
    axes.invert_yaxis()
    axes.tick_params(length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    text = f"{run.summary['scheduler']}: {run.summary['iteration_ns'] / 1e3:,.0f} us an iteration"
    predicted = run.summary.get("predicted_iteration_ns")
    if predicted:
        text += f" measured, {predicted / 1e3:,.0f} us predicted"
    axes.set_title(text, loc="left", fontsize=10)


def main() -> None:
    """Read the command line and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+", help="run directories")
    parser.add_argument("-o", "--output", type=Path, required=True, help="svg, pdf or png file")
    parser.add_argument("--node", type=int, default=0)
    options = parser.parse_args()
    mpl.rcParams["font.size"] = 9
    runs = [Run.read(path) for path in options.runs]
    size = (9, 0.5 + 1.25 * len(runs))
    figure, grid = plt.subplots(len(runs), sharex=True, figsize=size, squeeze=False)
    for axes, run in zip(grid[:, 0], runs, strict=True):
        draw_iteration(axes, run, options.node)
    grid[-1, 0].set_xlabel(f"one iteration at node {options.node}, us of virtual time")
    legend = [Patch(color=COMPUTE, label="computing"), Patch(color=DARK, label="port dark")]
    legend += [Patch(color=LIT, label="lit, idle")]
    sent = pl.concat([run.table("transfers").filter(from_node=options.node) for run in runs])
    legend += [
        Patch(color=PEERS[peer % len(PEERS)], label=f"to node {peer}")
        for peer in sorted(sent["to_node"].unique())
    ]
    figure.legend(handles=legend, ncols=len(legend), loc="outside lower center", frameon=False)
    figure.set_layout_engine("constrained")
    figure.savefig(options.output, dpi=160)
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
