"""A run directory: written as the run goes, complete or honest about it, and read back whole.

    with RunDirectory.create(None, scheduler="flux", plan=plan, workload=workload,
                             expansion=expansion, origin="simulated", iterations=12, skip=2) as run:
        timeline = simulate(...)
        run.write_results(timeline)

The manifest is written first and replaced atomically. A `FluxbedError` or Ctrl-C inside the block
is recorded and passes on; what was written until then stays.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import msgspec

from scheduler.model.nic import account_nics
from testbed.files.codec import decode_json, read_bytes
from testbed.files.manifest import (
    ErrorRecord,
    Manifest,
    decode_manifest,
    encode_manifest,
)
from testbed.files.plan import Plan, encode_plan, read_plan
from testbed.files.summary import Status, Summary, summarise
from testbed.files.tables import (
    COLUMNS,
    Table,
    read_table,
    run_tables,
    timeline_of,
    write_table,
)
from testbed.files.timeline_json import write_timeline
from testbed.files.workload import encode_workload, read_workload
from topologies.errors import InputError, StalledError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

    from scheduler.model.expansion import Expansion
    from scheduler.model.nic import Injection as InjectionKind
    from scheduler.model.nic import NicAccount
    from scheduler.model.perturbation import Perturbation
    from scheduler.model.timeline import Timeline
    from scheduler.model.workload import Workload
    from testbed.files.summary import FaultEffect, Replanning
    from topologies import Fabric

__all__ = [
    "Run",
    "RunDirectory",
    "directory_name",
    "find_runs",
    "read_run",
    "record_file",
    "sha256_of",
]

MANIFEST: Final = "manifest.json"
_UNFIT: Final = re.compile(r"[^A-Za-z0-9._-]+")


def directory_name(scheduler: str) -> str:
    """Return a scheduler's spelling as a directory name.

    >>> directory_name("my_flux.py:MyFlux,slot=100us")
    'my_flux.py-MyFlux-slot-100us'
    """
    return _UNFIT.sub("-", scheduler).strip("-.") or "scheduler"


class RunDirectory:
    """A run being written; see the module for how. `path` is its directory."""

    def __init__(self, path: Path, manifest: Manifest, plan: Plan, expansion: Expansion) -> None:
        self.path = path
        self.manifest = manifest
        self._plan = plan
        self._expansion = expansion

    @classmethod
    def create(
        cls,
        path: Path | str | None,
        *,
        scheduler: str,
        plan: Plan,
        workload: Workload,
        expansion: Expansion,
        origin: Literal["simulated", "emulated"],
        iterations: int,
        skip: int,
        topology: str = "",
        **known: Any,  # noqa: ANN401 (further fields of the manifest)
    ) -> RunDirectory:
        """Make the directory and write manifest, plan and workload.

        `path` defaults to `runs/<utc>-<scheduler>-<hash8>`; an existing directory is never written
        into unless it is empty. Raises `UsageError` when it cannot be made or written.
        """
        now = dt.datetime.now(dt.UTC)
        digest = hashlib.sha256(encode_plan(plan)).hexdigest()[:8]
        name = f"{now:%Y%m%dT%H%M%SZ}-{directory_name(scheduler)}-{digest}"
        directory = _make(None if path is None else Path(path), name)
        manifest = Manifest.begin(
            run_id=name,
            created_utc=f"{now:%Y-%m-%dT%H:%M:%SZ}",
            origin=origin,
            scheduler=scheduler,
            fabric=plan.fabric,
            expansion=expansion,
            iterations=iterations,
            skip=skip,
            **known,
        )
        if topology:
            manifest.topology = topology
        run = cls(directory, manifest, plan, expansion)
        run.update()
        run.write_file("plan.json", encode_plan(plan))
        run.write_file("workload.jsonl", b"".join(encode_workload(workload)))
        return run

    def update(self, **fields: Any) -> None:  # noqa: ANN401 (fields of the manifest)
        """Change fields of the manifest and replace its file atomically."""
        for name, value in fields.items():
            setattr(self.manifest, name, value)
        self.write_file(MANIFEST, encode_manifest(self.manifest))

    def write_file(self, name: str, data: bytes) -> None:
        """Write a file whole or not at all; raises `UsageError` where it cannot be written."""
        _write_whole(self.path / name, data)
        _give_to_user(self.path / name)

    def adopt(self, *paths: Path) -> None:
        """Give files that something else wrote into the directory to the run's user."""
        for path in paths:
            _give_to_user(path)

    def write_results(
        self,
        timeline: Timeline,
        *,
        predicted_ns: float | None = None,
        predicted_ideal_ns: float | None = None,
        pace_kept: bool | None = None,
        faults: Sequence[FaultEffect] = (),
        replanning: Replanning | None = None,
    ) -> Summary:
        """Write tables, timeline and, for a finished execution, the summary; return it."""
        graph, fabric = self._expansion.graph, self._plan.fabric
        injection = self.manifest.injection
        order: tuple[InjectionKind, ...] = (
            ("eager", "paced") if injection.kind == "eager" else ("paced", "eager")
        )
        accounts = {
            kind: account_nics(
                graph,
                fabric,
                timeline,
                kind,
                feedback_ns=injection.feedback_ns,
                mtu_bytes=injection.mtu_bytes,
                nic_buffer_bytes=injection.buffer_bytes,
            )
            for kind in order
        }
        self._write_records(timeline, accounts)
        self.update(measures=dict(timeline.measures))
        if timeline.iteration_ns(self.manifest.skip) is None and self.manifest.skip:
            return self._write_summary(self._unfinished("failed"))
        return self._write_summary(
            summarise(
                graph,
                fabric,
                timeline,
                accounts,
                scheduler=self.manifest.scheduler,
                rank_to_node=self._expansion.rank_to_node,
                skip=self.manifest.skip,
                promised=self._plan.predicted,
                nic_buffer_bytes=injection.buffer_bytes,
                predicted_ns=predicted_ns,
                predicted_ideal_ns=predicted_ideal_ns,
                pace_kept=pace_kept,
                faults=faults,
                replanning=replanning,
            )
        )

    def _write_records(
        self, timeline: Timeline, accounts: Mapping[InjectionKind, NicAccount]
    ) -> None:
        """Write the tables and the timeline; raises `UsageError` where they cannot be written."""
        graph, fabric = self._expansion.graph, self._plan.fabric
        try:
            for name, table in run_tables(graph, fabric, timeline, accounts).items():
                path = self.path / f"{name}.parquet"
                write_table(name, table, path)
                _give_to_user(path)
            path = self.path / "timeline.json"
            placed = self._expansion.rank_to_node
            write_timeline(path, graph, fabric, timeline, placed, skip=self.manifest.skip)
            _give_to_user(path)
        except UsageError as error:
            fix = "make room, or choose another directory with -o"
            raise UsageError(error.what, error.where, error.why, fix) from error

    def _unfinished(self, status: Status) -> Summary:
        summary = Summary.unfinished(self.manifest.scheduler, status)
        if self.manifest.faults:  # what the failure is owed to
            summary.faulted, summary.faults = True, self.manifest.fault_effects
        return summary

    def _write_summary(self, summary: Summary) -> Summary:
        encoded = msgspec.json.format(msgspec.json.encode(summary), indent=2)
        self.write_file("summary.json", encoded + b"\n")
        return summary

    def finish(self, status: Status, error: BaseException | None = None) -> None:
        """Record how the run ended and the hashes of its files. A failed run's summary is null."""
        if status != "ok" or not (self.path / "summary.json").is_file():
            self._write_summary(self._unfinished(status))
        ended = dt.datetime.now(dt.UTC)
        self.update(
            status=status,
            error=None if error is None else ErrorRecord.of(error),
            ended_utc=f"{ended:%Y-%m-%dT%H:%M:%SZ}",
            files={path.name: sha256_of(path) for path in _files(self.path)},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.finish("ok")
            return
        status: Status = "stalled" if isinstance(error, StalledError) else "failed"
        if isinstance(error, KeyboardInterrupt):
            status = "interrupted"
            error.args = error.args or (f"what was done until then is in {self.path}",)
        with contextlib.suppress(UsageError):  # a full disk is told once, by `error`
            self.finish(status, error)


def _make(path: Path | None, name: str) -> Path:
    """Make the run's directory, and those above it, for the user who called sudo."""
    numbers = iter(range(2, 1000))
    wanted = Path("runs") / name if path is None else path
    while wanted.is_dir() and (path is None or any(wanted.iterdir())):
        if path is not None:
            why = "a run never overwrites what is there"
            raise UsageError("the directory is not empty", str(path), why, "choose another name")
        wanted = Path("runs") / f"{name}-{next(numbers)}"
    missing = [each for each in (wanted, *wanted.parents) if not each.exists()]
    try:
        wanted.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(wanted, error) from error
    if not os.access(wanted, os.W_OK | os.X_OK):
        raise _unwritable(wanted, PermissionError(13, "permission denied"))
    for each in missing:
        _give_to_user(each)
    return wanted


def _unwritable(path: Path, error: OSError) -> UsageError:
    why = (error.strerror or str(error)).lower()
    return UsageError("it cannot be written", str(path), why, "choose another directory with -o")


def _write_whole(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, and leave nothing beside it."""
    beside = path.with_name(f".{path.name}.part")
    try:
        beside.write_bytes(data)
        beside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise _unwritable(path, error) from error


def _give_to_user(path: Path) -> None:
    """Files of a run under sudo belong to the user who called it."""
    if (
        hasattr(os, "chown")
        and os.geteuid() == 0
        and (user := os.environ.get("SUDO_UID", "")).isdecimal()
    ):
        group = os.environ.get("SUDO_GID", "")
        os.chown(path, int(user), int(group) if group.isdecimal() else -1)


def _files(directory: Path) -> Iterator[Path]:
    for path in sorted(directory.iterdir()):
        if path.is_file() and path.name != MANIFEST and not path.name.startswith("."):
            yield path


def sha256_of(path: Path) -> str:
    """Hash a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def record_file(directory: Path, name: str, data: bytes) -> None:
    """Add or replace a file of a finished run and its hash in the manifest (for reports)."""
    manifest = _read_manifest(directory)
    path = directory / name
    _write_whole(path, data)
    manifest.files[name] = sha256_of(path)
    _write_whole(directory / MANIFEST, encode_manifest(manifest))
    _give_to_user(path)
    _give_to_user(directory / MANIFEST)


# --- reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run directory, read. Tables and timeline are read when asked for."""

    path: Path
    manifest: Manifest
    summary: Summary

    def plan(self) -> Plan:
        """Read the plan that was executed."""
        return read_plan(self.path / "plan.json")

    def workload(self) -> Workload:
        """Read the workload that was executed."""
        return read_workload(self.path / "workload.jsonl")

    def fabric(self) -> Fabric:
        """Return the fabric it ran on."""
        return self.manifest.fabric.fabric(str(self.path / MANIFEST), self.manifest.topology)

    def perturbation(self) -> Perturbation | None:
        """Return how the execution differed from what was planned."""
        recorded = self.manifest.jitter
        return None if recorded is None else recorded.perturbation(str(self.path / MANIFEST))

    def expansion(self) -> Expansion:
        """Expand the workload again, as the manifest says, and perturb it likewise."""
        from scheduler.model.expansion import expand

        where = str(self.path / MANIFEST)
        options = self.manifest.expansion.options(where)
        workload, perturbation = self.workload(), self.perturbation()
        expansion = expand(workload, self.fabric(), options, self.manifest.rank_to_node)
        if perturbation is None:
            return expansion
        graph = perturbation.apply(expansion.graph, workload)
        return dataclasses.replace(expansion, graph=graph)

    def table(self, name: str) -> Table:
        """Read one of the tables of `testbed.files.tables.COLUMNS`."""
        return read_table(name, self.path / f"{name}.parquet")

    def tables(self) -> Mapping[str, Table]:
        """Read all tables."""
        return {name: self.table(name) for name in COLUMNS}

    def timeline(self) -> Timeline:
        """Rebuild the execution from the tables."""
        wanted = {name: self.table(name) for name in ("tasks", "transfers", "circuits")}
        manifest = self.manifest
        return timeline_of(wanted, manifest.iterations, manifest.measures, origin=manifest.origin)


def _read_manifest(directory: Path) -> Manifest:
    if not (directory / MANIFEST).is_file():
        why = "it has no manifest.json"
        raise InputError("this is not a run directory", str(directory), why, "name a run")
    return decode_manifest(read_bytes(directory / MANIFEST), str(directory / MANIFEST))


def read_run(path: Path | str) -> Run:
    """Read a run directory. Raises `InputError` when it is none, or is damaged."""
    directory = Path(path)
    manifest = _read_manifest(directory)
    place = directory / "summary.json"
    summary = (
        decode_json(read_bytes(place), Summary, str(place), "the summary of a run")
        if place.is_file()
        else Summary.unfinished(manifest.scheduler, manifest.status)
    )
    return Run(path=directory, manifest=manifest, summary=summary)


def find_runs(path: Path | str) -> list[Path]:
    """Return `path` if it is a run directory, else those directly in it, by name."""
    directory = Path(path)
    if (directory / MANIFEST).is_file():
        return [directory]
    found = directory.iterdir() if directory.is_dir() else ()
    return sorted(each for each in found if (each / MANIFEST).is_file())
