"""Re-check a finished run from its files alone."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import msgspec

from scheduler.check import Violation, examples
from scheduler.check_run import Record, check_run
from testbed.files.lateness import guard_outrun
from testbed.files.plan import workload_sha256
from testbed.files.rundir import read_run, sha256_of
from testbed.files.tables import COLUMNS, timeline_of
from topologies.errors import CheckError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from testbed.files.rundir import Run

__all__ = ["check_run_directory"]


def check_run_directory(path: Path | str) -> list[Violation]:
    """Return how the run in `path` breaks the model, its plan or its own word; [] if it does not.

    Raises `InputError` for a directory that is no run or has damaged files.
    """
    run = read_run(path)
    if run.manifest.status != "ok":
        why = run.manifest.error
        reason = "" if why is None else f": {why.what}, because {why.why}"
        ended = Violation("a run ends well", str(path), f"it {run.manifest.status}{reason}")
        return [ended, *_broken(run)]
    return examples("files are as they were written", _altered(run)) or [
        *examples("a run is what its manifest says", _estranged(run)),
        *check_run(_record(run)),
    ]


def _broken(run: Run) -> list[Violation]:
    """Return every rule that a run broke which failed for it; other failures leave no tables."""
    error = run.manifest.error
    whole = all((run.path / f"{name}.parquet").is_file() for name in COLUMNS)
    if error is None or error.exit != CheckError.exit_code or not whole:
        return []
    # its summary was replaced by one that claims nothing, so there is nothing to hold against it
    silent = dataclasses.replace(_record(run), summary={})
    return examples("files are as they were written", _altered(run)) or [
        violation for violation in check_run(silent) if not violation.where.startswith("summary ")
    ]


def _altered(run: Run) -> Iterator[tuple[str, str]]:
    for name, digest in run.manifest.files.items():
        path = run.path / name
        if not path.is_file():
            yield str(path), "it is missing"
        elif sha256_of(path) != digest:
            yield str(path), "it has changed since the run"


def _estranged(run: Run) -> Iterator[tuple[str, str]]:
    """Compare what manifest, plan, workload and summary say about each other."""
    plan, manifest = run.plan(), run.manifest
    pairs = (
        ("the plan's workload", plan.workload_sha256, workload_sha256(run.workload())),
        ("the plan's messages", plan.expansion_sha256, manifest.expansion.sha256),
        ("the messages", manifest.expansion.sha256, run.expansion().sha256),
        ("the placement", list(plan.rank_to_node), manifest.rank_to_node),
        ("the scheduler", run.summary.scheduler, manifest.scheduler),
    )
    for what, found, wanted in pairs:
        if found != wanted:
            yield "manifest.json", f"{what}: {found} and not {wanted}"


def _record(run: Run) -> Record:
    manifest, plan, tables = run.manifest, run.plan(), run.tables()
    return Record(
        graph=run.expansion().graph,
        fabric=run.fabric(),
        program=plan.program,
        rank_to_node=manifest.rank_to_node,
        timeline=timeline_of(
            tables, manifest.iterations, manifest.measures, origin=manifest.origin
        ),
        tables=tables,
        summary=msgspec.to_builtins(run.summary),
        skip=manifest.skip,
        tolerance_ns=manifest.tolerance_ns,
        injection=manifest.injection.kind,
        feedback_ns=manifest.injection.feedback_ns,
        mtu_bytes=manifest.injection.mtu_bytes,
        nic_buffer_bytes=manifest.injection.buffer_bytes,
        quantum_bytes=manifest.quantum_bytes,
        lookahead_ns=manifest.lookahead_ns,
        faults=manifest.faults,
        guard_outrun=manifest.dilation is not None
        and guard_outrun(manifest.measures, manifest.guard_ns or 0, manifest.dilation),
        pace_kept=None if manifest.overload is None else not manifest.overload,
        promised={
            "lower_bound_ns": plan.predicted.lower_bound_ns,
            "proven_optimal": plan.predicted.proven_optimal,
        },
    )
