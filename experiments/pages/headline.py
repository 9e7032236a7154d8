"""What flux-headline found, held against the claims of arXiv 2609.25949."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from experiments.pages.tables import (
    REFERENCES,
    TIED,
    best_other,
    cells,
    good,
    middle,
    ratios,
    table,
    time_of,
    times,
)
from topologies.units import format_bytes, format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from experiments.pages.tables import Row

_PAPER_NS: Final = 10**6  # tau goes to 1 ms there
_CLAIMED: Final = 10.0  # "up to 10x"
_CLAIMED_NIC: Final = 1000.0
_MUCH: Final = 2.0
_PERIODIC: Final = (
    ("rotor-direct", "as published, 90 % duty, mean of 16 phases"),
    ("bvn", "aligned, slots of 10 tau"),
    ("bvn,planes=staggered", "slots of 10 tau"),
    ("vermilion", "as published"),
    ("solstice", "as published"),
    ("rotor-direct-tuned", "best slot and phase"),
    ("bvn-tuned", "best slot and phase"),
)
_KINDS: Final = ("eager", "paced")
_BUFFERED: Final = (
    "rotor-direct", "bvn", "rotor-direct-tuned", "bvn-tuned", "greedy", "rotor-vlb", "rotorlb",
)  # fmt: skip

Cell = dict[str, dict[str, Any]]


def cell_name(row: Mapping[str, Any]) -> str:
    """Say which cell a row is of: what differs from directed circuits, 8 layers, no embeddings."""
    words = [row["expansion.algorithm"], f"{row['synth.seq']} tokens"]
    if row["topology.duplex"]:
        words.append("duplex")
    if row["synth.embeddings"] != "omitted":
        words.append(f"embeddings {row['synth.embeddings']}")
    if row["synth.layers"] != 8:  # noqa: PLR2004 (what most have)
        words.append(f"{row['synth.layers']} layers")
    if row["topology.name"] != "rails":
        words.append("TP on scale-up")
    if row["topology.control"]:
        words.append(f"control and notify {row['topology.control']}")
    return ", ".join([*words, f"tau {row['topology.delay']}"])


def found(frame: pl.DataFrame) -> list[str]:
    """Return the page's findings."""
    every = good(frame)
    done = every.filter(pl.col("jitter").is_null()) if "jitter" in every.columns else every
    plain = done.filter(pl.col("topology.control").is_null())
    rails = plain.filter(pl.col("topology.name") == "rails")
    core = [cell for cell in cells(rails) if "flux" in cell]
    paper = [cell for cell in core if cell["flux"]["topology.delay_ns"] <= _PAPER_NS]
    return [
        "This is a consistency check of what is published, not a reproduction of published "
        "numbers: what the abstract leaves open is an axis, and a cell is one combination.",
        *_largest(core, paper),
        *_iteration(core, paper),
        *_claim(paper),
        *_reconfigurations(paper),
        *_nic(core),
        *_not_winning(core),
        *_optimality(core),
        *_ties(frame),
        *_controller(done),
        *_scale_up(plain),
    ]


def _largest(core: Sequence[Cell], paper: Sequence[Cell]) -> list[str]:
    """Return the largest ratios of all, each with injection, duty and cell."""
    tuned = tuple(name for name, _ in _PERIODIC if name.endswith("-tuned"))
    plain = tuple(name for name, _ in _PERIODIC if name not in tuned)
    rows = []
    for kind, names in (("paper parameters", plain), ("tuned", tuned), ("best other", ())):
        pairs = [
            (row, cell["flux"])
            for cell in paper
            for row in ([cell[n] for n in names if n in cell] if names else [best_other(cell)])
            if row is not None
        ]
        if not pairs:
            continue
        row, flux = max(pairs, key=lambda pair: time_of(pair[0]) / time_of(pair[1]))
        light = f"{100 * (1 - row['dark_fraction']):.0f} % light"
        line = [kind, f"{times(time_of(row) / time_of(flux))}: {_who(row)}, {light}"]
        for injection in _KINDS:
            field = f"nic_peak_bytes_{injection}"
            finite = [pair for pair in pairs if pair[1][field]]
            if not finite:
                line.append("-")
                continue
            row, flux = max(finite, key=lambda pair, f=field: pair[0][f] / pair[1][f])  # type: ignore[misc]
            said = f"{times(row[field] / flux[field])}: {_who(row)}"
            nothing = sum(not cell["flux"][field] for cell in paper)
            line.append(said + (f"; unbounded in {nothing} cells" if nothing else ""))
        rows.append(line)
    heads = ["against", "iteration time", "NIC peak, eager", "NIC peak, paced"]
    return [
        "## The largest ratios to Flux",
        f"In the {len(paper)} cells with tau up to 1 ms; unbounded where Flux leaves nothing waiting in any NIC. The best other is the one with the shortest iteration of the cell.",
        table(heads, rows),
        _short(core),
    ]


