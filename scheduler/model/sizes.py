"""How many bytes a collective moves: from what a trace recorded to the data of each member."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from scheduler.model.flows import divide
from topologies.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scheduler.model.taskgraph import Int64s
    from scheduler.model.workload import Collective

__all__ = ["data_of", "element_bytes"]

_MOST_BYTES: Final = 2**50
_ELEMENT_BYTES: Final = {
    name: size
    for size, names in {
        1: "byte char bool int8 uint8 signedchar unsignedchar fp8 float8 u8 i8 f8",
        2: "half short bfloat16 float16 int16 uint16 fp16 bf16 f16 u16 i16",
        4: "float int float32 int32 uint32 fp32 f32 u32 i32 unsignedint",
        8: "double long float64 int64 uint64 fp64 f64 u64 i64 longint complexfloat complex64",
        16: "complexdouble complex128",
    }.items()
    for name in names.split()
}


def element_bytes(dtype: str | None) -> int:
    """Return the size of one element; 1 where the type is unknown, so that any cut is possible.

    >>> element_bytes("c10::BFloat16"), element_bytes("torch.float32"), element_bytes(None)
    (2, 4, 1)
    """
    name = (dtype or "").lower().rpartition("::")[2].rpartition(".")[2].replace(" ", "")
    if name.startswith("float8"):  # float8_e4m3fn and its kin
        return 1
    return _ELEMENT_BYTES.get(name, 1)


def _per_member(op: Collective, members: Sequence[int], side: str) -> Int64s | None:
    """Return what every member has on one side; None unless all of it is known."""
    values = [getattr(op.ranks[rank], side) for rank in members]
    return None if None in values else np.array(values, np.int64)


def _equal(op: Collective, members: Sequence[int], *sides: str) -> Int64s | None:
    """Return, per member, the size all known values of `sides` agree on."""
    values = {
        value
        for rank in members
        for side in sides
        if (value := getattr(op.ranks[rank], side)) is not None
    }
    if len(values) > 1:
        raise InputError(
            f"its members disagree on the size: {', '.join(map(str, sorted(values)))} bytes",
            f"operation {op.id} ({op.kind})",
            f"an {op.kind} has one size for all",
            "correct the sizes in the workload",
        )
    return np.array([values.pop()] * len(members), np.int64) if values else None


def _root(op: Collective, members: Sequence[int]) -> Sequence[int]:
    """Return the only member whose whole counts where there is a root, else all of them."""
    return members if op.root is None else [op.root]


def _cut(whole_bytes: Int64s | None, parts: int, element: int) -> Int64s | None:
    return None if whole_bytes is None else divide(whole_bytes[:1], parts, element)[0]


def _one_side(
    op: Collective, members: Sequence[int], part: str, whole: str, element: int
) -> Int64s | None:
    """Return each member's share, from its size or by dividing the whole evenly."""
    shares = _per_member(op, members, part)
    if shares is None:
        shares = _cut(_equal(op, _root(op, members), whole), len(members), element)
    return shares


def _splits(op: Collective, members: Sequence[int], element: int) -> Int64s | None:
    """Return an all_to_all's matrix: recorded splits, or each member's input divided evenly."""
    n = len(members)
    rows = []
    for rank in members:
        recorded = (op.splits or {}).get(rank)
        part = op.ranks[rank]
        size = part.in_bytes if part.in_bytes is not None or op.splits else part.out_bytes
        if recorded is not None:
            if len(recorded) != n:
                raise InputError(
                    f"rank {rank} splits its data {len(recorded)} ways",
                    f"operation {op.id} ({op.kind})",
                    f"its group has {n} members",
                    "correct its splits in the workload",
                )
            rows.append(np.array(recorded, np.int64))
        elif size is not None:
            rows.append(divide(np.array([size]), n, element)[0])
        else:
            return None
    return np.stack(rows)


def data_of(
    op: Collective, members: Sequence[int], assumed_bytes: int | None
) -> tuple[Int64s, bool]:
    """Return the data an algorithm needs, shape (n,), or (n, n) for an all_to_all.

    all_reduce: the buffer cut into n chunks; broadcast and reduce: the same, which they send as a
    whole; all_gather and gather: each member's input; reduce_scatter and scatter: each member's
    output; send_recv: the message (sender first). `assumed_bytes` is the input of every member
    where the workload does not know; the second value says whether that was needed. Raises
    `InputError` where nobody knows.
    """
    n, element = len(members), element_bytes(op.dtype)
    _refuse_absurd(op)
    data = _recorded(op, members, element)
    assumed = data is None and assumed_bytes is not None
    if data is None and assumed_bytes is not None:
        data = _assumed(op.kind, n, assumed_bytes, element)
    if data is None:
        raise InputError(
            "its size is unknown",
            f"operation {op.id} ({op.kind} of group {op.group!r})",
            "the trace does not say how many bytes it moves",
            f"supply what each rank puts in, such as --size {op.kind}=4MiB",
        )
    return data, assumed


def _refuse_absurd(op: Collective) -> None:
    """Raise `InputError` for a size that is negative or too large to be counted with."""
    sizes = [size for part in op.ranks.values() for size in (part.in_bytes, part.out_bytes)]
    sizes += [size for row in (op.splits or {}).values() for size in row]
    for size in sizes:
        if size is not None and not 0 <= size <= _MOST_BYTES:
            raise InputError(
                f"its size is {size} bytes",
                f"operation {op.id} ({op.kind} of group {op.group!r})",
                "a size is from 0 to 1 PiB",
                "correct it in the workload",
            )


def _recorded(op: Collective, members: Sequence[int], element: int) -> Int64s | None:
    """Return the data as far as the workload knows it."""
    n = len(members)
    data: Int64s | None
    match op.kind:
        case "barrier":
            data = np.zeros(n, np.int64)
        case "all_to_all":
            data = _splits(op, members, element)
        case "all_reduce":
            data = _cut(_equal(op, members, "in_bytes", "out_bytes"), n, element)
        case "broadcast":
            whole = _equal(op, _root(op, members), "in_bytes")
            data = _cut(_equal(op, members, "out_bytes") if whole is None else whole, n, element)
        case "reduce":
            data = _cut(_equal(op, members, "in_bytes"), n, element)
        case "all_gather" | "gather":
            data = _one_side(op, members, "in_bytes", "out_bytes", element)
        case "reduce_scatter" | "scatter":
            data = _one_side(op, members, "out_bytes", "in_bytes", element)
        case _:
            sent, got = op.ranks[members[0]].in_bytes, op.ranks[members[1]].out_bytes
            known = got if sent is None else sent
            data = None if known is None else np.array([known, known], np.int64)
    return data


def _assumed(kind: str, n: int, in_bytes: int, element: int) -> Int64s | None:
    """Return the data where every member puts in `in_bytes`."""
    whole = np.array([in_bytes], np.int64)
    if kind in ("all_gather", "gather", "send_recv"):
        return np.repeat(whole, n)
    if kind == "all_to_all":
        return divide(np.repeat(whole, n), n, element)
    return _cut(whole, n, element)
