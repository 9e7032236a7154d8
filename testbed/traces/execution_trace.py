"""PyTorch ExecutionTrace: what was called with which tensors, in order, without times.

Schemas 1.0.1 (flat nodes) to 1.1.1 (nested inputs). Alone it gives every collective and the order
of waiting; compute is unknown. Joined with the same rank's Kineto trace it completes that one.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Raw, Struct

from scheduler.model.workload import Group
from testbed.files.codec import decode_json
from testbed.traces.capture import BEFORE, Call, Recording, Step, strided
from testbed.traces.kineto import Args
from testbed.traces.kineto_calls import call_from_metadata, decoded, numbers
from testbed.traces.names import collective_kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from testbed.traces.sources import Blob

__all__ = ["ExecutionTrace"]

_NOTHING: Final = Raw(b"null")
_STEP: Final = re.compile(r"ProfilerStep#([0-9]{1,9})(?![0-9])")
_TENSOR_FIELDS: Final = 6
_NUMEL, _ELEMENT_BYTES = 3, 4
_ROOTED: Final = frozenset({"broadcast", "reduce", "gather", "scatter"})
_TYPE: Final = re.compile(r"Tensor\(([^()]*)\)")
_INIT: Final = "## process_group:init ##"
_FILE_RANK: Final = re.compile(r"(\d+)(?=\D*$)")


class _Attribute(Struct):
    name: str
    value: Any = None


class _Node(Struct, gc=False):
    id: int
    name: str
    rf_id: int | None = None
    inputs: Raw = _NOTHING
    outputs: Raw = _NOTHING
    input_types: Raw = _NOTHING
    attrs: Raw = _NOTHING


class _File(Struct):
    schema: str
    nodes: list[_Node]
    pid: int | None = None


class ExecutionTrace:
    """The importer of ExecutionTrace files: one file is one rank."""

    name: Final = "execution-trace"

    def sniff(self, head: bytes) -> bool:
        """Tell by its beginning whether a file is an ExecutionTrace."""
        return head.lstrip().startswith(b"{") and b'"schema"' in head and b'"nodes"' in head

    def read(self, blob: Blob) -> list[Recording]:
        """Read one rank; `InputError` when the file is cut or not an ExecutionTrace."""
        file = decode_json(blob.load(), _File, blob.path, "an ExecutionTrace")
        recording = Recording(
            path=blob.path, format=self.name, schema=file.schema, process=file.pid
        )
        nodes = sorted(file.nodes, key=lambda node: node.id)
        recording.groups = _read_groups(nodes, recording)
        rows = [node for node in nodes if node.name == "record_param_comms"]
        described = [node for node in nodes if node.name == "record_comms"]
        marks = [(n.id, int(m[1])) for n in nodes if (m := _STEP.match(n.name))]
        recording.steps = tuple(
            Step(number, start, end)
            for (start, number), (end, _) in zip(marks, [*marks[1:], (2**62, 0)], strict=False)
        )
        if not marks:
            recording.losses.add("files without ProfilerStep marks: taken as one iteration")
        places: list[tuple[Call, int]] = []
        if rows:
            _read_rows(rows, recording, places)
        elif described:
            _read_described(described, recording, places)
        else:
            _read_operators(nodes, recording)
        for call in recording.calls:
            call.step = _step_of(marks, call.issued_ns or 0)
        recording.rank = _rank(recording, places, blob)
        recording.updates_ns = [n.id for n in nodes if n.name.startswith("Optimizer.step#")]
        return [recording]


def _step_of(marks: list[tuple[int, int]], node: int) -> int:
    if not marks:
        return 0
    index = bisect_right(marks, (node, 2**62)) - 1
    return marks[index][1] if index >= 0 else BEFORE


def _values(raw: Raw) -> list[Any]:
    """Return a node's inputs or outputs: the list itself, or `values` of the nested schemas."""
    value = decoded(raw)
    if isinstance(value, dict):
        value = value.get("values")
    return value if isinstance(value, list) else []


def _types(node: _Node) -> list[str]:
    value = decoded(node.inputs)
    listed = value.get("types") if isinstance(value, dict) else decoded(node.input_types)
    return [str(kind) for kind in listed] if isinstance(listed, list) else []


