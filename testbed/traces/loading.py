"""Any trace, or a workload file, to a workload: recognised by content, read, assembled.

An importer of one's own is a class in a file that has what `Importer` asks for, and is named
`my_trace.py:MyTrace` where a format is.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from scheduler.model.workload import Compute, Source
from testbed.files.workload import FORMAT, decode_workload
from testbed.traces.aicb import Aicb
from testbed.traces.assembly import Options, assemble
from testbed.traces.chakra import Chakra, ChakraJson
from testbed.traces.comms_replay import CommsReplay
from testbed.traces.demand import number_hosts
from testbed.traces.execution_trace import ExecutionTrace
from testbed.traces.flight_recorder import FlightRecorder
from testbed.traces.goal import Goal
from testbed.traces.joining import one_per_rank, world_of
from testbed.traces.kineto import Kineto
from testbed.traces.nccl_log import NcclLog
from testbed.traces.nccl_summary import NcclSummary
from testbed.traces.nsys import Nsys
from testbed.traces.parallel import large_files, read_side_by_side
from testbed.traces.pcap import Pcap
from testbed.traces.simai import SimAi
from testbed.traces.sources import Blob, digest, open_sources
from topologies.errors import InputError, UsageError
from topologies.spelling import meant
from topologies.user_files import is_in_file, load_attribute

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from scheduler.model.workload import Operation, Workload
    from testbed.traces.capture import Recording

__all__ = ["IMPORTERS", "Importer", "build", "load_recordings", "load_workload", "read_any"]

_HEAD: Final = 2**16
_HEADER: Final = 200
_SCHEDULE: Final = re.compile(rb"[,\s]*\d+(?:UNSHARD|RESHARD|(?:SEND_|RECV_)?[FBIW]\d+)\s*[,\n]")
_EXPORT: Final = b"fluxbed_header"  # in Chakra traces that were workloads of ours


class Importer(Protocol):
    """One trace format. `read` returns what a file says about each rank in it."""

    @property
    def name(self) -> str:
        """The format's name, for `--from`."""

    def sniff(self, head: bytes) -> bool:
        """Tell by a file's first 64 KiB whether it is of this format."""

    def read(self, blob: Blob) -> list[Recording]:
        """Read a file; raises `InputError` when it is damaged."""


IMPORTERS: Final[Mapping[str, Importer]] = {
    importer.name: importer
    for importer in (
        Kineto(),
        ExecutionTrace(),
        ChakraJson(),
        CommsReplay(),
        Goal(),
        SimAi(),
        NcclLog(),
        FlightRecorder(),
        Nsys(),
        Pcap(),
        Aicb(),
        NcclSummary(),
        Chakra(),
    )
}


def read_any(
    paths: Iterable[Path | str] | Path | str, *, importer: str | None = None
) -> list[Recording] | Workload:
    """Read every trace in `paths` without joining them, or the one workload file there is.

    Files of no known format are refused where they were named, and left aside where they lie in a
    directory or archive among traces. Raises `UsageError` for an unknown importer and `InputError`
    for files that cannot be read.
    """
    given = [paths] if isinstance(paths, (str, Path)) else list(paths)
    for path in given:
        _refuse_run(Path(path))
    reader = None if importer is None else _named(importer)
    recordings: list[Recording] = []
    exported: list[tuple[str, bytes]] = []
    blobs = open_sources(given)
    large = large_files(blobs) if importer in (None, Kineto.name) else []
    ready = read_side_by_side(large) if large else {}
    for blob in blobs:
        if blob.path in ready:
            recordings += ready.pop(blob.path)
            continue
        data = blob.load()
        if _EXPORT in data[:_HEAD] and importer in (None, Chakra.name):
            exported.append((blob.path, data))
            continue
        if importer is None and FORMAT.encode() in data[:_HEADER]:
            return decode_workload(data.splitlines(keepends=True), blob.path)
        recordings += _read(blob, data, reader)
    if exported:
        from testbed.traces.export_chakra import restore

        if (workload := restore(exported)) is not None:
            return workload
    return _or_refuse(recordings, given)


def build(recordings: list[Recording], given: list[Path | str], options: Options) -> Workload:
    """Join and assemble what `read_any` read from `given`; errors as `load_workload`.

    Recordings are completed in place: use them no more.
    """
    chosen = one_per_rank(recordings, options)
    if not chosen:
        why = (
            "the files hold groups only" if options.ranks is None else "--ranks chooses none of it"
        )
        raise InputError("no rank is left", _name(given), why, "give the ranks' traces as well")
    some = next(iter(chosen.values()))
    source = Source(path=_name(given), sha256=digest(given), format=some.format, schema=some.schema)
    workload = assemble(chosen, world_of(chosen.values()), source, options)
    if options.strict and workload.losses:
        loss = workload.losses[0]
        raise InputError(
            f"something was lost or inferred: {loss.what} ({loss.count})",
            _name(given),
            "--strict allows nothing of the kind",
            "record it, or load without --strict",
        )
    return workload


def load_recordings(
    paths: Iterable[Path | str] | Path | str, *, importer: str | None = None
) -> list[Recording]:
    """Read traces as `read_any` does; `InputError` for a workload file."""
    found = read_any(paths, importer=importer)
    if isinstance(found, list):
        return found
    why = "its ranks are joined already"
    raise InputError("it is a workload", found.source.path, why, "load it as one")


