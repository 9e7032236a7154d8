"""What is published, held against the tables: what agrees, what does not, and what differs.

Only the published numbers are written here; ours come from the table.
"""

from __future__ import annotations

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
    time_of,
    times,
)
from testbed.report.figure_map import SUFFICES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from experiments.pages.tables import Row

_FLUX: Final = "arXiv 2609.25949"
_TEN_MS: Final = 10**7
_TENTH: Final = 0.1


def held_against(name: str, frame: pl.DataFrame) -> list[str]:
    """Return the section of an experiment's page, nothing where there is no published claim."""
    said = CLAIMS[name](good(frame)) if name in CLAIMS else []
    return ["## Held against what is published", *said] if said else []


def _verdict(held: int, of: int) -> str:
    return "agrees" if held == of else "disagrees" if held == 0 else "agrees in part"


def _switch_speed(done: pl.DataFrame) -> list[str]:
    grouped = [cell for cell in cells(done) if "flux" in cell and best_other(cell)]
    if not grouped:
        return []
    first = sum(_over_best(cell) >= 1 / TIED for cell in grouped)
    parts = [
        f"{_FLUX}: Flux has the shortest iteration at every switching speed. Here no other is more than 0.1 % faster "
        f"with {first} of {len(grouped)} switches: **{_verdict(first, len(grouped))}**."
    ]
    slow = [
        pair for pair in ratios(grouped, "flux", to="packet-ideal")
        if pair[1]["topology.delay_ns"] >= _TEN_MS
    ]  # fmt: skip
    if slow:
        ratio, row = min(slow, key=lambda pair: pair[1]["topology.delay_ns"])
        parts.append(
            "Opus (arXiv 2507.08119) measures a training step of 16 GPUs that lasts 1.9 % longer with switches of "
            "10 ms than without, tensor parallelism staying inside servers. Here, with tensor parallelism on the "
            f"switches, Flux takes {times(ratio)} the time of a switch without delay at {row['topology.delay']}: "
            "**another case**, collectives of every layer leave no window of that length."
        )
    return parts


def _over_best(cell: Mapping[str, Row]) -> float:
    best = best_other(cell)
    assert best is not None  # the caller looked
    return time_of(best) / time_of(cell["flux"])


def _phase_diagram(done: pl.DataFrame) -> list[str]:
    grouped = [cell for cell in cells(done) if "flux" in cell]
    if not grouped:
        return []
    still = [cell for cell in grouped if "static" in cell]
    few = [cell for cell in grouped if cell["flux"]["peers_per_port"] <= 1]
    held = sum(time_of(c["static"]) <= SUFFICES * time_of(c["flux"]) for c in still)
    parts = [
        "DELTA (arXiv 2603.28096) keeps one topology for a whole iteration, its premise being that switches are too "
        f"slow to change inside one. Here, single hop, that needs a port per peer: {len(few)} of {len(grouped)} cells "
        f"have it, and a fixed topology suffices in {held} of the {len(still)} where it exists: "
        f"**{_verdict(held, len(grouped))}**."
    ]
    near = [
        cell["flux"]["delay_over_window"] for cell in grouped
        if cell["flux"]["peers_per_port"] > 1 and "greedy" in cell
        and time_of(cell["greedy"]) <= SUFFICES * time_of(cell["flux"])
    ]  # fmt: skip
    many = [cell for cell in grouped if cell["flux"]["peers_per_port"] > 1 and "greedy" in cell]
    reach = f", none with tau above {max(near):.2g} windows" if near else ""
    parts.append(
        f"{_FLUX}: a schedule that knows the computation is what helps. Where a node has more peers than ports, greedy "
        f"takes at most 2 % longer in {len(near)} of {len(many)} cells{reach}: "
        f"**{_verdict(len(many) - len(near), len(many))}**; what matters is tau against the window."
    )
    return parts


def _parallelism(done: pl.DataFrame) -> list[str]:
    gains: dict[bool, list[float]] = {True: [], False: []}
    for cell in cells(done):
        if "flux" in cell and best_other(cell):
            gains[cell["flux"]["label"].startswith("dense")].append(_over_best(cell))
    if not gains[True] or not gains[False]:
        return []
    dense, experts = middle(gains[True]), middle(gains[False])
    every = gains[True] + gains[False]
    first = sum(gain >= 1 / TIED for gain in every)
    return [
        "Spectra (arXiv 2603.07373) shortens communication 1.4 times for GPT and 1.9 times for a mixture of experts, "
        "so experts gain more from better circuits. Here the best other takes, in the median, "
        f"{times(dense)} of Flux's iteration with dense models and {times(experts)} with mixtures: "
        f"**{'agrees' if experts > dense else 'disagrees'}** in the order (iterations have compute in them too).",
        f"{_FLUX} evaluates TP4 x DP2 only; in {first} of these {len(every)} cells no other is more than 0.1 % faster: "
        f"**{_verdict(first, len(every))}** with Flux being first.",
    ]