def _tensor_bytes(value: object) -> int | None:
    """Sum the bytes of a tensor tuple or of a list of them; None when it is neither."""
    if not isinstance(value, list) or not value:
        return None
    if len(value) >= _TENSOR_FIELDS and all(isinstance(v, int) for v in value[:5]):
        return int(value[_NUMEL]) * int(value[_ELEMENT_BYTES])
    sizes = [_tensor_bytes(inner) for inner in value]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _dtype(types: list[str]) -> str | None:
    match = _TYPE.search(types[0]) if types else None
    return match[1] if match else None


def _read_groups(nodes: list[_Node], recording: Recording) -> dict[str, Group]:
    """Read the groups' list; `ranks: []` means all. It can be cut: rows then tell the members."""
    groups: dict[str, Group] = {}
    for node in nodes:
        if node.name != _INIT:
            continue
        values = _values(node.inputs)
        try:
            listed = msgspec.json.decode(str(values[0])) if values else []
        except (msgspec.DecodeError, UnicodeError):
            recording.losses.add("lists of groups that are cut", node.name)
            continue
        for entry in listed if isinstance(listed, list) else []:
            if not isinstance(entry, dict):
                continue
            size, ranks = entry.get("group_size"), entry.get("ranks")
            if isinstance(size, int) and isinstance(ranks, list) and size > 0:
                members = numbers(ranks) if ranks else strided(0, 1, size)
                if len(set(members)) == size and min(members) >= 0:
                    name, desc = str(entry.get("pg_name", len(groups))), entry.get("pg_desc")
                    described = desc if isinstance(desc, str) else None
                    groups[name] = Group(ranks=members, desc=described)
    everyone = [group for group in groups.values() if group.desc == "default_pg"]
    if everyone:
        recording.world = len(everyone[0].ranks)
    return groups


def _read_rows(rows: list[_Node], recording: Recording, places: list[tuple[Call, int]]) -> None:
    """Read `record_param_comms`: [tensors?, seq, group, rank, name, in split, out split, ...]."""
    by_seq: dict[int, Call] = {}
    for node in rows:
        values = _values(node.inputs)
        bare = bool(values) and (
            isinstance(values[0], int)
            or (isinstance(values[0], list) and [type(v) for v in values[0]] == [int, bool])
        )
        fields = values if bare else values[1:]
        if len(fields) < 4 or not isinstance(fields[3], str):  # noqa: PLR2004 (up to the name)
            recording.losses.add("communication rows without a name", f"node {node.id}")
            continue
        seq = fields[0][0] if isinstance(fields[0], list) else fields[0]
        if fields[3] == "wait":
            if seq in by_seq and by_seq[seq].awaited_ns is None:
                by_seq[seq].awaited_ns = node.id
                by_seq[seq].wait_record = _record(node)
            continue
        kind = collective_kind(fields[3])
        if kind is None:
            if fields[3] not in ("init", "nop", "coalesced"):
                recording.losses.add("communication rows of unknown operation", fields[3])
            continue
        call = _call(node, kind, None if bare else values[0], fields, recording)
        call.seq = seq if isinstance(seq, int) else None
        call.record = _record(node)
        recording.calls.append(call)
        if isinstance(fields[2], int):
            places.append((call, fields[2]))
        if call.seq is not None:
            by_seq[call.seq] = call


def _record(node: _Node) -> int | None:
    """Return a node's record id: a field of its own, later an attribute."""
    if node.rf_id is not None:
        return node.rf_id
    try:
        listed = msgspec.json.decode(node.attrs, type=list[_Attribute])
    except (msgspec.DecodeError, UnicodeError):
        return None
    found = (entry.value for entry in listed if entry.name == "rf_id")
    return next((value for value in found if isinstance(value, int)), None)