def _or_refuse(recordings: list[Recording], paths: list[Path | str]) -> list[Recording]:
    if not recordings:
        why = f"no file in it is one of {', '.join(IMPORTERS)}"
        raise InputError("there is no trace to load", _name(paths), why, "give trace files")
    number_hosts(recordings)
    return recordings


def _refuse_run(path: Path) -> None:
    if all((path / name).is_file() for name in ("manifest.json", "plan.json", "workload.jsonl")):
        why = "it holds what a workload became"
        fix = f"give {path / 'workload.jsonl'}, the workload it was made from"
        raise InputError("this is a run, not a trace", str(path), why, fix)


def _named(importer: str) -> Importer:
    """Return the importer that `--from` names; `UsageError` where there is none."""
    if is_in_file(importer):
        found = load_attribute(importer, importer, inspect.isclass)
        missing = [name for name in ("name", "sniff", "read") if not hasattr(found, name)]
        if missing or not callable(found):
            why = f"it has no {missing[0]}" if missing else "it is no class"
            fix = "give it name, sniff(head) and read(blob)"
            raise UsageError(f"{importer!r} is no importer", "--from", why, fix)
        own: Importer = found()
        return own
    if importer not in IMPORTERS:
        why = f"there are {', '.join(IMPORTERS)}"
        fix = meant(importer, IMPORTERS, "choose one, or write my_trace.py:Class")
        raise UsageError(f"no importer is called {importer!r}", "--from", why, fix)
    return IMPORTERS[importer]


def _read(blob: Blob, data: bytes, reader: Importer | None) -> list[Recording]:
    head, blob = data[:_HEAD], replace(blob, load=lambda: data)
    if reader is not None:
        return reader.read(blob) if blob.named or reader.sniff(head) else []
    for candidate in IMPORTERS.values():
        if candidate.sniff(head):
            return candidate.read(blob)
    if not blob.named:
        return []
    if _SCHEDULE.match(head):
        why = "it says in which order stages work, not what they compute and send"
        fix = "make a step that runs it with fluxbed synth MODEL --schedule"
        raise InputError("this is a pipeline schedule", blob.path, why, fix)
    raise InputError(
        "this is no trace fluxbed knows",
        blob.path,
        f"it begins with {head[:24]!r}" if head else "it is empty",
        f"give one of: {', '.join(IMPORTERS)}, or a workload file",
    )


def load_workload(
    paths: Iterable[Path | str] | Path | str,
    *,
    importer: str | None = None,
    ranks: Iterable[int] | None = None,
    groups: Mapping[str, tuple[int, ...]] | None = None,
    window: int | None = None,
    iteration: int | None = None,
    strict: bool = False,
    compute_scale: float | None = None,
) -> Workload:
    """Load traces, or one workload file: files, directories, archives, "-" for standard input.

    `importer` names the format instead of recognising it; `ranks` keeps only those;
    `groups` tells members that the trace does not say, by group name, KIND:BYTES or KIND; `window`
    is which of several profiler windows; `iteration` keeps one iteration; `compute_scale` goes into
    the header. With `strict` anything dropped or inferred is an `InputError`. Raises `InputError`
    when files are damaged, ranks are missing or duplicate, or their collectives do not match.
    """
    given = [paths] if isinstance(paths, (str, Path)) else list(paths)
    options = Options(
        ranks=None if ranks is None else frozenset(ranks),
        groups=groups or {},
        window=window,
        iteration=iteration,
        strict=strict,
        compute_scale=1.0 if compute_scale is None else compute_scale,
    )
    found = read_any(given, importer=importer)
    if not isinstance(found, list):
        return _adapt(found, _name(given), options, compute_scale)
    return build(found, given, options)


def _name(paths: list[Path | str]) -> str:
    """Name what was given, in errors and in the header."""
    return ", ".join(str(path) for path in paths)


def _adapt(
    workload: Workload, path: str, options: Options, compute_scale: float | None
) -> Workload:
    """Apply the options that make sense for a workload file."""
    if options.ranks is not None or options.window is not None or options.groups:
        why = "they are about the ranks, windows and groups of a capture"
        raise UsageError("--ranks, --window and --group do not apply", path, why, "leave them out")
    if options.iteration is not None:
        if options.iteration not in workload.iterations:
            raise InputError(
                f"iteration {options.iteration} is not in it",
                path,
                f"there are {list(workload.iterations)}",
                "choose one of them",
            )
        workload = _one_iteration(workload, options.iteration)
    return workload if compute_scale is None else replace(workload, compute_scale=compute_scale)


def _one_iteration(workload: Workload, iteration: int) -> Workload:
    """Keep one iteration's operations, and dependencies among them."""
    kept = tuple(op for op in workload.operations if op.iter == iteration)
    ids = {operation.id for operation in kept}
    return replace(
        workload,
        iterations=(iteration,),
        operations=tuple(_without(operation, ids) for operation in kept),
    )


def _without(operation: Operation, ids: set[int]) -> Operation:
    def among(needs: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(need for need in needs if need in ids)

    if isinstance(operation, Compute):
        return replace(
            operation, deps=among(operation.deps), starts_after=among(operation.starts_after)
        )
    return replace(
        operation,
        ranks={
            rank: replace(part, deps=among(part.deps), starts_after=among(part.starts_after))
            for rank, part in operation.ranks.items()
        },
    )
