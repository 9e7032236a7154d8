"""Writing reports: the page of a run or of several, and the same numbers as text."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from testbed.files.compare import compare_runs
from testbed.files.rundir import read_run, record_file
from testbed.files.timeline_json import timeline_chunks
from topologies.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from testbed.files.rundir import Run

__all__ = ["FORMATS", "render", "rewrite_timeline", "write_comparison", "write_report"]

FORMATS: Final = ("html", "md", "csv", "json")
REPORT: Final = "report.html"
TIMELINE: Final = "timeline.json"


def write_report(run_directory: Path | str, asked: tuple[int, int] | None = None) -> Path:
    """Write `report.html` into a run directory and its hash into the manifest; return its path.

    `asked` is the stretch of virtual time to draw, in ns; by default all, or of a very long run a
    part. Raises `InputError` when the directory is no run, `UsageError` when it cannot be written.
    """
    from testbed.report.page import run_page

    run = read_run(run_directory)
    record_file(run.path, REPORT, run_page(run, asked))
    return run.path / REPORT


def rewrite_timeline(run_directory: Path | str, asked: tuple[int, int] | None = None) -> None:
    """Write `timeline.json` of a run again; `asked` and errors as `write_report`.

    Nothing is written where the run left no records.
    """
    run = read_run(run_directory)
    if not (run.path / "tasks.parquet").is_file():
        return
    chunks = timeline_chunks(
        run.expansion().graph,
        run.fabric(),
        run.timeline(),
        run.manifest.rank_to_node,
        skip=run.manifest.skip,
        asked=asked,
    )
    record_file(run.path, TIMELINE, b"".join(chunks))


def write_comparison(run_directories: Sequence[Path | str], path: Path | str) -> Path:
    """Write a page that shows several finished runs side by side; errors as `compare_runs`."""
    from testbed.report.comparison import comparison_page

    comparisons = compare_runs([read_run(directory) for directory in run_directories])
    target = Path(path)
    try:
        target.write_bytes(comparison_page(comparisons, target.parent))
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        what = "the page cannot be written"
        raise UsageError(what, str(target), why, "choose another place") from error
    return target


def render(run_directories: Sequence[Path | str], form: str) -> str:
    """Return the summaries of runs as `md`, `csv` or `json`; numbers are those of summary.json.

    Raises `UsageError` for another format.
    """
    runs = [read_run(directory) for directory in run_directories]
    if form == "json":
        records = [_record(run) for run in runs]
        return msgspec.json.format(msgspec.json.encode(records), indent=2).decode() + "\n"
    if form == "csv":
        return _csv(runs)
    if form == "md":
        return "\n".join(_markdown(run) for run in runs)
    why = f"the formats are {', '.join(FORMATS)}"
    raise UsageError(f"there is no format {form!r}", "report", why, "choose one of them")


def _record(run: Run) -> dict[str, Any]:
    summary: dict[str, Any] = msgspec.to_builtins(run.summary)
    return {"run": str(run.path), "origin": run.manifest.origin, **summary}


def _flat(run: Run) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in _record(run).items():
        if isinstance(value, dict):
            flat |= {f"{name}.{key}": inner for key, inner in value.items()}
        elif isinstance(value, list):
            flat[name] = " ".join("" if item is None else str(item) for item in value)
        else:
            flat[name] = value
    return flat


def _csv(runs: Sequence[Run]) -> str:
    rows = [_flat(run) for run in runs]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]) if rows else ["run"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _markdown(run: Run) -> str:
    from testbed.report.data import tiles

    manifest = run.manifest
    lines = [
        f"## {manifest.scheduler}, {manifest.origin}: {manifest.status}",
        "",
        f"`{run.path}`, {manifest.topology}, {manifest.iterations} iterations",
        "",
        "| | | |",
        "|---|---:|---|",
    ]
    lines += [f"| {tile.name} | {tile.text} | {tile.note} |" for tile in tiles(run)]
    return "\n".join(lines) + "\n"
