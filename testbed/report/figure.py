"""Figures for papers from the table of a sweep: what is drawn, and the caption that says so.

Every series is one value of `by`; a mark is the median over all points that share x, series and
panel, and its bar spans their quartiles (or all of them). `relative_to` divides each point by the
point of that series with the same other settings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import polars as pl

from topologies.errors import UsageError
from topologies.spelling import meant

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Interval", "Panel", "Picture", "Series", "compose", "settings_of"]

Interval: TypeAlias = Literal["quartiles", "range"]

_SETTINGS: Final = ("synth.", "workload.", "topology.", "expansion.")
_UNPLANNED: Final = ("nic_buffer", "jitter", "jitter_seed", "straggler", "skew", "faults")
_PLAIN: Final = (
    "mode", "label", "scheduler", "seed", "budget", "lookahead", "iterations", "skip", "phases",
    "dilation", *_UNPLANNED,
)  # fmt: skip
_NO_AXIS: Final = ("label", "phases")  # a name decides nothing, and y is of the first phase
_UNITS: Final = ("_ns", "_bps", "_bytes")
_SPAN: Final = {"quartiles": (0.25, 0.75), "range": (0.0, 1.0)}
_UNSET: Final = "-"
_PAIR: Final = 2  # panels are in rows and columns


@dataclass(frozen=True, slots=True)
class Series:
    """One line: medians and the ends of their bars, in x order. x is text where it is no number."""

    name: str
    x: tuple[Any, ...]
    median: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes; `titles` are its values of the facets."""

    titles: tuple[str, ...]
    series: tuple[Series, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """All that is drawn. x and y are columns, `relative_to` names the series y is divided by."""

    x: str
    y: str
    by: str
    relative_to: str | None
    panels: tuple[Panel, ...]
    facets: tuple[str, ...]
    caption: str


def settings_of(frame: pl.DataFrame) -> list[str]:
    """Return the columns that say which point a row is, without those that repeat one as a number.

    >>> settings_of(pl.DataFrame({"topology.delay": ["1us"], "topology.delay_ns": [1000]}))
    ['topology.delay']
    """
    found = [name for name in frame.columns if name.startswith(_SETTINGS) or name in _PLAIN]
    return [name for name in found if not _repeats(name, found)]


def _repeats(name: str, names: Sequence[str]) -> bool:
    return any(name.endswith(unit) and name.removesuffix(unit) in names for unit in _UNITS)


def compose(
    frame: pl.DataFrame,
    *,
    x: str,
    y: str,
    by: str = "scheduler",
    facets: Sequence[str] = (),
    where: Mapping[str, Sequence[str]] | None = None,
    relative_to: str | None = None,
    interval: Interval = "quartiles",
) -> Picture:
    """Choose and reduce what `frame`, the table of a sweep, holds.

    `where` keeps the rows with one of the values, as text and "-" for none, for each column. Raises
    `UsageError` for a column that does not exist or has no numbers, and where nothing is left.
    """
    if len(facets) > _PAIR:
        why = "panels are in rows and columns"
        raise UsageError(f"there are {len(facets)} facets", "figure", why, "give one or two")
    frame = rows_like(frame, (x, y, by, *facets), where or {}, "figure")
    if not frame[y].dtype.is_numeric():
        why = f"it is of type {frame[y].dtype}"
        raise UsageError(f"{y!r} has no numbers", "figure", why, "choose another -y")
    asked = len(frame)
    frame = frame.filter(pl.col(y).is_not_null() & pl.col(x).is_not_null())
    failed = asked - len(frame)
    if relative_to is not None:
        frame = divided(frame, y, by, relative_to)
    if frame.is_empty():
        why = "no row has all that is asked for"
        raise UsageError("nothing is left to draw", "figure", why, "ask for less with --where")
    number = _numeric(frame, x)
    groups = frame.group_by(facets, maintain_order=True) if facets else [((), frame)]
    panels = tuple(
        Panel(tuple(map(as_word, key)), _series(part, number, y, by, interval))
        for key, part in groups
    )
    return Picture(
        x=number,
        y=y,
        by=by,
        relative_to=relative_to,
        panels=panels,
        facets=tuple(facets),
        caption=_caption(frame, (x, y, by, *facets), relative_to, interval, failed),
    )


def rows_like(
    frame: pl.DataFrame, columns: Sequence[str], where: Mapping[str, Sequence[str]], place: str
) -> pl.DataFrame:
    """Return the rows that meet all conditions. Raises `UsageError` for a column that is not there.

    That a setting, which no point of `frame` has, be unset is met by all.
    """
    where = {
        name: values
        for name, values in where.items()
        if name in frame.columns or _UNSET not in values
    }
    for name in (*columns, *where):
        if name not in frame.columns:
            why = f"the columns are {', '.join(frame.columns)}"
            fix = meant(name, frame.columns, "choose one of them")
            raise UsageError(f"there is no column {name!r}", place, why, fix)
    for name, values in where.items():
        frame = frame.filter(as_text(name).is_in(list(values)))
    return frame


def as_text(name: str) -> pl.Expr:
    return pl.col(name).cast(pl.String).fill_null(_UNSET)


def as_word(value: object) -> str:
    return (
        _UNSET if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    )


def _numeric(frame: pl.DataFrame, name: str) -> str:
    """Return the column that has `name` as a number, where all of it has one."""
    for unit in _UNITS:
        column = name + unit
        if column in frame.columns and not frame[column].is_null().any():
            return column
    return name


def divided(frame: pl.DataFrame, y: str, by: str, relative_to: str) -> pl.DataFrame:
    same = [name for name in settings_of(frame) if name not in (by, *_NO_AXIS)]
    base = frame.filter(as_text(by) == relative_to).select(*same, pl.col(y).alias("_base"))
    if base.is_empty():
        known = ", ".join(map(as_word, frame[by].unique(maintain_order=True)))
        what = f"there is no {by} {relative_to!r}"
        raise UsageError(what, "figure", f"there are {known}", "choose one of them")
    joined = frame.join(base.unique(same), on=same, how="inner", nulls_equal=True)
    return joined.with_columns(pl.col(y) / pl.col("_base")).drop("_base")


def _series(frame: pl.DataFrame, x: str, y: str, by: str, interval: Interval) -> tuple[Series, ...]:
    low, high = _SPAN[interval]
    reduced = frame.group_by(by, x, maintain_order=True).agg(
        pl.col(y).median().alias("median"),
        pl.col(y).quantile(low, "linear").alias("low"),
        pl.col(y).quantile(high, "linear").alias("high"),
    )
    if frame[x].dtype.is_numeric():
        reduced = reduced.sort(x, maintain_order=True)
    else:
        reduced = reduced.with_columns(pl.col(x).map_elements(as_word, pl.String))
    return tuple(
        Series(
            as_word(name),
            *(tuple(part[column].to_list()) for column in (x, "median", "low", "high")),
        )
        for name in frame[by].unique(maintain_order=True)
        if len(part := reduced.filter(pl.col(by).eq_missing(name)))
    )


_ROOMS: Final = {
    "synth": "Workload", "workload": "Workload", "topology": "Topology", "expansion": "Collectives",
}  # fmt: skip
_NAMES: Final = {
    "iteration_ns": "iteration time",
    "topology.delay": "reconfiguration delay τ",
    "topology.delay_ns": "reconfiguration delay τ",
    "nic_peak_bytes_eager": "peak NIC buffer, eager injection",
    "nic_peak_bytes_paced": "peak NIC buffer, paced injection",
    "exposed_comm_ns": "exposed communication",
    "synth.seq": "sequence length",
    "label": "case",
    "delay_over_window": "τ over the compute between collectives",
    "peers_per_port": "distinct peers per port",
    "plan_wall_s": "planning time (s)",
    "nic_buffer": "NIC buffer",
    "ranks": "GPUs",
    "jitter": "jitter of computing times (standard deviation over mean)",
}


def name_of(column: str) -> str:
    """Return what a column is, for people, without its unit.

    >>> name_of("exposed_comm_ns"), name_of("synth.micro_batch")
    ('exposed communication', 'micro batch')
    """
    if column in _NAMES:
        return _NAMES[column]
    name = column.rpartition(".")[2]
    for unit in _UNITS:
        name = name.removesuffix(unit)
    return name.replace("_", " ")


def _caption(
    frame: pl.DataFrame,
    drawn: tuple[str, ...],
    relative_to: str | None,
    interval: Interval,
    failed: int,
) -> str:
    x, y, by, *facets = drawn
    what = name_of(y) + (f" over that of {relative_to}" if relative_to else "")
    sentences = [f"{what[:1].upper()}{what[1:]} against {name_of(x)}, by {name_of(by)}."]
    sentences += said_of(frame, y, (x, by, *facets))
    counts = frame.group_by(x, by, *facets).len()["len"].to_list()
    if max(counts) > 1:
        span = "quartiles" if interval == "quartiles" else "the whole range"
        each = f"{min(counts)} to {max(counts)}" if len(set(counts)) > 1 else f"{counts[0]}"
        sentences.append(f"Marks are medians, bars {span}, of {each} points each.")
    if failed:
        sentences.append(f"Points without a result, not shown: {failed}.")
    return " ".join(sentences)


def said_of(frame: pl.DataFrame, y: str, drawn: Sequence[str]) -> list[str]:
    """Return what a caption says of the points: settings that no axis in `drawn` shows, window."""
    fixed: dict[str, list[str]] = {}
    varied = []
    for name in settings_of(frame):
        if name in (*drawn, "mode", "iterations", "skip"):
            continue
        values = [as_word(value) for value in frame[name].unique(maintain_order=True)]
        if len(values) > 1 and name in _NO_AXIS:
            continue
        if len(values) > 1:
            varied.append(f"{name_of(name)} {', '.join(values)}")
        elif values != [_UNSET]:
            itself = name.rpartition(".")[2] in ("model", "name", "path", "algorithm")
            text = values[0] if itself else f"{name_of(name)} {values[0]}"
            room = "Execution" if name in _UNPLANNED else "Planning"
            fixed.setdefault(_ROOMS.get(name.partition(".")[0], room), []).append(text)
    sentences = [f"{room}: {', '.join(texts)}." for room, texts in fixed.items()]
    sentences += [_origin(frame), _injection(frame, y), _window(frame)]
    if varied:
        sentences.append(f"Over {'; '.join(varied)}.")
    return sentences


_ORIGINS: Final = {"simulate": "simulated", "run": "emulated with real packets"}


def _origin(frame: pl.DataFrame) -> str:
    found = [word for mode, word in _ORIGINS.items() if mode in frame["mode"].unique()]
    return f"{' and '.join(found).capitalize()}."


def _injection(frame: pl.DataFrame, y: str) -> str:
    if y.endswith("eager"):
        return "Injection: eager, a ready message's bytes wait in the NIC."
    if y.endswith("paced"):
        return "Injection: paced, a window of rate x 2 us + 4096 B is held per queue in service."
    if "nic_buffer" in frame.columns and (frame["nic_buffer"] != "unlimited").any():
        return "Injection: eager, into NICs of finite buffers; what finds no room waits in the GPU."
    return "Injection: unlimited NIC buffers, which never change timing."


def _window(frame: pl.DataFrame) -> str:
    parts = []
    for skip, iterations in frame.select("skip", "iterations").unique(maintain_order=True).rows():
        parts.append(f"{skip + 1} to {iterations}")
    return f"Window: iterations {' or '.join(parts)}, circuits carried over."