def _call(node: _Node, kind: str, tensors: object, fields: list[Any], recording: Recording) -> Call:
    in_bytes = _tensor_bytes(tensors)
    outputs = _values(node.outputs)
    out_bytes = _tensor_bytes(outputs[0]) if outputs else None
    members, name = _members(fields, recording.groups)
    call = Call(
        kind=kind,
        in_bytes=in_bytes,
        out_bytes=in_bytes if kind in ("all_reduce", "broadcast", "reduce") else out_bytes,
        dtype=_dtype(_types(node)),
        members=members,
        group=name,
        issued_ns=node.id,
    )
    splits = numbers(fields[4]) if len(fields) > 4 else ()  # noqa: PLR2004 (the fifth field)
    if kind == "all_to_all" and splits and in_bytes is not None:
        elements = sum(splits)
        if elements and in_bytes % elements == 0:
            call.splits = tuple(count * (in_bytes // elements) for count in splits)
    place = fields[2]
    if isinstance(place, int) and kind in _ROOTED:
        call.root, call.local = place, True
    elif isinstance(place, int) and kind in ("send", "recv"):
        call.peer, call.local = place, True
        if kind == "recv":
            call.in_bytes, call.out_bytes = None, out_bytes if out_bytes is not None else in_bytes
        else:
            call.out_bytes = None
    return call


def _members(
    fields: list[Any], groups: Mapping[str, Group]
) -> tuple[tuple[int, ...] | None, str | None]:
    """Find the members through the group's name, or through start, stride and size."""
    pg = fields[1]
    name = str(pg[0]) if isinstance(pg, list) and pg else f"at {pg}"
    if name in groups:
        return groups[name].ranks, name
    span = fields[6:9]
    if len(span) == 3 and all(isinstance(v, int) for v in span):  # noqa: PLR2004 (the three)
        return strided(*span) or None, name
    return None, name


def _read_described(
    nodes: list[_Node], recording: Recording, places: list[tuple[Call, int]]
) -> None:
    """Read `record_comms`: communication metadata as one JSON string."""
    open_calls: dict[tuple[str | None, object], Call] = {}
    for node in nodes:
        values = _values(node.inputs)
        try:
            args = msgspec.json.decode(str(values[0]) if values else "", type=Args)
        except (msgspec.DecodeError, UnicodeError):
            recording.losses.add("communication rows without a name", f"node {node.id}")
            continue
        name = None if args.group_name is None else str(args.group_name)
        call = call_from_metadata(args, recording.groups, recording.world)
        if call is not None:
            call.issued_ns = node.id
            recording.calls.append(call)
            open_calls[name, args.seq] = call
            if call.members and isinstance(args.rank, int) and args.rank in call.members:
                places.append((call, call.members.index(args.rank)))
        elif args.collective == "wait" and (name, args.seq) in open_calls:
            open_calls.pop((name, args.seq)).awaited_ns = node.id


def _read_operators(nodes: list[_Node], recording: Recording) -> None:
    """Read `c10d::*` operators where the backend (gloo) writes no rows."""
    for node in nodes:
        if not node.name.startswith("c10d::") or (kind := collective_kind(node.name)) is None:
            continue
        values = _values(node.inputs)
        sizes = [_tensor_bytes(value) for value in values]
        call = Call(kind=kind, issued_ns=node.id, dtype=_dtype(_types(node)), local=True)
        if kind in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
            call.out_bytes, call.in_bytes = [*sizes, None, None][:2]
        elif kind != "barrier" and sizes:
            call.in_bytes = None if kind == "recv" else sizes[0]
            call.out_bytes = None if kind == "send" else sizes[0]
        splits = numbers(values[4]) if len(values) > 4 and kind == "all_to_all" else ()  # noqa: PLR2004
        if call.in_bytes and sum(splits):
            unit, rest = divmod(call.in_bytes, sum(splits))
            call.splits = None if rest else tuple(count * unit for count in splits)
        if kind in ("send", "recv") and len(values) > 3:  # noqa: PLR2004 (tensors, group, peer, tag)
            call.peer, call.tag = (v if isinstance(v, int) else None for v in values[2:4])
        if kind in _ROOTED:
            integers = [v for v in values if isinstance(v, int) and not isinstance(v, bool)]
            call.root = integers[0] if integers else None
        flags = [value for value in values[-2:] if isinstance(value, bool)]
        if flags and kind not in ("send", "recv"):
            call.waited = not flags[0]
            call.awaited_ns = node.id if call.waited else None
        recording.calls.append(call)


def _rank(recording: Recording, places: list[tuple[Call, int]], blob: Blob) -> int | None:
    """Find the rank: the caller's place in its groups, else the last number of the file's name."""
    found = {
        place if call.members is None else call.members[place]
        for call, place in places
        if call.kind not in _ROOTED
        and call.kind not in ("send", "recv")
        and (call.members is None or 0 <= place < len(call.members))
    }
    if len(found) == 1:
        return found.pop()
    stem = blob.name.partition(".")[0]
    if match := _FILE_RANK.search(stem):
        recording.losses.add("ranks taken from the file's name", blob.name)
        return int(match[1])
    return None
