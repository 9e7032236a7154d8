"""What Kineto's events say about one collective: kind, sizes, members, splits, root and peer.

Three places tell, the newest first: communication metadata in `args` ("Collective name", element
counts, group), the `nccl:*` or `gloo:*` annotation (input dimensions), and the `c10d::*` operator
around it (output and input dimensions, splits, root).
"""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, Any, Final

import msgspec

from testbed.traces.capture import Call, strided
from testbed.traces.names import collective_kind, dtype_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from scheduler.model.workload import Group
    from testbed.traces.kineto import Args, Event

__all__ = [
    "ROWS",
    "attach_waits",
    "call_from_annotation",
    "call_from_metadata",
    "call_from_operator",
    "numbers",
    "refine",
    "split_bytes",
]

ROWS: Final = frozenset({"record_param_comms", "record_comms"})

_PEER: Final = re.compile(r"(\d+)\s*(->|<-)\s*(\d+)")
_OUT_IN: Final = {
    "all_gather": (0, 1),
    "reduce_scatter": (0, 1),
    "all_to_all": (0, 1),
    "gather": (0, 1),
    "scatter": (0, 1),
}
_SAME_BOTH_WAYS: Final = frozenset({"all_reduce", "broadcast", "reduce"})
_ROOT_AT: Final = {"broadcast": 2, "reduce": 3, "gather": 3, "scatter": 3, "send": 2, "recv": 2}
_TAG_AT: Final = 3
_SPLITS_AT: Final = 4


def numbers(value: object) -> tuple[int, ...]:
    """Read a list of whole numbers, as a list or as text; () when it is truncated or absent.

    >>> numbers("[0, 1]"), numbers("[64, 65, ..., ...]"), numbers(None)
    ((0, 1), (), ())
    """
    if isinstance(value, str):
        if "..." in value:
            return ()
        return tuple(int(number) for number in re.findall(r"\d+", value))
    if isinstance(value, list) and all(isinstance(number, int) for number in value):
        return tuple(value)
    return ()


def _whole(value: object) -> int | None:
    if isinstance(value, str) and value.strip().lstrip("-").isdecimal():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _bytes(elements: object, dtype: object) -> int | None:
    count, size = _whole(elements), dtype_bytes(str(dtype))
    return None if count is None or size is None or count < 0 else count * size


def _members(args: Args, groups: Mapping[str, Group], world: int | None) -> tuple[int, ...] | None:
    """Find the members: the list itself, the file's group of that name, or start and stride."""
    size = _whole(args.group_size)
    ranks = numbers(args.group_ranks)
    if ranks and size in (None, len(ranks)):
        return ranks
    group = groups.get(str(args.group_name))
    if group is not None and size in (None, len(group.ranks)):
        return group.ranks
    start, stride = _whole(args.rank_start), _whole(args.rank_stride)
    if start is None and isinstance(args.group_ranks, str):
        first = [int(number) for number in re.findall(r"\d+", args.group_ranks)[:2]]
        if len(first) > 1:
            start, stride = first[0], first[1] - first[0]
    if size and start is not None and stride:
        return strided(start, stride, size) or None
    if size and size == world:
        return strided(0, 1, size) or None
    return None


