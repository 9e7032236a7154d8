"""What the other experiments found."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Final

import polars as pl

from experiments.pages.tables import (
    TIED,
    as_planned,
    best_other,
    cells,
    good,
    middle,
    percent,
    ratios,
    table,
    time_of,
    times,
)
from testbed.report.figure_map import SUFFICES
from topologies.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

_PERTURBED: Final = ("jitter", "straggler", "skew")
_NEAR: Final = 1.05  # of a switch that changes in no time


def phase_diagram(frame: pl.DataFrame) -> list[str]:
    """Return which schedulers suffice, by tau over window and peers over ports."""
    grouped = [cell for cell in cells(good(frame)) if "flux" in cell]
    rows_of = [cell["flux"] for cell in grouped]
    shares = sorted({row["peers_per_port"] for row in rows_of})
    edges = (0.0, 0.01, 0.1, 1.0, 10.0, float("inf"))
    names = ["tau below 1 % of the window", "1 to 10 %", "10 to 100 %", "1 to 10 windows", "more"]
    rows = []
    for share in shares:
        line = [f"{share:.3g}"]
        for low, high in itertools.pairwise(edges):
            mine = [
                cell for cell in grouped
                if cell["flux"]["peers_per_port"] == share
                and low <= cell["flux"]["delay_over_window"] < high
            ]  # fmt: skip
            line.append(_sufficing(mine))
        rows.append(line)
    best = [(time_of(row) / time_of(c["flux"]), row) for c in grouped if (row := best_other(c))]
    if not best:
        return []
    ratio, row = max(best, key=lambda pair: pair[0])
    faster = sum(r < 1 / TIED for r, _ in best)
    return [
        "## Which scheduler suffices",
        "A scheduler suffices in a cell when it takes at most 2 % more than Flux. The window is the mean compute of a "
        "rank per collective, what a change of circuit can hide behind; peers are distinct nodes that one node sends "
        "to. In each field: how many cells there are, and in how many each scheduler suffices.",
        table(["peers per port", *names], rows),
        f"The most that planning gains over the best of the others in one cell is {times(ratio)} "
        f"({row['scheduler']}, TP{row['synth.tp']}, {row['topology.planes']} planes, {row['synth.seq']} tokens, tau "
        f"{row['topology.delay']}); in {faster} of {len(best)} cells another is more than 0.1 % faster than Flux.",
    ]


def _sufficing(grouped: Sequence[dict[str, dict[str, object]]]) -> str:
    if not grouped:
        return "-"
    counts = {
        name: sum(name in c and time_of(c[name]) <= SUFFICES * time_of(c["flux"]) for c in grouped)
        for name in ("static", "greedy", "bvn-tuned")
    }
    return f"{len(grouped)}: " + ", ".join(f"{name} {n}" for name, n in counts.items())


def switch_speed(frame: pl.DataFrame) -> list[str]:
    """Return a row per technology."""
    done = good(frame)
    names = list(dict.fromkeys(done["scheduler"].to_list()))
    rows = []
    for label in done["label"].unique(maintain_order=True):
        mine = {
            row["scheduler"]: row
            for row in done.filter(pl.col("label") == label).iter_rows(named=True)
        }
        rows.append(
            [label, *(format_duration(time_of(mine[n])) if n in mine else "-" for n in names)]
        )
    grouped = cells(done)
    near = [
        row["topology.delay_ns"]
        for r, row in ratios(grouped, "flux", to="packet-ideal")
        if r <= _NEAR
    ]
    said = (
        f"Up to tau = {format_duration(max(near))} Flux stays within 5 % of a switch that changes in no time. "
        if near
        else "With none of them Flux is within 5 % of a switch that changes in no time. "
    )
    reached = [(r, row) for r, row in ratios(grouped, "rotor-direct") if r]
    return [
        "## Iteration time by technology",
        "Times are published end-to-end changes of circuit: optics, control and receiver where they are given; see "
        "the experiment's file for the sources. Slots of some ten nanoseconds are not simulated.",
        table(["technology", *names], rows),
        said
        + "RotorNet as published takes "
        + ", ".join(f"{times(r)} at {row['topology.delay']}" for r, row in reached)
        + " of Flux's time.",
    ]


def parallelism(frame: pl.DataFrame) -> list[str]:
    """Return a row per mix and tau."""
    done = good(frame)
    names = list(dict.fromkeys(done["scheduler"].to_list()))
    rows = []
    lost: list[str] = []
    for label in done["label"].unique(maintain_order=True):
        for delay in done["topology.delay"].unique(maintain_order=True):
            part = done.filter((pl.col("label") == label) & (pl.col("topology.delay") == delay))
            medians = {
                name: middle(
                    time_of(row)
                    for row in part.filter(pl.col("scheduler") == name).iter_rows(named=True)
                )
                for name in names
            }
            if not len(part):
                continue
            flux = medians["flux"]
            share = part["peers_per_port"][0]
            rows.append(
                [label, delay, f"{share:.3g}", format_duration(flux)]
                + [
                    "-" if math.isnan(medians[n]) else times(medians[n] / flux)
                    for n in names
                    if n != "flux"
                ]
            )
            lost += [
                f"{n} in {label}, tau {delay} ({percent(medians[n] / flux - 1)})"
                for n in names
                if n != "flux" and not n.startswith("packet-") and medians[n] < flux / TIED
            ]
    return [
        "## Iteration time by mix",
        "Flux's time (median over seeds, which move the experts' shares), and the others' over it:",
        table(["mix", "tau", "peers per port", "flux", *(n for n in names if n != "flux")], rows),
        "Faster than Flux: " + ("; ".join(lost) if lost else "none") + ".",
    ]


def jitter(frame: pl.DataFrame) -> list[str]:
    """Return iteration time by what nobody knew when planning, for each kind of it."""
    done = good(frame)
    parts = [
        "## What it costs that durations and sizes are not those of the plan",
        "The first column of times is the least perturbed; the others are multiples of it: median over seeds, and their range. Every scheduler meets the same durations and sizes.",
    ]
    for label in done["label"].unique(maintain_order=True):
        part = done.filter(pl.col("label") == label)
        column = max(
            _PERTURBED, key=lambda name: part[name].n_unique() if name in part.columns else 0
        )
        parts += [f"### {label}, by {column}", _perturbed(part, column)]
    return parts


def nic_buffer(frame: pl.DataFrame) -> list[str]:
    """Return iteration time by the size of the NICs, for each workload."""
    done = good(frame)
    parts = [
        "## What it costs that NICs are finite",
        "The first column of times is with unlimited NICs; the others are multiples of it, a dash where the schedule "
        "does not get through: a full NIC keeps out the message that would free it.",
    ]
    for label in done["label"].unique(maintain_order=True):
        part = done.filter(pl.col("label") == label)
        parts += [f"### {label}", _perturbed(part, "nic_buffer")]
    return parts


def _perturbed(part: pl.DataFrame, column: str) -> str:
    values = list(part[column].unique(maintain_order=True))
    rows = []
    for delay in part["topology.delay"].unique(maintain_order=True):
        for name in part["scheduler"].unique(maintain_order=True):
            mine = part.filter((pl.col("scheduler") == name) & (pl.col("topology.delay") == delay))
            found = [
                [
                    time_of(r)
                    for r in mine.filter(pl.col(column).eq_missing(v)).iter_rows(named=True)
                ]
                for v in values
            ]
            if not found[0]:
                continue
            base = middle(found[0])
            line = [delay, name, format_duration(base)]
            for each in found[1:]:
                many = len(set(each)) > 1
                span = f" ({times(min(each) / base)} to {times(max(each) / base)})" if many else ""
                line.append(times(middle(each) / base) + span if each else "-")
            rows.append(line)
    return table(
        ["tau", "scheduler", *(f"{v:g}" if isinstance(v, float) else str(v) for v in values)], rows
    )


def scale(frame: pl.DataFrame) -> list[str]:
    """Return planning time and result by size."""
    done = good(frame)
    names = [n for n in done["scheduler"].unique(maintain_order=True) if n != "flux"]
    rows = []
    for cell in cells(done):
        if "flux" not in cell:
            continue
        row = cell["flux"]
        line = [
            row["expansion.algorithm"],
            str(row["ranks"]),
            f"{row['tasks']:,}",
            f"{row['plan_wall_s']:.1f} s",
            format_duration(row["iteration_ns"]),
        ]
        bound = row["lower_bound_ns"]
        line.append(f"{row['iteration_ns'] / bound:.3f}" if bound else "-")
        rows.append(
            line + [times(time_of(cell[n]) / time_of(row)) if n in cell else "-" for n in names]
        )
    return [
        "## Size",
        "Planning time is wall time on a shared machine of two cores, the simulation and the bound included; it says "
        "an order of magnitude.",
        table(["collectives", "GPUs", "tasks", "planning", "flux", "over the bound", *names], rows),
    ]


def ablation(frame: pl.DataFrame) -> list[str]:
    """Return what each part is worth."""
    done, plain = as_planned(good(frame))
    delays = list(plain["topology.delay"].unique(maintain_order=True))

    def row(name: str, part: pl.DataFrame) -> list[str]:
        line = [name]
        for delay in delays:
            mine = [
                time_of(r)
                for r in part.filter(pl.col("topology.delay") == delay).iter_rows(named=True)
            ]
            whole = [
                time_of(r)
                for r in plain.filter(
                    (pl.col("topology.delay") == delay) & (pl.col("scheduler") == "flux")
                ).iter_rows(named=True)
            ]
            if not mine or not whole:
                line.append("-")
                continue
            off = middle(mine) / middle(whole) - 1
            spread = (
                f" ({format_duration(min(mine))} to {format_duration(max(mine))})"
                if max(mine) > TIED * min(mine)
                else ""
            )
            line.append(f"{format_duration(middle(mine))}, {percent(off)}{spread}")
        return line

    rows = [
        row(name, plain.filter(pl.col("scheduler") == name))
        for name in plain["scheduler"].unique(maintain_order=True)
    ]
    flux = done.filter(pl.col("scheduler") == "flux")
    for column in ("budget", "lookahead", "expansion.split"):
        others = flux.filter(pl.col(column).is_not_null())
        if column == "budget":
            others = others.filter(pl.col("budget") != "500ms")
        rows += [
            row(
                f"flux, {column.rpartition('.')[2]} {value}", others.filter(pl.col(column) == value)
            )
            for value in others[column].unique(maintain_order=True)
        ]
    return [
        "## What each part is worth",
        "Median over seeds and how much longer than the whole method that is; the range where seeds differ.",
        table(["", *(f"tau {delay}" for delay in delays)], rows),
    ]