def _jitter(done: pl.DataFrame) -> list[str]:
    part = done.filter((pl.col("label") == "jitter") & (pl.col("jitter") == _TENTH))
    if part.is_empty():
        return []
    found = {
        name: [pair[0] for pair in ratios(cells(part), name)]
        for name in ("flux-timestamped", "greedy", "prefetch")
    }
    said = ", ".join(
        f"{name} {times(middle(each))} ({times(min(each))} to {times(max(each))})"
        for name, each in found.items()
        if each
    )
    return [
        f"{_FLUX} takes durations as known and says nothing of jitter; a fixed schedule is its weak point. With a "
        "standard deviation of 10 % of every computing time, over Flux whose order is kept but whose times follow "
        f"events: {said}. The order holds, the timestamps do not."
    ]


def _nic_buffer(done: pl.DataFrame) -> list[str]:
    least = _least_enough(done, "flux")
    others = {
        name: found
        for name in done["scheduler"].unique(maintain_order=True)
        if name != "flux" and (found := _least_enough(done, name))
    }
    if not least or not others:
        return []
    said = "; ".join(f"{name}: {', '.join(found)}" for name, found in others.items())
    return [
        f'{_FLUX}: with unlimited NICs the peak is "more than 1000x" lower than with periodic schedulers. With NICs '
        "that really are finite, the least buffer of those tried with which a scheduler still takes at most 2 % "
        f"longer than with unlimited ones, in the cases in the order of the table: flux: {', '.join(least)}; {said}."
    ]


def _least_enough(done: pl.DataFrame, name: str) -> list[str]:
    """Return, per label and tau, the least buffer within 2 % of unlimited; "none" where none is."""
    mine = done.filter(pl.col("scheduler") == name)
    found = []
    for _, part in mine.group_by("label", "topology.delay", maintain_order=True):
        by = {row["nic_buffer"]: row for row in part.iter_rows(named=True)}
        if "unlimited" not in by:
            continue
        limit = SUFFICES * time_of(by["unlimited"])
        enough = [row for key, row in by.items() if key != "unlimited" and time_of(row) <= limit]
        least = min(enough, key=lambda row: row["nic_buffer_bytes"], default=None)
        found.append("none" if least is None else str(least["nic_buffer"]))
    return found


def _scale(done: pl.DataFrame) -> list[str]:
    mine = done.filter(pl.col("scheduler") == "flux").sort("ranks")
    if mine.is_empty():
        return []
    row = mine.row(-1, named=True)
    gap = row["iteration_ns"] / row["lower_bound_ns"] - 1 if row["lower_bound_ns"] else None
    over = "an unknown distance from" if gap is None else f"{percent(gap)} over"
    return [
        f"{_FLUX} solves a mixed integer program for 8 GPUs, exponential at worst, and says that scale needs "
        f"heuristics. Here {row['ranks']:,} GPUs and {row['tasks']:,} tasks are planned in "
        f"{row['plan_wall_s']:.0f} s, {over} the lower bound: **agrees** that heuristics are needed, and they do."
    ]


def _ablation(done: pl.DataFrame) -> list[str]:
    _, plain = as_planned(done)
    said = []
    for what, name in (("reuse", "flux,reuse=no"), ("requests ahead", "flux,early=no")):
        worst = max(ratios(cells(plain), name), key=lambda pair: pair[0], default=None)
        if worst:
            said.append((what, worst[0], worst[1]["topology.delay"]))
    if not said:
        return []
    words = ", ".join(
        f"without {what} the iteration takes up to {percent(ratio - 1)} longer (tau {delay})"
        for what, ratio, delay in said
    )
    held = sum(ratio > TIED for _, ratio, _ in said)
    return [
        f"{_FLUX}: Flux reuses circuits and hides reconfiguration behind computation and communication. Here {words}: "
        f"**{_verdict(held, len(said))}**."
    ]


CLAIMS: Final[Mapping[str, Callable[[pl.DataFrame], list[str]]]] = {
    "switch-speed": _switch_speed,
    "phase-diagram": _phase_diagram,
    "parallelism": _parallelism,
    "jitter": _jitter,
    "nic-buffer": _nic_buffer,
    "scale": _scale,
    "ablation": _ablation,
}
