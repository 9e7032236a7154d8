"""Where a sweep keeps its points: a file each, there whole or not at all, and their one table.

    DIR/experiment.toml      the experiment, as it was read last
    DIR/points/<id>.json     settings and result of one point
    DIR/table.parquet        a row per point: id, mode, settings by dotted name, then results
    DIR/<figure>.svg         the experiment's figures
    DIR/runs/<id>            the run directory of a point that was emulated

A setting with a unit has a second column with its number: `topology.delay` "10us" and
`topology.delay_ns` 10000.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
from msgspec import Struct

from testbed.files.codec import decode_json, read_bytes, write_chunks
from testbed.sweep.point import Value, quantity
from topologies.errors import InputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from testbed.sweep.point import Point

__all__ = ["Outcome", "Store", "read_table", "table_of"]

EXPERIMENT: Final = "experiment.toml"
TABLE: Final = "table.parquet"


class Outcome(Struct, kw_only=True):
    """The file of a finished point. `error` is the sentence of one that failed."""

    format: Literal["fluxbed-point"] = "fluxbed-point"
    version: Literal[1] = 1
    settings: dict[str, Value]
    result: dict[str, Value | None]
    error: str | None = None

    @property
    def good(self) -> bool:
        """Say whether it has a result, and the machine kept pace where it was emulated."""
        return self.error is None and not self.result.get("overload")


class Store:
    """The directory of a sweep: made if need be, resumed if it is one, never mixed with others."""

    def __init__(self, path: Path, experiment: bytes) -> None:
        """Open `path` for an experiment, given as written. Raises `UsageError` where it cannot."""
        self.path = path
        self.points = path / "points"
        if _is_strange(path):
            why = "it holds something else than a sweep"
            raise UsageError("it is not resumed", str(path), why, "choose another directory")
        try:
            self.points.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            fix = "choose another directory with -o"
            raise UsageError("it cannot be written", str(path), why, fix) from error
        write_chunks(path / EXPERIMENT, [experiment])

    def _file(self, point: Point) -> Path:
        return self.points / f"{point.id}.json"

    def find(self, point: Point) -> Outcome | None:
        """Return what is known of a point; `InputError` where its file is damaged."""
        file = self._file(point)
        if not file.is_file():
            return None
        return decode_json(read_bytes(file), Outcome, str(file), "a point of a sweep")

    def put(self, point: Point, result: Mapping[str, Any], error: str | None = None) -> None:
        """Keep the result of a point."""
        outcome = Outcome(settings=point.settings, result=dict(result), error=error)
        write_chunks(self._file(point), [msgspec.json.encode(outcome), b"\n"])

    def write_table(self, points: Sequence[Point]) -> pl.DataFrame:
        """Write the table of those `points` that are finished, and return it."""
        found = ((point, self.find(point)) for point in points)
        frame = table_of([(point, outcome) for point, outcome in found if outcome is not None])
        beside = self.path / f".{TABLE}.part"
        frame.write_parquet(beside)
        beside.replace(self.path / TABLE)
        return frame


def table_of(outcomes: Sequence[tuple[Point, Outcome]]) -> pl.DataFrame:
    """Return the table of points and what is known of them."""
    import polars as pl

    rows = [
        {
            "point": point.id,
            "mode": point.mode,
            **_columns(outcome.settings),
            **outcome.result,
            "error": outcome.error,
        }
        for point, outcome in outcomes
    ]
    return pl.DataFrame(rows, infer_schema_length=None, strict=False)


def _is_strange(path: Path) -> bool:
    """Say whether something is there that is no sweep."""
    if not path.exists() or (path / EXPERIMENT).is_file():
        return False
    return not path.is_dir() or any(path.iterdir())


def _columns(settings: Mapping[str, Value]) -> dict[str, Value]:
    columns: dict[str, Value] = {}
    for name, value in settings.items():
        columns[name] = value
        if (number := quantity(value)) is not None:
            columns[name + number[0]] = number[1]
    return columns


def read_table(path: Path) -> pl.DataFrame:
    """Read the table of a sweep, named by its directory or itself. Raises `InputError`."""
    import polars as pl

    file = path / TABLE if path.is_dir() else path
    try:
        return pl.read_parquet(file)
    except (OSError, pl.exceptions.PolarsError) as error:
        why = str(error).partition("\n")[0][:1].lower() + str(error).partition("\n")[0][1:]
        what = "this is not the table of a sweep"
        raise InputError(what, str(file), why, "name the directory that sweep wrote") from error
