"""The messages of one iteration and what they wait for, as Parquet.

`messages.parquet`: message (its id in plans), op, step, group, src, dst (nodes), bytes.
`deps.parquet`, beside it, is every constraint that is not a port: task, after (`task` starts no
earlier than `after` ends), distance (1: `after` is of the previous iteration), origin, and of both
tasks what they are: kind, op and rank (null for a message).
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Final

from scheduler.model.taskgraph import KINDS, ORIGINS
from testbed.files.codec import write_chunks

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl

    from scheduler.model.expansion import Expansion
    from scheduler.model.taskgraph import Int64s, TaskGraph

__all__ = ["deps_path", "messages_frame", "write_messages"]

_FORMAT: Final = "fluxbed-messages"
_VERSION: Final = "1"


def messages_frame(graph: TaskGraph) -> pl.DataFrame:
    """Return the messages of `graph`, one a row, in ascending id."""
    import polars as pl

    rows = graph.messages
    columns = {
        "op": graph.op,
        "step": graph.step,
        "group": graph.group,
        "src": graph.src,
        "dst": graph.dst,
        "bytes": graph.size_bytes,
    }
    return pl.DataFrame({"message": rows} | {name: c[rows] for name, c in columns.items()})


def _deps_frame(graph: TaskGraph) -> pl.DataFrame:
    import polars as pl

    arcs = graph.arcs
    ends = {"task": arcs.after, "after": arcs.before}
    told = {
        f"{end}_{name}": column[tasks]
        for end, tasks in ends.items()
        for name, column in (("kind", graph.kind), ("op", graph.op), ("rank", graph.rank))
    }

    def named(column: str, names: tuple[str, ...]) -> pl.Expr:
        numbers = list(range(len(names)))
        return pl.col(column).replace_strict(numbers, list(names), return_dtype=pl.String)

    def nullable(column: str) -> pl.Expr:
        return pl.when(pl.col(column) >= 0).then(pl.col(column)).alias(column)

    raw: dict[str, Int64s] = {**ends, "distance": arcs.distance, "origin": arcs.origin, **told}
    return pl.DataFrame(raw).with_columns(
        named("origin", ORIGINS),
        *(named(f"{end}_kind", KINDS) for end in ends),
        *(nullable(f"{end}_rank") for end in ends),
    )


def deps_path(path: Path) -> Path:
    """Return where the dependencies of the messages in `path` are.

    >>> from pathlib import Path
    >>> deps_path(Path("out/messages.parquet")).name, deps_path(Path("step1.parquet")).name
    ('deps.parquet', 'step1.deps.parquet')
    """
    name = "deps.parquet" if path.stem == "messages" else f"{path.stem}.deps.parquet"
    return path.with_name(name)


def write_messages(expansion: Expansion, path: Path) -> Path:
    """Write the messages to `path` and their dependencies beside it; return the second path.

    Both files say format, version and the hash of the messages in their metadata. Raises
    `UsageError` when one cannot be written.
    """
    graph = expansion.graph
    metadata = {
        "format": _FORMAT,
        "version": _VERSION,
        "nodes": str(graph.nodes),
        "messages_sha256": expansion.sha256,
    }
    beside = deps_path(path)
    for place, frame in ((path, messages_frame(graph)), (beside, _deps_frame(graph))):
        buffer = io.BytesIO()
        frame.write_parquet(buffer, metadata=metadata)
        write_chunks(place, [buffer.getvalue()])
    return beside