def _who(row: Row) -> str:
    return f"{row['scheduler']}, {cell_name(row)}"


def _short(core: Sequence[Cell]) -> str:
    """Say in one sentence where Flux is beaten."""
    beaten = [
        (time_of(cell["flux"]) / time_of(best), best)
        for cell in core
        if (best := best_other(cell)) and time_of(best) < time_of(cell["flux"]) / TIED
    ]
    if not beaten:
        return f"In none of all {len(core)} cells another scheduler is more than 0.1 % faster."
    ratio, row = max(beaten, key=lambda pair: pair[0])
    return f"Flux does not win in {len(beaten)} of all {len(core)} cells: there another is more than 0.1 % faster, at most {times(ratio)} ({_who(row)}); below more of it."


def _iteration(core: Sequence[Cell], paper: Sequence[Cell]) -> list[str]:
    rows = []
    for name, how in _PERIODIC:
        near, far = ratios(paper, name), ratios(core, name)
        if near:
            rows.append([f"{name}, {how}", *_extremes(near, far)])
    near, far = (
        [_of_the_best(cell) for cell in each if best_other(cell)] for each in (paper, core)
    )
    if near:
        rows.append(["the best other in each cell", *_extremes(near, far, who=True)])
    heads = [
        "against",
        "largest, tau <= 1 ms",
        "cell",
        "light",
        "median there",
        "largest of all",
        "cell",
    ]
    return [
        "## Iteration time",
        f"Over that of Flux, in {len(paper)} cells with tau up to 1 ms, the paper's range, and in all {len(core)}. *Light* is the share of optical port-time that is not dark in that cell: the duty.",
        table(heads, rows),
    ]


def _of_the_best(cell: Cell) -> tuple[float, Row]:
    row = best_other(cell)
    assert row is not None  # the caller looked
    return time_of(row) / time_of(cell["flux"]), row


def _extremes(
    near: Sequence[tuple[float, Row]], far: Sequence[tuple[float, Row]], *, who: bool = False
) -> list[str]:
    """Return the largest ratio near and far, each with its cell, and the median near."""
    (ratio, row), (further, there) = (max(each, key=lambda pair: pair[0]) for each in (near, far))

    def place(row: Row) -> str:
        return cell_name(row) + (f" ({row['scheduler']})" if who else "")

    light = f"{100 * (1 - row['dark_fraction']):.0f} %"
    median = times(middle(r for r, _ in near))
    return [times(ratio), place(row), light, median, times(further), place(there)]


