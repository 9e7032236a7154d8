"""Chakra execution traces: `.et` (protobuf), its JSON variant, and the side file of groups.

A node is compute, half a transfer or a collective, and waits for its `data_deps`; durations are in
us. (`ctrl_deps` are callers, which a converter's nodes do not wait for; they count where no node
has `data_deps`.)
The rank is the last number of the file's name. Without groups, collectives are of all ranks. A
converter also writes the CPU's wrappers of collectives, which have no size: they are no traffic,
but what waits for them waits for what they waited for. `comm_size` is what goes in.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import Struct, field

from scheduler.model.workload import Group
from testbed.files.codec import decode_json
from testbed.traces.capture import Call, Enter, Recording, Work
from testbed.traces.joining import GROUPS_FORMAT
from testbed.traces.names import kernel_kind
from testbed.traces.ordering import Circle, in_order
from topologies.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from testbed.traces.sources import Blob

__all__ = ["Chakra", "ChakraJson"]

_KINDS: Final = (
    "all_reduce",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "broadcast",
    "all_to_all",
    "reduce_scatter",
    "reduce_scatter",
    "barrier",
)
_SEND, _RECV, _COLLECTIVE = 5, 6, 7
_NODE_TYPES: Final = 8
_CPU_STREAM: Final = 1
_RANK: Final = re.compile(r"(\d+)(?=\D*$)")
_MOST_HEADER: Final = 2**15
_GROUPS: Final = re.compile(rb'\s*\{\s*(?:\}|"[^"{}]{1,99}"\s*:\s*\[\s*(?:\d+\s*,\s*)*\d+\s*\])')


class _Node(NamedTuple):
    """A node of either spelling."""

    id: int
    name: str
    kind: int
    deps: tuple[int, ...]
    callers: tuple[int, ...]
    dur_ns: int
    attributes: Mapping[str, Any]


class Chakra:
    """The importer of `.et` files: one file is one rank."""

    name: Final = "chakra"

    def sniff(self, head: bytes) -> bool:
        """Tell by its beginning whether a file is a Chakra trace, or its groups."""
        if head.lstrip()[:1] in (b"{", b"["):
            return _GROUPS.match(head) is not None
        return _looks_framed(head)

    def read(self, blob: Blob) -> list[Recording]:
        """Read one rank, or the groups; `InputError` when the file is cut or something else."""
        data = blob.load()
        if data.lstrip()[:1] == b"{":
            return [_read_groups(blob, data)]
        recording = _recording(blob, self.name)
        _fill(recording, list(_nodes(data, recording)))
        return [recording]


def _looks_framed(head: bytes) -> bool:
    """Tell whether the bytes begin with a message {1: version} or {} and then a node with an id."""
    if not head or head[0] > 0x7F or len(head) <= head[0] + 2:  # noqa: PLR2004 (a short varint)
        return False
    metadata, rest = head[1 : 1 + head[0]], head[1 + head[0] :]
    if metadata and (metadata[0] not in (0x0A, 0x12) or metadata[1] + 2 > len(metadata)):
        return False
    body = rest[1:] if rest[0] < 0x80 else rest[2:]  # noqa: PLR2004 (the top bit: more follows)
    return body[:1] in (b"\x08", b"\x12")


def _recording(blob: Blob, form: str) -> Recording:
    match = _RANK.search(blob.name.rpartition(".")[0])
    return Recording(path=blob.path, format=form, rank=int(match[1]) if match else None)


def _read_groups(blob: Blob, data: bytes) -> Recording:
    listed = decode_json(data, dict[str, list[int]], blob.path, "a list of groups")
    return Recording(
        path=blob.path,
        format=GROUPS_FORMAT,
        groups={name: Group(ranks=tuple(ranks)) for name, ranks in listed.items() if ranks},
    )


def _nodes(data: bytes, recording: Recording) -> Iterator[_Node]:
    from google.protobuf.message import DecodeError

    from testbed.traces.chakra_schema import GlobalMetadata, Node, attributes, frames

    messages = frames(data, recording.path)
    try:
        metadata = GlobalMetadata.FromString(next(messages, b""))
        recording.schema = metadata.version or attributes(metadata).get("schema")
        for message in messages:
            node = Node.FromString(message)
            yield _Node(
                node.id,
                node.name,
                node.type,
                tuple(node.data_deps),
                tuple(node.ctrl_deps),
                node.duration_micros * 1000,
                attributes(node),
            )
    except DecodeError as error:
        raise InputError(
            "this is no Chakra trace",
            recording.path,
            "a message in it is not of Chakra's schema",
            "convert the trace again",
        ) from error


class _JsonNode(Struct):
    id: int = field(name="Id")
    kind: int = field(name="NodeType")
    name: str = field(name="Name", default="")
    data_deps: list[int] = []
    ctrl_deps: list[int] = field(name="ctrlDeps", default_factory=list)
    runtime: int | float = 0
    is_cpu_op: bool = False
    comm_size: int | None = None
    comm_type: int | None = None


class _JsonFile(Struct):
    workload_graph: list[_JsonNode]
    ngpus: int | None = None


class ChakraJson:
    """The importer of the JSON variant: `workload_graph`, one file per rank."""

    name: Final = "chakra-json"

    def sniff(self, head: bytes) -> bool:
        """Tell by its beginning whether a file is a Chakra graph in JSON."""
        return head.lstrip()[:1] == b"{" and b'"workload_graph"' in head

    def read(self, blob: Blob) -> list[Recording]:
        """Read one rank; collectives are known by their kernels' names, sizes often not at all."""
        file = decode_json(blob.load(), _JsonFile, blob.path, "a Chakra graph")
        nodes = []
        for node in file.workload_graph:
            known: dict[str, int] = {"is_cpu_op": node.is_cpu_op}
            extra = {"comm_size": node.comm_size, "comm_type": node.comm_type}
            known |= {name: value for name, value in extra.items() if value is not None}
            nodes.append(
                _Node(
                    node.id,
                    node.name,
                    node.kind,
                    tuple(node.data_deps),
                    tuple(node.ctrl_deps),
                    max(0, round(node.runtime * 1000)),
                    known,
                )
            )
        recording = _recording(blob, self.name)
        if file.ngpus is not None and file.ngpus > 0:
            recording.world = file.ngpus
        _fill(recording, nodes)
        return [recording]


