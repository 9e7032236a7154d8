"""The Parquet tables of a run directory: columns in this order, int64 (nullable) or string.

In memory a table is a mapping from column to array: ids and times int64 with `NONE` for null, words
as Python strings.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import numpy as np

from scheduler.model.taskgraph import COMPUTE, KINDS, MESSAGE, ORIGINS
from scheduler.model.timeline import NONE, Circuits, Timeline, Transfers
from testbed.files.codec import write_chunks
from topologies.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from numpy.typing import NDArray

    from scheduler.model.nic import Injection, NicAccount
    from scheduler.model.taskgraph import Int64s, TaskGraph
    from topologies import Fabric

__all__ = ["COLUMNS", "Table", "read_table", "run_tables", "timeline_of", "write_table"]

Table: TypeAlias = "Mapping[str, NDArray[Any]]"

COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "tasks": (
        "task", "base", "kind", "iteration", "op", "rank", "stream", "position", "src", "dst",
        "bytes", "dur_ns", "ready_ns", "inject_ns", "start_ns", "end_ns", "status",
    ),
    "deps": ("task", "after", "on", "origin"),
    "transfers": (
        "transfer", "task", "hop", "from_node", "to_node", "plane", "circuit", "bytes", "start_ns",
        "end_ns", "wall_bytes_sent", "wall_bytes_received", "frames_sent", "frames_received",
        "frames_dark", "frames_resent",
    ),
    "circuits": (
        "circuit", "plane", "src_port", "dst_port", "src", "dst", "request_ns", "dark_ns", "up_ns",
        "down_ns", "planned_up_ns", "cause",
    ),
    "nic": (
        "node", "injection", "origin", "peak_bytes", "transit_peak_bytes", "reorder_peak_bytes",
        "peak_ns",
    ),
    "queues": ("node", "dst", "t_ns", "bytes"),
}  # fmt: skip
_WORDS: Final = {"kind", "status", "on", "origin", "cause", "injection"}
_MEASURED: Final = (
    "wall_bytes_sent",
    "wall_bytes_received",
    "frames_sent",
    "frames_received",
    "frames_dark",
    "frames_resent",
)
STATUSES: Final = ("waiting", "ready", "started", "done")
CAUSES: Final = ("program", "fault")


def run_tables(
    graph: TaskGraph, fabric: Fabric, timeline: Timeline, accounts: Mapping[Injection, NicAccount]
) -> dict[str, Table]:
    """Return the six tables; `accounts` by injection, of which the first gives queues and times."""
    main = next(iter(accounts.values()))
    return {
        "tasks": _tasks(graph, timeline, main),
        "deps": _deps(graph, timeline.iterations),
        "transfers": _transfers(timeline.transfers),
        "circuits": _circuits(fabric, timeline.circuits),
        "nic": _nic(fabric, accounts, timeline.origin),
        "queues": {"node": main.node, "dst": main.dst, "t_ns": main.t_ns, "bytes": main.bytes},
    }


def _tasks(graph: TaskGraph, timeline: Timeline, account: NicAccount) -> Table:
    n, tasks = timeline.iterations, graph.tasks
    kind = np.tile(graph.kind, n)
    message = kind == MESSAGE
    reached = [timeline.ready_ns != NONE, timeline.start_ns != NONE, timeline.end_ns != NONE]
    return {
        "task": np.arange(n * tasks),
        "base": np.tile(np.arange(tasks), n),
        "kind": np.asarray(KINDS)[kind],
        "iteration": np.repeat(np.arange(n), tasks),
        "op": np.tile(graph.op, n),
        "rank": np.tile(graph.rank, n),
        "stream": np.tile(graph.stream, n),
        "position": np.tile(graph.position, n),
        "src": np.where(message, np.tile(graph.src, n), NONE),
        "dst": np.where(message, np.tile(graph.dst, n), NONE),
        "bytes": np.where(message, graph.sizes_bytes(n), NONE),
        "dur_ns": np.where(kind == COMPUTE, graph.durations_ns(n), NONE),
        "ready_ns": timeline.ready_ns,
        "inject_ns": account.inject_ns,
        "start_ns": timeline.start_ns,
        "end_ns": timeline.end_ns,
        "status": np.asarray(STATUSES)[np.sum(reached, axis=0)],
    }


def _deps(graph: TaskGraph, iterations: int) -> Table:
    before, after, origin = graph.unrolled_arcs(iterations)
    order = np.lexsort((before, after))
    return {
        "task": after[order],
        "after": before[order],
        "on": np.full(len(order), "end"),
        "origin": np.asarray(ORIGINS)[origin[order]],
    }


def _transfers(moved: Transfers) -> Table:
    unknown = np.full(len(moved.task), NONE, np.int64)
    columns = {name: getattr(moved, name) for name in _MEASURED}
    return {
        "transfer": np.arange(len(moved.task)),
        "task": moved.task,
        "hop": moved.hop,
        "from_node": moved.from_node,
        "to_node": moved.to_node,
        "plane": moved.plane,
        "circuit": moved.circuit,
        "bytes": moved.size_bytes,
        "start_ns": moved.start_ns,
        "end_ns": moved.end_ns,
        **{name: unknown if column is None else column for name, column in columns.items()},
    }


def _circuits(fabric: Fabric, circuits: Circuits) -> Table:
    bases = np.cumsum([0, *(plane.ports for plane in fabric.planes)])[:-1]
    owner = np.concatenate([np.asarray(plane.node_of, np.int64) for plane in fabric.planes])
    base = bases[circuits.plane]
    return {
        "circuit": np.arange(len(circuits.plane)),
        "plane": circuits.plane,
        "src_port": circuits.src_port,
        "dst_port": circuits.dst_port,
        "src": owner[base + circuits.src_port],
        "dst": owner[base + circuits.dst_port],
        "request_ns": circuits.request_ns,
        "dark_ns": circuits.dark_ns,
        "up_ns": circuits.up_ns,
        "down_ns": circuits.down_ns,
        "planned_up_ns": circuits.planned_up_ns,
        "cause": np.asarray(CAUSES)[circuits.fault],
    }


def _nic(fabric: Fabric, accounts: Mapping[Injection, NicAccount], origin: str) -> Table:
    """Describe the network cards; of an emulation the first injection is the one that happened."""
    nodes, each = np.arange(fabric.nodes), list(accounts.values())
    first = "executed" if origin == "emulated" else "derived"
    origins = [first, *["derived"] * (len(each) - 1)]
    return {
        "node": np.tile(nodes, len(each)),
        "injection": np.repeat(np.asarray(list(accounts)), fabric.nodes),
        "origin": np.repeat(np.asarray(origins), fabric.nodes),
        "peak_bytes": np.concatenate([account.peak_bytes for account in each]),
        "transit_peak_bytes": np.concatenate([account.transit_peak_bytes for account in each]),
        "reorder_peak_bytes": np.concatenate([account.reorder_peak_bytes for account in each]),
        "peak_ns": np.concatenate([account.peak_ns for account in each]),
    }


def timeline_of(
    tables: Mapping[str, Table],
    iterations: int,
    measures: Mapping[str, int | float | None],
    *,
    origin: Literal["simulated", "emulated"],
) -> Timeline:
    """Rebuild the execution from its tables."""
    tasks, moved, circuits = tables["tasks"], tables["transfers"], tables["circuits"]
    measured = {name: _known(moved[name]) for name in _MEASURED}
    return Timeline(
        iterations=iterations,
        ready_ns=tasks["ready_ns"],
        start_ns=tasks["start_ns"],
        end_ns=tasks["end_ns"],
        transfers=Transfers(
            task=moved["task"],
            hop=moved["hop"],
            from_node=moved["from_node"],
            to_node=moved["to_node"],
            plane=moved["plane"],
            circuit=moved["circuit"],
            size_bytes=moved["bytes"],
            start_ns=moved["start_ns"],
            end_ns=moved["end_ns"],
            **measured,
        ),
        circuits=Circuits(
            plane=circuits["plane"],
            src_port=circuits["src_port"],
            dst_port=circuits["dst_port"],
            request_ns=circuits["request_ns"],
            dark_ns=circuits["dark_ns"],
            up_ns=circuits["up_ns"],
            down_ns=circuits["down_ns"],
            planned_up_ns=circuits["planned_up_ns"],
            fault=(circuits["cause"] == "fault").astype(np.int64),
        ),
        origin=origin,
        measures=dict(measures),
    )


def _known(column: Int64s) -> Int64s | None:
    return column if (column != NONE).any() else None


# --- on disk


def write_table(name: str, table: Table, path: Path) -> None:
    """Write one table as Parquet; raises `InputError` where it cannot be written."""
    import polars as pl

    columns = []
    for column in COLUMNS[name]:
        values = table[column]
        if column in _WORDS:
            columns.append(pl.Series(column, values.tolist(), pl.String))
        else:
            series = pl.Series(column, np.ascontiguousarray(values, np.int64))
            null = pl.Series(values == NONE)
            columns.append(pl.select(pl.when(~null).then(series).alias(column)).to_series())
    packed = io.BytesIO()  # polars itself says nothing useful of a full disk
    pl.DataFrame(columns).write_parquet(packed, compression="zstd")
    write_chunks(path, [packed.getvalue()])


def read_table(name: str, path: Path) -> dict[str, NDArray[Any]]:
    """Read one table; raises `InputError` when it is missing, damaged or of other columns."""
    import polars as pl

    try:
        frame = pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        why = str(error).splitlines()[0]
        raise InputError("the table cannot be read", str(path), why, "run again") from error
    if tuple(frame.columns) != COLUMNS[name]:
        why = f"its columns are {', '.join(frame.columns)}"
        raise InputError(f"this is not the table {name}", str(path), why, "run again")
    table: dict[str, NDArray[Any]] = {}
    for column in frame.columns:
        series = frame[column]
        kind = pl.String if column in _WORDS else pl.Int64
        if series.dtype != kind:
            why = f"column {column} holds {series.dtype}"
            raise InputError(f"this is not the table {name}", str(path), why, "run again")
        if kind == pl.String:
            table[column] = np.asarray(series.to_list(), dtype=np.str_)
        else:
            table[column] = series.fill_null(NONE).to_numpy().astype(np.int64)
    return table