def _claim(paper: Sequence[Cell]) -> list[str]:
    """Return where "up to 10x" holds and where it does not."""
    parts = ['## The published "up to 10x"']
    against = ratios(paper, "rotor-direct")
    slowest = [(r, row) for r, row in against if row["topology.delay_ns"] == _PAPER_NS]
    if not slowest:
        return []
    ratio, near = min(slowest, key=lambda pair: abs(math.log(pair[0] / _CLAIMED)))
    least, contra = min(slowest, key=lambda pair: pair[0])
    reached = [pair for pair in against if pair[0] >= _CLAIMED]
    below = [pair for pair in against if pair[0] < _MUCH]
    parts.append(
        f"Against RotorNet with its paper's parameters, {len(reached)} of {len(against)} cells with tau up to 1 ms "
        f"reach it and {len(below)} stay below 2x. At tau = 1 ms the cell nearest to it is {cell_name(near)}: "
        f"{times(ratio)}; the one that contradicts it most is {cell_name(contra)}: {times(least)}."
    )
    rows = []
    families = dict.fromkeys((row["expansion.algorithm"], row["synth.seq"]) for _, row in slowest)
    for algorithm, seq in families:

        def of(scheduler: str) -> str:
            mine = [
                r
                for r, row in ratios(paper, scheduler)
                if (row["expansion.algorithm"], row["synth.seq"]) == (algorithm, seq)  # noqa: B023 (used at once)
                and row["topology.delay_ns"] == _PAPER_NS
            ]
            return f"{times(min(mine))} to {times(max(mine))}, {len(mine)} cells" if mine else "-"

        rows.append(
            [
                f"{algorithm}, {seq} tokens",
                *(
                    of(s)
                    for s in ("rotor-direct", "rotor-direct-tuned", "bvn", "bvn-tuned", "greedy")
                ),
            ]
        )
    parts += [
        "How much of it is the 90 % duty rule rather than the schedule, and what a scheduler that only keeps circuits "
        "and changes them on demand makes of the same, at tau = 1 ms, over all depths, circuits and embeddings:",
        table(["cells", "rotor-direct", "its best slot", "bvn", "its best slot", "greedy"], rows),
    ]
    return parts


def _reconfigurations(paper: Sequence[Cell]) -> list[str]:
    """Return who changes circuits more and less often than Flux, and whether that pays."""
    said = []
    for name, published in (
        ("rotor-direct", "changes circuits more often, and competes at small tau"),
        ("bvn", "changes them less often, and is slower all the same"),
    ):
        pairs = [
            (cell[name]["reconfigurations"] / cell["flux"]["reconfigurations"], cell)
            for cell in paper
            if name in cell and cell["flux"]["reconfigurations"]
        ]
        if not pairs:
            continue
        fewer = [cell for ratio, cell in pairs if ratio < 1]
        slower = sum(time_of(cell[name]) > TIED * time_of(cell["flux"]) for cell in fewer)
        least = min(cell["flux"]["topology.delay_ns"] for _, cell in pairs)
        fastest = [r for r, row in ratios(paper, name) if row["topology.delay_ns"] == least]
        said.append(
            f"{name} is published as one that {published}: here it changes {times(middle(r for r, _ in pairs))} as "
            f"often as Flux (median of {len(pairs)} cells), less often in {len(fewer)}"
            + (f", slower in {slower} of those" if fewer else "")
            + f"; at tau = {format_duration(least)} it takes {times(middle(fastest))} of Flux's time (median)."
        )
    return ["## Reconfigurations", *said] if said else []


def _nic(core: Sequence[Cell]) -> list[str]:
    """Return the peaks, always at equal injection."""
    rows = []
    met = dict.fromkeys(_KINDS, 0)
    for kind in _KINDS:
        field = f"nic_peak_bytes_{kind}"
        for name in _BUFFERED:
            found_ = ratios(core, name, lambda row, field=field: float(row[field]))  # type: ignore[misc]
            finite = [pair for pair in found_ if not math.isinf(pair[0])]
            if not finite:
                continue
            ratio, row = max(finite, key=lambda pair: pair[0])
            reached = sum(r >= _CLAIMED_NIC for r, _ in found_)
            met[kind] += reached
            where = [times(ratio), cell_name(row), format_bytes(row[field])]
            counts = [str(len(found_) - len(finite)), f"{reached} of {len(found_)}"]
            rows.append([kind, name, *where, *counts])
    heads = [
        "injection", "against", "largest finite", "cell", "its peak", "cells where Flux leaves nothing waiting", "cells with 1000x or more",
    ]  # fmt: skip
    verdict = f'The published "more than 1000x" is met in {met["eager"]} of these comparisons under eager injection and in {met["paced"]} under paced.'
    if met["eager"] and not met["paced"]:
        verdict += " It holds against who may not pause, where Flux leaves nothing waiting at all: a property of the injection at least as much as of the schedule."
    return [
        "## Peak NIC buffer",
        "Ratios are between peaks under the same injection: *eager*, a ready message's bytes enter the NIC and wait there; *paced*, a window of rate x 2 us + 4096 B per queue in service is held. `rotor-vlb` and `rotorlb` hold other nodes' bytes too.",
        table(heads, rows),
        verdict,
    ]


