"""The workload file: one header line, then one line per operation, in program order.

`.workload.jsonl`, optionally `.gz` or `.zst`. Integers only, in ns and bytes; what is unknown is
null, never 0. Equal workloads give equal bytes. `docs/schemas/workload.schema.json` describes each
line.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from scheduler.model.workload import (
    COLLECTIVES,
    Collective,
    Compute,
    Group,
    Loss,
    Participation,
    Source,
    Workload,
)
from testbed.files.codec import decode_json, json_schema, read_lines, write_chunks
from testbed.files.soundness import check_workload
from topologies.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from scheduler.model.workload import Operation

__all__ = [
    "FORMAT",
    "VERSION",
    "decode_workload",
    "encode_workload",
    "read_workload",
    "workload_schema",
    "write_workload",
]

FORMAT: Final = "fluxbed-workload"
VERSION: Final = 1

_MOST: Final = 2**63 - 1
Natural: TypeAlias = Annotated[int, Meta(ge=0, le=_MOST)]
Time: TypeAlias = Annotated[int, Meta(ge=-_MOST, le=_MOST)]


class _Group(Struct, forbid_unknown_fields=True):
    ranks: list[Natural]
    desc: str | None = None
    origin: Literal["recorded", "inferred", "default"] = "recorded"


class _Source(Struct, forbid_unknown_fields=True):
    path: str
    sha256: str | None
    format: str
    schema: str | None = None


class _Loss(Struct, forbid_unknown_fields=True):
    what: str
    count: Natural
    example: str | None = None


class _Header(Struct, forbid_unknown_fields=True):
    format: Literal["fluxbed-workload"]
    version: Literal[1]
    world: Annotated[int, Meta(ge=1, lt=2**31)]
    source: _Source
    placement: dict[Natural, str] | None
    time_base: str | None
    compute_scale: Annotated[float, Meta(gt=0)]
    groups: dict[str, _Group]
    iterations: list[Natural]
    losses: list[_Loss]
    synthesised_ranks: list[Natural]
    notes: list[str] | UnsetType = UNSET


class _Compute(Struct, forbid_unknown_fields=True, tag_field="op", tag="compute"):
    id: Natural
    rank: Natural
    stream: Natural
    start_ns: Time | None
    dur_ns: Natural
    iter: Natural | None
    deps: list[Natural]
    starts_after: list[Natural] | UnsetType = UNSET


class _Part(Struct, forbid_unknown_fields=True):
    in_bytes: Natural | None
    out_bytes: Natural | None
    stream: Natural
    arrive_ns: Time | None = None
    end_ns: Time | None = None
    deps: list[Natural] = []
    starts_after: list[Natural] = []


class _Comm(Struct, forbid_unknown_fields=True, tag_field="op", tag="comm"):
    id: Natural
    kind: Literal[COLLECTIVES]  # type: ignore[valid-type] # the model's own list of kinds
    group: str
    seq: Natural | None
    iter: Natural | None
    dtype: str | None
    ranks: dict[Natural, _Part]
    algo: str | UnsetType = UNSET
    root: Natural | UnsetType = UNSET
    peer: Natural | UnsetType = UNSET
    tag: Natural | UnsetType = UNSET
    splits: dict[Natural, list[Natural]] | UnsetType = UNSET


_Line: TypeAlias = _Compute | _Comm


def workload_schema() -> bytes:
    """Write the JSON Schema that every line of a workload file satisfies."""
    return json_schema("A line of a workload file", "workload", _Header, _Compute | _Comm)


# --- writing


def _or_unset(value: int | str | None) -> int | str | UnsetType:
    return UNSET if value is None else value


def _line(operation: Operation) -> _Line:
    if isinstance(operation, Compute):
        return _Compute(
            id=operation.id,
            rank=operation.rank,
            stream=operation.stream,
            start_ns=operation.start_ns,
            dur_ns=operation.dur_ns,
            iter=operation.iter,
            deps=list(operation.deps),
            starts_after=list(operation.starts_after) or UNSET,
        )
    return _Comm(
        id=operation.id,
        kind=operation.kind,
        group=operation.group,
        seq=operation.seq,
        iter=operation.iter,
        dtype=operation.dtype,
        ranks={
            rank: _Part(
                in_bytes=part.in_bytes,
                out_bytes=part.out_bytes,
                stream=part.stream,
                arrive_ns=part.arrive_ns,
                end_ns=part.end_ns,
                deps=list(part.deps),
                starts_after=list(part.starts_after),
            )
            for rank, part in sorted(operation.ranks.items())
        },
        algo=_or_unset(operation.algo),  # type: ignore[arg-type] # None alone becomes UNSET
        root=_or_unset(operation.root),  # type: ignore[arg-type]
        peer=_or_unset(operation.peer),  # type: ignore[arg-type]
        tag=_or_unset(operation.tag),  # type: ignore[arg-type]
        splits=UNSET
        if operation.splits is None
        else {rank: list(row) for rank, row in sorted(operation.splits.items())},
    )


def _header(workload: Workload) -> _Header:
    return _Header(
        format=FORMAT,
        version=VERSION,
        world=workload.world,
        source=_Source(
            workload.source.path,
            workload.source.sha256,
            workload.source.format,
            workload.source.schema,
        ),
        placement=None if workload.placement is None else dict(sorted(workload.placement.items())),
        time_base=workload.time_base,
        compute_scale=workload.compute_scale,
        groups={
            name: _Group(list(group.ranks), group.desc, group.origin)
            for name, group in workload.groups.items()
        },
        iterations=list(workload.iterations),
        losses=[_Loss(loss.what, loss.count, loss.example) for loss in workload.losses],
        synthesised_ranks=list(workload.synthesised_ranks),
        notes=list(workload.notes) or UNSET,
    )


def encode_workload(workload: Workload) -> Iterator[bytes]:
    """Yield the file's lines, newline included."""
    encoder = msgspec.json.Encoder()
    yield encoder.encode(_header(workload)) + b"\n"
    for operation in workload.operations:
        yield encoder.encode(_line(operation)) + b"\n"


