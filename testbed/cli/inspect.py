"""`fluxbed inspect`: what is in any file we know."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from testbed.cli.contest import percent
from testbed.cli.convert import tell_losses
from testbed.cli.output import UNKNOWN, Column, format_option, note, print_records
from topologies.units import format_bytes, format_duration

if TYPE_CHECKING:
    from collections.abc import Mapping

    from testbed.files.rundir import Run
    from testbed.traces.inspect import Inspection

__all__ = ["command"]

_SNIFFED_BYTES: Final = 4096
_OPERATIONS: Final[list[Column]] = [
    ("iteration", "iteration", str),
    ("kind", "operation", str),
    ("calls", "calls", str),
    ("ranks", "ranks", str),
    ("in_bytes", "in", format_bytes),
    ("out_bytes", "out", format_bytes),
    ("unknown", "without size", str),
]
_TIMES: Final[list[Column]] = [
    ("rank", "rank", str),
    ("kernels", "kernels", str),
    ("communication_kernels", "of communication", str),
    ("span_ns", "span", format_duration),
    ("busy_ns", "busy", format_duration),
    ("compute_ns", "compute", format_duration),
    ("communication_ns", "communication", format_duration),
    ("overlap_ns", "overlap", format_duration),
    ("path", "file", str),
]
_DEPTHS: Final[list[Column]] = [
    ("iteration", "iteration", str),
    ("depth", "dependency depth", str),
]
_GROUPS: Final[list[Column]] = [
    ("group", "group", str),
    ("ranks", "ranks", str),
    ("origin", "origin", str),
    ("desc", "description", str),
]
_CIRCUITS: Final[list[Column]] = [
    ("plane", "plane", str),
    ("src_port", "from port", str),
    ("dst_port", "to port", str),
    ("src", "from node", str),
    ("dst", "to node", str),
    ("made", "times made", str),
    ("bytes", "carried", format_bytes),
    ("lit_ns", "lit", format_duration),
    ("used", "of it used", percent),
    ("late_p50_ns", "up after planned", format_duration),
    ("late_most_ns", "at most", format_duration),
]
_SHOWN: Final = 24  # circuits in a table
_FACTS: Final[list[Column]] = [("fact", "fact", str), ("value", "value", str)]


@click.command("inspect")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--from", "importer", metavar="FORMAT", help="Read a trace as this format.")
@click.option("--window", type=click.IntRange(0), help="Take this profiler window of each rank.")
@format_option
def command(files: tuple[Path, ...], importer: str | None, window: int | None, style: str) -> None:
    """Say what is in FILES: a trace (all its files together), a workload, a plan or a run.

    Example: fluxbed inspect examples/traces/llama-tp4-dp2
    """
    first = files[0]
    if len(files) == 1 and (first / "manifest.json").is_file():
        _show_run(first, style)
    elif len(files) == 1 and first.is_file() and _is_plan(first):
        _show_plan(first, style)
    else:
        from testbed.traces.inspect import inspect

        _show_capture(inspect(files, importer=importer, window=window), style)


def _is_plan(path: Path) -> bool:
    with path.open("rb") as stream:
        return b'"fluxbed-plan"' in stream.read(_SNIFFED_BYTES)


def _show_facts(facts: Mapping[str, Any], style: str) -> None:
    if style == "json":
        click.echo(json.dumps(facts, indent=2))
        return
    written = {
        key: json.dumps(value) if isinstance(value, dict | list) else value
        for key, value in facts.items()
    }
    records = [{"fact": key, "value": value} for key, value in written.items()]
    print_records(records, _FACTS, style)


def _show_run(path: Path, style: str) -> None:
    from testbed.files.rundir import read_run

    run = read_run(path)
    summary: dict[str, Any] = msgspec.to_builtins(run.summary)
    facts = {
        "run": str(path),
        "origin": run.manifest.origin,
        "topology": run.manifest.topology,
        "created_utc": run.manifest.created_utc,
        "iterations": run.manifest.iterations,
        **summary,
        "error": msgspec.to_builtins(run.manifest.error),
    }
    circuits = _circuits(run)
    if style != "table":
        facts["circuits"] = circuits
    _show_facts(facts, style)
    if style == "table" and circuits:
        click.echo()
        print_records(circuits[:_SHOWN], _CIRCUITS, style)
        if len(circuits) > _SHOWN:
            note(f"{len(circuits) - _SHOWN} circuits of fewer bytes: --format json has them")


def _circuits(run: Run) -> list[dict[str, Any]]:
    """Return what became of every circuit; nothing of a run without tables."""
    from testbed.report.circuits import circuit_uses

    if not (run.path / "circuits.parquet").is_file():
        return []
    return [dataclasses.asdict(use) for use in circuit_uses(run.fabric(), run.timeline())]


def _show_plan(path: Path, style: str) -> None:
    from scheduler.model.program import OrderedProgram
    from testbed.files.plan import read_plan

    plan = read_plan(path)
    facts = {
        "scheduler": plan.scheduler.name,
        "params": dict(plan.scheduler.params),
        "fabric": plan.fabric.name,
        "nodes": plan.fabric.nodes,
        "planes": len(plan.fabric.planes),
        "program": type(plan.program).__name__,
        "entries": len(plan.program.plane) if isinstance(plan.program, OrderedProgram) else None,
        "seed": plan.seed,
        "workload_sha256": plan.workload_sha256,
        "expansion_sha256": plan.expansion_sha256,
        **msgspec.to_builtins(plan.predicted),
    }
    _show_facts(facts, style)


def _show_capture(found: Inspection, style: str) -> None:
    if style == "json":
        click.echo(json.dumps(dataclasses.asdict(found), indent=2))
        return
    operations = [dataclasses.asdict(one) for one in found.operations]
    if style == "csv":
        print_records(operations, _OPERATIONS, style)
        return
    world = UNKNOWN if found.world is None else found.world
    schema = f", schema {found.schema}" if found.schema else ""
    click.echo(f"{found.format}{schema}: {len(found.ranks)} of {world} ranks")
    groups = [
        {"group": name, **dataclasses.asdict(group), "ranks": ", ".join(map(str, group.ranks))}
        for name, group in found.groups.items()
    ]
    depths = [
        {"iteration": iteration, "depth": depth}
        for iteration, depth in (found.dependency_depth or {}).items()
    ]
    for records, columns in (
        (groups, _GROUPS),
        (operations, _OPERATIONS),
        ([dataclasses.asdict(one) for one in found.times], _TIMES),
        (depths, _DEPTHS),
    ):
        if records:
            click.echo()
            print_records(records, columns, style)
    tell_losses(found.losses)
    for sentence in found.missing:
        note(sentence)