def split_bytes(counts: tuple[int, ...], total_bytes: int | None) -> tuple[int, ...] | None:
    """Scale split sizes, in whatever unit the file has them, to bytes that sum to the total.

    >>> split_bytes((1, 3), 64), split_bytes((), 64), split_bytes((1, 2), 64)
    ((16, 48), None, None)
    """
    units = sum(counts)
    if not counts or total_bytes is None:
        return None
    if units == 0:
        return counts if total_bytes == 0 else None
    if total_bytes % units:
        return None
    return tuple(count * (total_bytes // units) for count in counts)


def call_from_metadata(args: Args, groups: Mapping[str, Group], world: int | None) -> Call | None:
    """Read communication metadata; None when there is none, or it is a wait."""
    if not isinstance(args.collective, str) or (kind := collective_kind(args.collective)) is None:
        return None
    members = _members(args, groups, world)
    in_bytes = _bytes(args.in_elements, args.dtype)
    call = Call(
        kind=kind,
        in_bytes=in_bytes,
        out_bytes=_bytes(args.out_elements, args.dtype),
        dtype=None if args.dtype is None else str(args.dtype).lower(),
        members=members,
        group=None if args.group_name is None else str(args.group_name),
        size=_whole(args.group_size),
        seq=_whole(args.seq),
    )
    if kind == "all_to_all":
        call.splits = split_bytes(numbers(args.in_split), in_bytes)
    place = _whole(args.rank)
    if kind in ("broadcast", "reduce", "gather", "scatter") and members and place is not None:
        call.root = members[place] if 0 <= place < len(members) else None
    if kind in ("send", "recv"):
        call.peer = _whole(args.dst_rank if kind == "send" else args.src_rank)
        if call.peer is None and members and place is not None and 0 <= place < len(members):
            call.peer = members[place]
    return call


def decoded(raw: msgspec.Raw) -> Any:  # noqa: ANN401 (whatever JSON holds)
    """Decode one field; None when it is not JSON after all."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _decoded(raw: msgspec.Raw) -> list[Any]:
    value = decoded(raw)
    return value if isinstance(value, list) else []


def _elements(dims: object) -> int | None:
    """Count the elements of a tensor's dimensions or of a list of them."""
    if not isinstance(dims, list):
        return None
    if all(isinstance(length, int) for length in dims):
        return prod(dims)
    counts = [_elements(inner) for inner in dims]
    return None if None in counts else sum(count for count in counts if count is not None)


def _sizes(args: Args) -> tuple[list[int | None], list[str]]:
    """Return each input's elements (None for what is not a tensor) and type."""
    types = [str(kind) for kind in _decoded(args.types)]
    dims = _decoded(args.dims)
    known = [
        _elements(shape) if dtype_bytes(kind) or (kind == "TensorList" and shape) else None
        for shape, kind in zip(dims, types, strict=False)
    ]
    return known, types


def call_from_annotation(event: Event) -> Call | None:
    """Read a `nccl:*` or `gloo:*` annotation: its kind and what it was given."""
    kind = collective_kind(event.name)
    if kind is None:
        return None
    elements, types = _sizes(event.args)
    call = Call(kind=kind)
    if elements and elements[0] is not None and (size := dtype_bytes(types[0])) is not None:
        call.in_bytes, call.dtype = elements[0] * size, types[0]
        if kind in _SAME_BOTH_WAYS:
            call.out_bytes = call.in_bytes
        elif kind == "recv":
            call.in_bytes, call.out_bytes = None, call.in_bytes
    if match := _PEER.search(event.name):
        call.peer, call.local = int(match[3]), True
    return call


def call_from_operator(event: Event) -> Call | None:
    """Read a `c10d::*` operator: outputs apart from inputs, splits, root, peer, waiting."""
    kind = collective_kind(event.name)
    if kind is None:
        return None
    elements, types = _sizes(event.args)
    concrete = [str(text) for text in _decoded(event.args.concrete)]
    call = Call(kind=kind, local=True)

    def size_at(index: int) -> int | None:
        if index < len(elements) and (count := elements[index]) is not None:
            size = dtype_bytes(types[index])
            return None if size is None else count * size
        return None

    if kind in _OUT_IN:
        out, given = _OUT_IN[kind]
        call.in_bytes, call.out_bytes = size_at(given), size_at(out)
        if given < len(types) and dtype_bytes(types[given]):
            call.dtype = types[given]
    if kind == "all_to_all" and len(concrete) > _SPLITS_AT:
        call.splits = numbers(concrete[_SPLITS_AT]) or None
    place = _ROOT_AT.get(kind)
    if place is not None and place < len(concrete):
        at = _whole(concrete[place])
        if kind in ("send", "recv"):
            call.peer = at
            call.tag = _whole(concrete[_TAG_AT]) if len(concrete) > _TAG_AT else None
        else:
            call.root = at
    flags = [text for text in concrete[-2:] if text in ("True", "False")]
    if len(flags) == 1 and kind not in ("send", "recv"):
        call.waited = flags[0] == "False"
    return call


def refine(call: Call, operator: Call | None) -> Call:
    """Complete what an annotation said with what the operator around it says.

    The operator's kind counts: a backend may run a reduce_scatter as an all_reduce. Roots and peers
    stay positions within the group.
    """
    if operator is None:
        return call
    same = call.kind == operator.kind
    in_bytes = call.in_bytes if operator.in_bytes is None else operator.in_bytes
    out_bytes = operator.out_bytes
    if out_bytes is None and same:
        out_bytes = call.out_bytes
    return Call(
        kind=operator.kind,
        in_bytes=in_bytes,
        out_bytes=out_bytes,
        dtype=call.dtype or operator.dtype,
        splits=split_bytes(operator.splits or (), in_bytes),
        root=operator.root,
        peer=operator.peer if operator.peer is not None else call.peer,
        tag=operator.tag,
        waited=operator.waited,
        local=True,
    )


def attach_waits(calls: Iterable[Call], rows: Iterable[Event]) -> None:
    """Tell each call when the host waited for it: rows named "wait" with its group and sequence."""
    by_seq: dict[int, list[Call]] = {}
    for call in calls:
        if call.seq is not None:
            by_seq.setdefault(call.seq, []).append(call)
    for row in sorted(rows, key=lambda row: row.start_ns):
        seq = _whole(row.args.seq)
        if row.args.collective != "wait" or seq is None:
            continue
        for call in by_seq.get(seq, ()):
            issued = call.issued_ns or 0
            same = not row.args.group_name or call.group == str(row.args.group_name)
            if same and call.awaited_ns is None and issued <= row.end_ns:
                call.awaited_ns, call.resumed_ns = row.start_ns, row.end_ns
                break
