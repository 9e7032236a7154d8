"""A page: what was run, what was found, the figures with their captions."""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import TYPE_CHECKING, Final

import polars as pl

from experiments.pages import findings, headline
from experiments.pages.claims import held_against
from experiments.pages.tables import good, percent, table
from testbed.report.figure import name_of, settings_of
from testbed.sweep.figures import compose_figure
from topologies.errors import UsageError
from topologies.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from testbed.sweep import Experiment, Point

WIDTH: Final = 120
FINDINGS: Final[Mapping[str, Callable[[pl.DataFrame], list[str]]]] = {
    "flux-headline": headline.found,
    "phase-diagram": findings.phase_diagram,
    "switch-speed": findings.switch_speed,
    "parallelism": findings.parallelism,
    "jitter": findings.jitter,
    "nic-buffer": findings.nic_buffer,
    "scale": findings.scale,
    "ablation": findings.ablation,
}
_SAID: Final = ("label", "synth.seq", "expansion.algorithm", "topology.delay")
_ALLOWED: Final = (0.02, 0.05)  # of the prediction; the second at the shortest tau


def page_of(name: str, experiment: Experiment, points: Sequence[Point], frame: pl.DataFrame) -> str:
    """Return the page of an experiment, from its table."""
    parts = [f"# {experiment.title}", *_what_was_run(name, points, frame)]
    if name in FINDINGS:
        parts += FINDINGS[name](frame)
    parts += held_against(name, frame)
    emulated = frame.filter(pl.col("mode") == "run")
    if len(emulated):
        parts += _emulated(emulated)
    if experiment.figures:
        parts.append("## Figures")
    for spec in experiment.figures:
        try:
            caption = compose_figure(frame, spec).caption
        except UsageError:
            continue
        alt = caption.partition(". ")[0]
        parts += [f"![{alt}](../figures/{name}-{spec.name}.svg)", caption]
    return "\n\n".join(_wrapped(part) for part in parts) + "\n"


def _wrapped(part: str) -> str:
    if part.startswith(("#", "|", "    ", "!", "* ")):
        return part
    return textwrap.fill(part, WIDTH, break_long_words=False, break_on_hyphens=False)


def _what_was_run(name: str, points: Sequence[Point], frame: pl.DataFrame) -> list[str]:
    wanted = Counter(point.mode for point in points)
    had = Counter(frame["mode"].to_list())
    words = {"simulate": "simulated", "run": "emulated with real packets"}
    counts = [f"{had[mode]} of {count} points {words[mode]}" for mode, count in wanted.items()]
    failed = frame.filter(pl.col("error").is_not_null())
    text = f"Here: {', '.join(counts)}; [{name}.parquet]({name}.parquet) has a row for each. Simulated ones do not depend on the machine, `plan_wall_s` apart."
    if had.total() < wanted.total():
        text += " The others were not run: the same command goes on with them."
    parts = [
        "## What was run",
        f"    fluxbed sweep experiments/{name}.toml\n    python -m experiments.pages runs/{name}",
        text,
        table(["setting", "values"], _axes(frame)),
    ]
    if len(failed):
        reasons = Counter(
            (row["scheduler"], _reason(row["error"])) for row in failed.rows(named=True)
        )
        parts.append(
            f"{len(failed)} points have no result: "
            + "; ".join(f"{who} ({count}): {why}" for (who, why), count in reasons.most_common())
            + "."
        )
    return parts


def _reason(sentence: str) -> str:
    """Return why, without the numbers of the one point that says it."""
    return sentence.partition(", because ")[2].partition(":")[0] or sentence


def _axes(frame: pl.DataFrame) -> list[list[str]]:
    rows = []
    for name in settings_of(frame):
        if name == "mode":
            continue
        values = [value for value in frame[name].unique(maintain_order=True) if value is not None]
        said = [str(v).lower() if isinstance(v, bool) else str(v) for v in values]
        if said:
            partly = " (not everywhere)" if frame[name].null_count() else ""
            rows.append([f"`{name}`", ("; " if name == "label" else ", ").join(said) + partly])
    return rows


def _emulated(frame: pl.DataFrame) -> list[str]:
    """Return what was measured on packets beside what was predicted for the same frames."""
    done = good(frame, "run")
    if done.is_empty():
        return ["## On packets", "No emulated point has a result."]
    names = [name for name in _SAID if name in frame.columns]
    heads = [*(name_of(name) for name in names), "scheduler", "predicted", "measured", "difference", "lost bytes", "dilation", "pace"]  # fmt: skip
    shortest = frame["topology.delay_ns"].min()
    near, rows = 0, []
    far: dict[str, list[float]] = {}
    for row in done.iter_rows(named=True):
        off, predicted = row["difference"], row["predicted_iteration_ns"]
        close = off is not None and abs(off) <= _ALLOWED[row["topology.delay_ns"] == shortest]
        near += close
        if off is not None and not close:
            far.setdefault(row["scheduler"], []).append(off)
        numbers = [
            "unknown" if predicted is None else format_duration(predicted),
            format_duration(row["iteration_ns"]),
            "unknown" if off is None else percent(off),
            f"{row['lost_bytes']:.0f}",
            f"{row['dilation']:g}",
        ]
        rows.append([*(str(row[name]) for name in names), row["scheduler"], *numbers, row["pace"]])
    count = "All" if near == len(done) else f"{near}"
    lost = int(done["lost_bytes"].sum())
    others = "; ".join(
        f"{name} by {percent(min(offs))} to {percent(max(offs))} in {len(offs)}"
        for name, offs in far.items()
    )
    further = f" Further off: {others}." if others else ""
    return [
        "## On packets",
        f"{count} of {len(done)} points are within {100 * _ALLOWED[0]:g} % of their prediction ({100 * _ALLOWED[1]:g} % at the shortest tau), simulated with the same frames and guards; bytes lost in all of them together: {lost}.{further} Dilation is wall time over virtual time; where pace is not kept the machine did not keep up with the run.",
        table(heads, rows),
    ]
