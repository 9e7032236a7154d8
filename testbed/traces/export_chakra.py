"""A workload as Chakra execution traces: one `.et` file per rank, and its groups.

Other tools read the standard part: node types, data_deps, duration_micros, comm_type, comm_size
(the input, as Chakra's own converter writes it), pg_name, comm_src, comm_dst, comm_tag. The order
of a stream is in ctrl_deps. What Chakra has no place for (nanoseconds, streams, outputs, splits) is
in attributes named `fluxbed_*`, from which `restore` makes the same workload again.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError

from scheduler.model.workload import Collective, Compute, Participation
from testbed.files.codec import write_chunks
from testbed.files.soundness import check_workload
from testbed.files.workload import decode_workload, encode_workload
from testbed.traces.chakra_schema import (
    COMM_TYPES,
    NODE_TYPES,
    GlobalMetadata,
    Node,
    attributes,
    frames,
    set_attribute,
    write_frames,
)
from topologies.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from scheduler.model.workload import Operation, Workload

__all__ = ["GROUPS_FILE", "export_chakra", "restore"]

GROUPS_FILE: Final = "comm_group.json"
_VERSION: Final = "0.0.4"
_HEADER: Final = "fluxbed_header"
_RANK: Final = "fluxbed_rank"
_SPLITS: Final = "fluxbed_splits"
_KINDS: Final = {
    "all_reduce": "ALL_REDUCE",
    "reduce": "REDUCE",
    "all_gather": "ALL_GATHER",
    "gather": "GATHER",
    "scatter": "SCATTER",
    "broadcast": "BROADCAST",
    "all_to_all": "ALL_TO_ALL",
    "reduce_scatter": "REDUCE_SCATTER",
    "barrier": "BARRIER",
}
_OF_PART: Final = tuple(field.name for field in fields(Participation) if field.name != "deps")
_OF_COMPUTE: Final = ("id", "stream", "dur_ns", "start_ns", "iter", "starts_after")
_OF_COLLECTIVE: Final = (
    "id",
    "kind",
    "group",
    "seq",
    "iter",
    "dtype",
    "algo",
    "root",
    "peer",
    "tag",
)


def export_chakra(workload: Workload, directory: Path) -> list[Path]:
    """Write `trace.RANK.et` for every rank and `comm_group.json`; return the paths.

    Groups are numbered, as ASTRA-sim wants them. Durations are after `compute_scale`. A node's id
    is the operation's place in the workload. Raises `InputError` when a file cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        fix = "choose another place"
        raise InputError("the directory cannot be made", str(directory), why, fix) from error
    numbers = {name: str(k) for k, name in enumerate(workload.groups)}
    groups = {numbers[name]: list(group.ranks) for name, group in workload.groups.items()}
    paths = [directory / GROUPS_FILE]
    write_chunks(paths[0], [json.dumps(groups, indent=1).encode() + b"\n"])
    for rank, messages in _messages(workload, numbers).items():
        paths.append(directory / f"trace.{rank}.et")
        write_chunks(paths[-1], write_frames(messages))
    return paths


def _messages(workload: Workload, numbers: Mapping[str, str]) -> dict[int, list[Any]]:
    """Return every rank's messages: the metadata, then its nodes in program order."""
    header = next(iter(encode_workload(workload)))
    listed: dict[int, list[Any]] = {}
    for rank in range(workload.world):
        metadata = GlobalMetadata(version=_VERSION)
        set_attribute(metadata, _HEADER, "string", header.decode().strip())
        set_attribute(metadata, _RANK, "int64", rank)
        listed[rank] = [metadata]
    place = {op.id: index for index, op in enumerate(workload.operations)}
    previous: dict[tuple[int, int], int] = {}
    for index, op in enumerate(workload.operations):
        for rank in (op.rank,) if isinstance(op, Compute) else op.ranks:
            part = op if isinstance(op, Compute) else op.ranks[rank]
            node = _node(index, op, rank, numbers, workload.compute_scale)
            node.data_deps.extend(place[dep] for dep in part.deps)
            if (before := previous.get((rank, part.stream))) is not None:
                node.ctrl_deps.append(before)
            previous[rank, part.stream] = index
            listed[rank].append(node)
    return listed


