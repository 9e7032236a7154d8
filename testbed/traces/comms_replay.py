"""PARAM comms-replay, "basic" JSON: a list per rank of what was called, in order.

Sizes are elements. `req` links a wait to its call; a call nobody waits for is joined at the end of
the step. Compute rows name kernels without durations: they are counted as lost.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from scheduler.model.workload import Group
from testbed.files.codec import decode_json
from testbed.traces.capture import Call, Recording
from testbed.traces.names import collective_kind, dtype_bytes

if TYPE_CHECKING:
    from testbed.traces.sources import Blob

__all__ = ["CommsReplay"]

_RANK: Final = re.compile(r"(\d+)(?=\D*$)")


class _Row(Struct):
    comms: str | None = None
    compute: str | None = None
    req: Any = None
    world_size: int | None = None
    root: int | None = None
    src_rank: int | None = None
    dst_rank: int | None = None
    pg_id: Any = None
    global_ranks: list[int] | None = None
    in_msg_size: int | None = None
    out_msg_size: int | None = None
    dtype: str | None = None
    in_split: list[int] | None = None


class CommsReplay:
    """The importer of comms-replay JSON: one file is one rank."""

    name: Final = "comms-replay"

    def sniff(self, head: bytes) -> bool:
        """Tell by its beginning whether a file is comms-replay JSON."""
        return head.lstrip()[:1] == b"[" and (b'"comms"' in head or b'"compute"' in head)

    def read(self, blob: Blob) -> list[Recording]:
        """Read one rank; its number is the last of the file's name, which alone says it."""
        rows = decode_json(blob.load(), list[_Row], blob.path, "a comms-replay trace")
        recording = Recording(path=blob.path, format=self.name)
        if match := _RANK.search(blob.name.rpartition(".")[0]):
            recording.rank = int(match[1])
            recording.losses.add("ranks taken from the file's name", blob.name)
        groups = {str(r.pg_id): Group(ranks=tuple(r.global_ranks)) for r in rows if r.global_ranks}
        recording.groups = groups
        sizes = [len(group.ranks) for group in groups.values()]
        recording.world = max([*sizes, *(row.world_size or 0 for row in rows)], default=0) or None
        waited: dict[str, Call] = {}
        for number, row in enumerate(rows):
            if row.comms is None:
                recording.losses.add("computations without a duration", row.compute)
            elif row.comms == "wait":
                if (call := waited.pop(str(row.req), None)) is not None:
                    call.awaited_ns = number
            elif (kind := collective_kind(row.comms)) is not None:
                call = _call(row, kind, number)
                if call.group in groups:
                    call.members = groups[call.group].ranks
                recording.calls.append(call)
                waited[str(row.req)] = call
            elif row.comms != "init":
                recording.losses.add("rows of unknown operation", row.comms)
        return [recording]


def _call(row: _Row, kind: str, number: int) -> Call:
    unit = dtype_bytes(row.dtype or "")

    def size(elements: int | None) -> int | None:
        return None if elements is None or unit is None else elements * unit

    call = Call(
        kind=kind,
        in_bytes=size(row.in_msg_size),
        out_bytes=size(row.out_msg_size),
        dtype=row.dtype,
        group=None if row.pg_id is None else str(row.pg_id),
        issued_ns=number,
    )
    if kind == "all_to_all" and row.in_split and unit is not None:
        call.splits = tuple(elements * unit for elements in row.in_split)
    if kind == "send":
        call.peer, call.out_bytes = row.dst_rank, None
    elif kind == "recv":
        call.peer, call.in_bytes = row.src_rank, None
    elif kind in ("broadcast", "reduce", "gather", "scatter"):
        call.root = row.root
    return call