def _fill(recording: Recording, nodes: list[_Node]) -> None:
    """Turn nodes into what the rank does, each after what it waits for."""
    if not any(node.deps for node in nodes):
        nodes = [node._replace(deps=node.callers) for node in nodes]
    by_id = {node.id: node for node in nodes}
    if len(by_id) < len(nodes):
        raise InputError(
            "two nodes have the same id",
            recording.path,
            f"there are {len(nodes)} nodes with {len(by_id)} ids",
            "convert the trace again",
        )
    done: dict[int, tuple[Call | Work, ...]] = {}
    program: list[Work | Enter] = []
    for node in _in_order(by_id, recording):
        after = tuple(dict.fromkeys(item for dep in node.deps for item in done.get(dep, ())))
        item = _item(node, after, recording)
        done[node.id] = after if item is None else (item,)
        if isinstance(item, Work):
            program.append(item)
        elif item is not None:
            program.append(Enter(None, item, after))
            recording.calls.append(item)
    recording.program = {0: program}
    recording.kernels = sum(not node.attributes.get("is_cpu_op", True) for node in nodes)
    if not recording.calls:
        recording.losses.add("ranks without communication", recording.path)


def _in_order(by_id: Mapping[int, _Node], recording: Recording) -> Iterator[_Node]:
    """Yield nodes after all they wait for, by id where free; dangling dependencies are counted."""
    nodes = [by_id[key] for key in sorted(by_id)]
    place = {node.id: index for index, node in enumerate(nodes)}
    for node in nodes:
        recording.losses.add(
            "dependencies on nodes that are not in the file",
            f"node {node.id}",
            sum(dep not in place for dep in {*node.deps, *node.callers}),
        )
    try:
        order = in_order([{place[d] for d in node.deps if d in place} for node in nodes])
    except Circle as circle:
        raise InputError(
            f"node {nodes[circle.place].id} waits for itself",
            recording.path,
            "the dependencies form a circle",
            "convert the trace again",
        ) from circle
    for index in order:
        yield nodes[index]


def _item(node: _Node, after: tuple[Call | Work, ...], recording: Recording) -> Call | Work | None:
    """Make of a node what it is: work, a call, or nothing but an order."""
    attributes = node.attributes
    if node.kind >= _NODE_TYPES:
        recording.losses.add("nodes of unknown type", node.name[:60])
        return None
    if node.kind not in (_SEND, _RECV, _COLLECTIVE):
        if node.dur_ns <= 0:
            return None
        on_cpu = bool(attributes.get("is_cpu_op", False))
        return Work(None, node.dur_ns, after, _CPU_STREAM if on_cpu else 0)
    size = attributes.get("comm_size")
    if size is None and attributes.get("is_cpu_op", True):
        recording.losses.add("CPU wrappers of collectives, which are no traffic", node.name[:60])
        return None
    if node.kind == _COLLECTIVE:
        return _collective(node, size, recording)
    call = Call(
        kind="send" if node.kind == _SEND else "recv",
        peer=attributes.get("comm_dst" if node.kind == _SEND else "comm_src"),
        tag=attributes.get("comm_tag"),
    )
    if node.kind == _SEND:
        call.in_bytes = size
    else:
        call.out_bytes = size
    return call


def _collective(node: _Node, size: int | None, recording: Recording) -> Call | None:
    number = node.attributes.get("comm_type")
    kind = kernel_kind(node.name) if number is None and size is None else None
    if kind is None:
        number = 0 if number is None else number  # proto3: 0 is not written
        kind = _KINDS[number] if 0 <= number < len(_KINDS) else None
    if kind is None:
        recording.losses.add("collectives of unknown type", node.name[:60])
        return None
    group = node.attributes.get("pg_name")
    call = Call(kind=kind, in_bytes=size, group=None if group is None else str(group))
    if kind in ("all_reduce", "broadcast", "reduce"):
        call.out_bytes = size
    return call