def write_workload(workload: Workload, path: Path | str) -> None:
    """Write `path`, compressed as its name ends; equal workloads give equal bytes.

    Raises `InputError` when the workload is unsound (see `check_workload`) or the file cannot be
    written.
    """
    path = Path(path)
    check_workload(workload, lambda index: f"{path} line {index + 2}")
    write_chunks(path, encode_workload(workload))


# --- reading


def _operation(line: _Line) -> Operation:
    if isinstance(line, _Compute):
        return Compute(
            id=line.id,
            rank=line.rank,
            stream=line.stream,
            dur_ns=line.dur_ns,
            start_ns=line.start_ns,
            iter=line.iter,
            deps=tuple(line.deps),
            starts_after=tuple(line.starts_after or ()),
        )
    return Collective(
        id=line.id,
        kind=line.kind,
        group=line.group,
        ranks={
            rank: Participation(
                in_bytes=part.in_bytes,
                out_bytes=part.out_bytes,
                stream=part.stream,
                arrive_ns=part.arrive_ns,
                end_ns=part.end_ns,
                deps=tuple(part.deps),
                starts_after=tuple(part.starts_after),
            )
            for rank, part in line.ranks.items()
        },
        seq=line.seq,
        iter=line.iter,
        dtype=line.dtype,
        algo=None if line.algo is UNSET else line.algo,
        root=None if line.root is UNSET else line.root,
        peer=None if line.peer is UNSET else line.peer,
        tag=None if line.tag is UNSET else line.tag,
        splits=None
        if line.splits is UNSET
        else {rank: tuple(row) for rank, row in line.splits.items()},
    )


def decode_workload(lines: Iterable[bytes], where: str) -> Workload:
    """Decode a workload from its lines, one at a time; `where` names their file in errors.

    Raises `InputError` naming file and line when a line is not what it should be, or the whole is
    unsound.
    """
    numbered = enumerate(lines, start=1)
    first = next(numbered, (1, b""))[1]
    if not first.strip():
        raise InputError("there is no header", where, "the file is empty", "write it again")
    header = decode_json(first, _Header, f"{where} line 1", "a fluxbed-workload header, version 1")
    decoder = msgspec.json.Decoder(_Line)
    operations: list[Operation] = []
    places: list[int] = []
    for number, line in numbered:
        if not line.strip():
            continue
        try:
            operations.append(_operation(decoder.decode(line)))
        except (msgspec.DecodeError, UnicodeDecodeError):
            place = f"{where} line {number}"
            decode_json(line, _Line, place, "an operation")  # type: ignore[arg-type] # a union
            raise
        places.append(number)
    workload = Workload(
        world=header.world,
        groups={
            name: Group(ranks=tuple(group.ranks), desc=group.desc, origin=group.origin)
            for name, group in header.groups.items()
        },
        operations=tuple(operations),
        source=Source(
            path=header.source.path,
            sha256=header.source.sha256,
            format=header.source.format,
            schema=header.source.schema,
        ),
        iterations=tuple(header.iterations),
        placement=header.placement,
        time_base=header.time_base,
        compute_scale=header.compute_scale,
        losses=tuple(
            Loss(what=loss.what, count=loss.count, example=loss.example) for loss in header.losses
        ),
        synthesised_ranks=tuple(header.synthesised_ranks),
        notes=tuple(header.notes or ()),
    )
    check_workload(workload, lambda index: f"{where} line {places[index] if index >= 0 else 1}")
    return workload


def read_workload(path: Path | str) -> Workload:
    """Read a workload file, compressed or not. Raises `InputError` as `decode_workload`."""
    return decode_workload(read_lines(Path(path)), str(path))