def _node(index: int, op: Operation, rank: int, numbers: Mapping[str, str], scale: float) -> Any:  # noqa: ANN401 (protobuf)
    node = Node(id=index)

    def put(name: str, value: int | str | tuple[int, ...] | None) -> None:
        if value is not None and value != ():
            set_attribute(node, name, "string" if isinstance(value, str) else "int64", value)

    set_attribute(node, "is_cpu_op", "bool", value=False)
    if isinstance(op, Compute):
        node.name, node.type = f"compute_{op.id}", NODE_TYPES.index("COMP_NODE")
        node.duration_micros = round(op.dur_ns * scale / 1000)
        node.start_time_micros = max(0, op.start_ns or 0) // 1000
        for name in _OF_COMPUTE:
            put(f"fluxbed_{name}", getattr(op, name))
        return node
    part = op.ranks[rank]
    node.name = f"{op.kind}_{op.id}"
    node.start_time_micros = max(0, part.arrive_ns or 0) // 1000
    put("pg_name", numbers[op.group])
    if op.kind == "send_recv":
        sends = rank == op.root
        node.type = NODE_TYPES.index("COMM_SEND_NODE" if sends else "COMM_RECV_NODE")
        put("comm_src", op.root)
        put("comm_dst", op.peer)
        put("comm_tag", op.tag or 0)
        put("comm_size", part.in_bytes if sends else part.out_bytes)
    else:
        node.type = NODE_TYPES.index("COMM_COLL_NODE")
        put("comm_type", COMM_TYPES.index(_KINDS[op.kind]))
        put("comm_size", part.in_bytes)
    for name in _OF_COLLECTIVE:
        put(f"fluxbed_{name}", getattr(op, name))
    for name in _OF_PART:
        put(f"fluxbed_{name}", getattr(part, name))
    put(_SPLITS, (op.splits or {}).get(rank))
    return node


def restore(files: Iterable[tuple[str, bytes]]) -> Workload | None:
    """Make the workload that `export_chakra` wrote; None if something else wrote a file.

    `files` are the paths and bytes of the `.et` files, in any order. Raises `InputError` for a
    damaged file, a missing rank or one given twice.
    """
    nodes: dict[int, dict[int, Any]] = defaultdict(dict)
    header: str | None = None
    ranks: dict[int, str] = {}
    for path, data in files:
        try:
            found = _read(path, data)
        except DecodeError as error:
            why = "a message in it cannot be decoded"
            raise InputError("this is no Chakra trace", path, why, "write it again") from error
        if found is None:
            return None
        header, rank, rows = found
        if rank in ranks:
            why = f"{ranks[rank]} is of that rank too"
            raise InputError(f"rank {rank} appears twice", path, why, "give each rank once")
        ranks[rank] = path
        for row in rows:
            nodes[row.pop("id")][rank] = row
    if header is None:
        return None
    where = next(iter(ranks.values()))
    workload = decode_workload([header.encode()], where)
    if missing := sorted(set(range(workload.world)) - set(ranks)):
        why = f"the workload has {workload.world} ranks"
        fix = f"give its file, trace.{missing[0]}.et, too"
        raise InputError(f"rank {missing[0]} is missing", where, why, fix)
    try:
        ids = {index: next(iter(parts.values()))["fluxbed_id"] for index, parts in nodes.items()}
        operations = tuple(_operation(nodes[index], ids) for index in sorted(nodes))
    except (KeyError, TypeError) as error:
        why = f"an attribute is missing or changed ({error})"
        raise InputError("it is not as fluxbed wrote it", where, why, "export it again") from error
    restored = replace(workload, operations=operations)
    check_workload(restored, lambda index: f"{where}: operation {index}")
    return restored


def _read(path: str, data: bytes) -> tuple[str, int, list[dict[str, Any]]] | None:
    """Return a file's header, rank and nodes as attributes; None if another tool wrote it.

    Raises `InputError` where the header or the rank is not of its type.
    """
    messages = frames(data, path)
    known = attributes(GlobalMetadata.FromString(next(messages, b"")))
    if not {_HEADER, _RANK} <= known.keys():
        return None
    header, rank = known[_HEADER], known[_RANK]
    if not isinstance(header, str) or not isinstance(rank, int):
        why = f"{_HEADER} or {_RANK} is of another type"
        raise InputError("it is not as fluxbed wrote it", path, why, "export it again")
    rows = []
    for message in messages:
        node = Node.FromString(message)
        rows.append({**attributes(node), "id": node.id, "deps": list(node.data_deps)})
    return header, rank, rows


def _operation(parts: Mapping[int, dict[str, Any]], ids: Mapping[int, int]) -> Operation:
    """Make an operation from its nodes, by rank."""

    def told(node: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
        found = {name: node[f"fluxbed_{name}"] for name in names if f"fluxbed_{name}" in node}
        return {k: tuple(v) if isinstance(v, list) else v for k, v in found.items()}

    def deps(node: dict[str, Any]) -> tuple[int, ...]:
        return tuple(ids[index] for index in node["deps"])

    rank, some = next(iter(parts.items()))
    if "fluxbed_kind" not in some:
        return Compute(rank=rank, deps=deps(some), **told(some, _OF_COMPUTE))
    unknown = {"in_bytes": None, "out_bytes": None}
    splits = {r: tuple(node[_SPLITS]) for r, node in parts.items() if _SPLITS in node}
    return Collective(
        ranks={
            r: Participation(deps=deps(node), **unknown | told(node, _OF_PART))
            for r, node in parts.items()
        },
        splits=splits or None,
        **told(some, _OF_COLLECTIVE),
    )