def _others(core: Sequence[Cell]) -> Iterator[tuple[float, Row, Row]]:
    """Yield every other scheduler's time over Flux's, its row and Flux's."""
    for cell in core:
        flux = cell["flux"]
        for name, row in cell.items():
            if name != "flux" and name not in REFERENCES:
                yield time_of(row) / time_of(flux), row, flux


def _not_winning(core: Sequence[Cell]) -> list[str]:
    faster: dict[str, list[tuple[float, Row]]] = {}
    tied: Counter[str] = Counter()
    lower: Counter[str] = Counter()
    for ratio, row, flux in _others(core):
        if ratio < 1 / TIED:
            faster.setdefault(row["scheduler"], []).append((ratio, row))
        elif ratio <= TIED:
            tied[row["scheduler"]] += 1
        if row["nic_peak_bytes_eager"] < flux["nic_peak_bytes_eager"]:
            lower[row["scheduler"]] += 1
    rows = []
    for name, found_ in sorted(faster.items(), key=lambda item: min(r for r, _ in item[1])):
        ratio, row = min(found_, key=lambda pair: pair[0])
        rows.append([name, str(len(found_)), f"{100 * (1 - ratio):.2f} %", cell_name(row)])
    parts = ["## Where Flux does not win"]
    if rows:
        parts += [
            f"Faster than Flux by more than 0.1 %, of {len(core)} cells. Periodic schedulers cut messages and send the pieces over both planes; a message of Flux stays whole on one.",
            table(["scheduler", "cells", "by at most", "cell"], rows),
        ]
    else:
        parts.append(f"In none of {len(core)} cells another scheduler is more than 0.1 % faster.")
    parts.append(f"Within 0.1 % of Flux: {_counts(tied)}.")
    parts.append(
        f"Lower eager NIC peaks than Flux's (it minimises time, not bytes): {_counts(lower)}."
    )
    return parts + _limits(core)


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name} in {n} cells" for name, n in counter.most_common()) or "none"


def _limits(core: Sequence[Cell]) -> list[str]:
    """Return where nothing needs to change, and where no plan can hide a change."""
    parts = []
    static = [cell for cell in core if "static" in cell]
    if static:
        equal = sum(time_of(c["static"]) <= TIED * time_of(c["flux"]) for c in static)
        parts.append(
            f"A topology that never changes exists in {len(static)} cells and is as fast as Flux in {equal} of them: rings of TP4 x DP2 need two permutations, and there are two switches."
        )
    slow = [pair for pair in ratios(core, "flux", to="packet-ideal") if pair[0] > _MUCH]
    if slow:
        ratio, row = max(slow, key=lambda pair: pair[0])
        parts.append(
            f"In {len(slow)} cells Flux takes more than twice packet-ideal's time, at most {times(ratio)} ({cell_name(row)}): what lasts longer than all there is to hide it behind cannot be hidden."
        )
    return parts


def _optimality(core: Sequence[Cell]) -> list[str]:
    rows = [cell["flux"] for cell in core]
    if not rows:
        return []
    proven = sum(bool(row["proven_optimal"]) for row in rows)
    over = sorted(
        row["iteration_ns"] / row["lower_bound_ns"] for row in rows if row["lower_bound_ns"]
    )
    return [
        "## How good the plans are",
        f"{proven} of Flux's {len(rows)} plans are proven optimal; the median of its time over the lower bound is "
        f"{middle(over):.3f}, the largest {over[-1]:.2f}.",
    ]


