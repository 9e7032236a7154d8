"""`fluxbed sweep`: a grid of simulate or run, resumable."""

from __future__ import annotations

import contextlib
import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from testbed.cli.output import Column, format_option, note, print_records
from testbed.cli.working import progress_line
from topologies.errors import UsageError
from topologies.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Executor

    import polars as pl

    from testbed.sweep import Experiment, Point, Progress
    from testbed.sweep.sweeping import Evaluate

__all__ = ["command"]

MODES: Final = ("simulate", "run")  # in this order
_COLUMNS: Final[list[Column]] = [
    ("scheduler", "scheduler", str),
    ("points", "points", str),
    ("failed", "failed", str),
    ("iteration_ns", "median iteration", format_duration),
    ("best", "shortest of all", str),
]


@click.command("sweep")
@click.argument("experiment", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Directory of the results; resumed if it is there.  [default: runs/<EXPERIMENT's name>]",
)
@click.option(
    "-j",
    "--jobs",
    type=click.IntRange(1),
    help="Simulations at a time; emulations are one by one.  [default: all cores]",
)
@click.option("--dask", metavar="ADDRESS", help="Simulate on the Dask cluster of this scheduler.")
@click.option(
    "--only",
    multiple=True,
    metavar="SETTING=VALUE",
    help="Only points like this, as scheduler=flux; may be repeated.",
)
@click.option("--retry", is_flag=True, help="Try points again that failed or kept no pace.")
@click.option("--dry-run", is_flag=True, help="Say how many points there are, and stop.")
@format_option
def command(
    experiment: Path,
    output: Path | None,
    jobs: int | None,
    dask: str | None,
    only: tuple[str, ...],
    *,
    retry: bool,
    dry_run: bool,
    style: str,
) -> None:
    """Simulate or run all points of EXPERIMENT, a TOML file, into one Parquet table.

    Points that are finished are not repeated: after Ctrl-C or a crash the same command goes on. A
    point that fails has its row, with the reason. What is emulated comes last, one by one. The
    experiment's figures are drawn beside the table.

    Example: fluxbed sweep experiments/switch-speed.toml -o runs/switch-speed
    """
    from testbed.files.codec import read_bytes
    from testbed.sweep import Store, read_experiment, sweep

    written = read_experiment(experiment)
    every = written.points(experiment)
    points = _chosen(every, only)
    directory = output or Path("runs") / experiment.stem
    groups = {mode: [p for p in points if p.mode == mode] for mode in MODES}
    if dry_run:
        counts = ", ".join(f"{len(group)} to {mode}" for mode, group in groups.items() if group)
        note(f"{experiment}: {len(points)} points, {counts}")
        return
    if groups["run"] and dask is not None and not groups["simulate"]:
        why = "an emulation needs this machine for itself"
        raise UsageError("there is nothing for a cluster", "--dask", why, "leave it out")
    store = Store(directory, read_bytes(experiment))
    resumed = 0
    try:
        for mode, group in groups.items():
            if not group:
                continue
            with _means(mode, directory, jobs, dask) as (evaluate, executor), _watch(mode) as show:
                resumed += sweep(group, evaluate, store, executor, retry=retry, show=show).resumed
    except KeyboardInterrupt as interruption:
        what = f"the same command goes on with what is in {directory}"
        raise KeyboardInterrupt(what) from interruption
    finally:
        frame = store.write_table(every)
    again = f", {resumed} of them known before" if resumed else ""
    note(f"{directory / 'table.parquet'}: {len(frame)} points; asked for {len(points)}{again}")
    _draw(written, frame, directory)
    frame = frame.filter(frame["point"].is_in([point.id for point in points]))
    _tell_failures(frame)
    print_records(_records(frame, points), _COLUMNS, style)
    if len(frame) and not (frame["status"] == "ok").any():
        click.get_current_context().exit(1)


def _draw(experiment: Experiment, frame: pl.DataFrame, directory: Path) -> None:
    """Draw the experiment's figures, those for which there are points already."""
    from testbed.sweep import figures

    for spec in experiment.figures:
        path = directory / f"{spec.name}.svg"
        try:
            figures.draw_figure(frame, spec, path)
        except UsageError as error:
            note(f"{path.name} is not drawn: {error}")


def _chosen(points: Sequence[Point], only: Sequence[str]) -> list[Point]:
    """Keep the points that have, for every setting named, one of the values named."""
    wanted: dict[str, set[str]] = {}
    known = dict.fromkeys(["mode", *(name for point in points for name in point.settings)])
    for item in only:
        name, equals, value = item.partition("=")
        if not equals or name not in known:
            why = f"the settings are {', '.join(known)}"
            what = f"{item!r} is not SETTING=VALUE"
            raise UsageError(what, "--only", why, "write scheduler=flux")
        wanted.setdefault(name, set()).add(value)
    chosen = [
        point
        for point in points
        if all(
            _text({"mode": point.mode, **point.settings}.get(name)) in values
            for name, values in wanted.items()
        )
    ]
    if not chosen:
        why = f"no combination has {' '.join(only)}"
        raise UsageError("no point is left", "--only", why, "see the experiment's lists")
    return chosen


def _text(value: object) -> str:
    """Write a value as TOML does."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@contextlib.contextmanager
def _means(
    mode: str, directory: Path, jobs: int | None, dask: str | None
) -> Iterator[tuple[Evaluate, Executor | None]]:
    """Yield how to evaluate a point, and where: emulations here, one by one."""
    from testbed.cli.evaluation import emulate_point, simulate_point
    from testbed.sweep.sweeping import cluster, local

    if mode == "run":
        from testbed.emulator.capabilities import require_emulation

        require_emulation()
        yield partial(emulate_point, runs=directory / "runs"), None
        return
    where = local(jobs or os.cpu_count() or 1) if dask is None else cluster(dask)
    with where as executor:
        yield simulate_point, executor


@contextlib.contextmanager
def _watch(mode: str) -> Iterator[Any]:
    """Yield what shows progress, with the time left, on a line that moves."""
    with progress_line() as line:

        def show(progress: Progress) -> None:
            finished = progress.resumed + progress.done
            text = f"{mode}: {finished} of {progress.total} points"
            if progress.failed:
                text += f", {progress.failed} failed"
            left_s = progress.left_s(time.monotonic())
            if left_s is not None:
                text += f", {_clock(left_s)} left"
            line(text)

        yield show


def _clock(seconds: float) -> str:
    """Write a time as h:mm:ss.

    >>> _clock(3725.4)
    '1:02:05'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def _tell_failures(frame: pl.DataFrame) -> None:
    """Say each reason once, with how many points it kept from a result."""
    failed = frame.filter(frame["error"].is_not_null())
    for sentence, count in failed["error"].value_counts(sort=True).iter_rows():
        note(f"{count} failed: {sentence}")


def _records(frame: pl.DataFrame, points: Sequence[Point]) -> list[dict[str, Any]]:
    """Return one record per scheduler: its points, their median, how often none was shorter."""
    import polars as pl

    if "iteration_ns" not in frame.columns:
        frame = frame.with_columns(pl.lit(None, pl.Float64).alias("iteration_ns"))
    settings = dict.fromkeys(["mode", *(name for point in points for name in point.settings)])
    names = [name for name in settings if name != "scheduler" and name in frame.columns]
    best = pl.col("iteration_ns") <= pl.col("iteration_ns").min().over(names)
    table = (
        frame.with_columns(best.fill_null(value=False).alias("_best"))
        .group_by("scheduler", maintain_order=True)
        .agg(
            pl.len().alias("points"),
            pl.col("error").is_not_null().sum().alias("failed"),
            pl.col("iteration_ns").median(),
            pl.col("_best").sum().alias("best"),
        )
    )
    return table.to_dicts()