def _ties(frame: pl.DataFrame) -> list[str]:
    """Return what becomes of who answers to events when computations are off by next to nothing."""
    done = frame.filter(pl.col("status") == "ok")
    if "jitter" not in done.columns or done["jitter"].is_null().all():
        return []
    shaken = done.filter(pl.col("jitter").is_not_null())
    keys = ("synth.seq", "expansion.algorithm", "topology.delay", "scheduler")
    rows = []
    for found_ in shaken.select(keys).unique(maintain_order=True).rows():
        mine = done.filter(
            *(pl.col(key) == value for key, value in zip(keys, found_, strict=True)),
            (pl.col("synth.layers") == 8) & (pl.col("synth.embeddings") == "omitted")  # noqa: PLR2004
            & ~pl.col("topology.duplex") & (pl.col("topology.name") == "rails")
            & pl.col("topology.control").is_null(),
        )  # fmt: skip
        plain = mine.filter((pl.col("mode") == "simulate") & pl.col("jitter").is_null())
        off = mine.filter(pl.col("jitter").is_not_null())["iteration_ns"].to_list()
        packets = mine.filter(pl.col("mode") == "run")["iteration_ns"].to_list()
        if len(plain) != 1 or not off:
            continue
        nominal = plain["iteration_ns"][0]
        span = f"{times(min(off) / nominal)} to {times(max(off) / nominal)}"
        measured = times(packets[0] / nominal) if packets else "-"
        rows.append(
            [found_[3], f"{found_[1]}, tau {found_[2]}", format_duration(nominal), span, measured]
        )
    jitter = 100 * max(shaken["jitter"].to_list())
    return [
        "## Who hangs on ties",
        f"Directed circuits, 2048 tokens, no embeddings: the iteration as planned, over it the one with computations whose standard deviation is {jitter:g} % (range over seeds), and the one measured on packets. Ranks that are alike ask at the same instant; who answers to events in their order finds a lucky one in an ideal simulation and loses it with the first nanosecond. An order that is planned stays.",
        table(["scheduler", "cell", "simulated", f"with {jitter:g} %", "on packets"], rows),
    ]


def _controller(done: pl.DataFrame) -> list[str]:
    frame = done.filter(
        (pl.col("synth.layers") == 8) & (pl.col("synth.embeddings") == "omitted")  # noqa: PLR2004
        & ~pl.col("topology.duplex") & (pl.col("topology.name") == "rails")
        & (pl.col("expansion.algorithm") == "direct") & (pl.col("topology.delay") == "100us")
    )  # fmt: skip
    costs = [None, "10us", "100us", "1ms"]
    rows = []
    for seq in frame["synth.seq"].unique().sort():
        for name in ("flux", "greedy", "prefetch"):
            mine = {
                row["topology.control"]: format_duration(row["iteration_ns"])
                for row in frame.filter(
                    (pl.col("scheduler") == name) & (pl.col("synth.seq") == seq)
                ).iter_rows(named=True)
            }
            rows.append([str(seq), name, *(mine.get(cost, "-") for cost in costs)])
    return [
        "## A controller that is not free",
        "Direct collectives, tau = 100 us; news of events and commands each take",
        table(["tokens", "scheduler", "0", "10 us", "100 us", "1 ms"], rows),
    ]


def _scale_up(plain: pl.DataFrame) -> list[str]:
    inside = cells(plain.filter(pl.col("topology.name") == "servers"))
    against = [
        (time_of(row) / time_of(cell["flux"]), name)
        for cell in inside
        for name, row in cell.items()
        if "flux" in cell
    ]
    if not against:
        return []
    (worst, name), (least, other) = max(against), min(against)
    return [
        "## Tensor parallelism on the scale-up link",
        f"In {len(inside)} cells with TP4 inside servers each server has one peer, and there is nothing to switch: no scheduler takes more than {times(worst)} ({name}) or less than {times(least)} ({other}) of Flux's time. What there is to gain is in traffic that needs more peers than there are ports.",
    ]
