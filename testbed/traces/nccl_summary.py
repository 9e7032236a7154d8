"""Summaries of collectives (TraceLens' NCCL reports, CSV): how often each size, not when.

A row is one kind, size, type and group, with a count: of each rank (`rank`, `operation_count`), or
of all ranks alike (`count`), from which one rank is made and the others follow by symmetry. Sizes
are numbers of elements. The order of the calls and the compute between them are lost: calls of
every row are spread evenly over the whole, in the order that gives. Durations include the wait for
the last rank, so they are not used.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from scheduler.model.workload import Group
from testbed.traces.capture import MOST_RANKS, Call, Recording
from testbed.traces.kineto_calls import numbers, split_bytes
from testbed.traces.names import collective_kind, dtype_bytes
from topologies.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from testbed.traces.sources import Blob

__all__ = ["NcclSummary"]

_COLUMNS: Final = ("Collective name", "dtype", "In msg nelems", "Process Group Name", "Group size")
_SAME_BOTH_WAYS: Final = ("all_reduce", "broadcast", "reduce")
_COUNTS: Final = ("operation_count", "count")
_MOST_CALLS: Final = 10_000_000
_MOST_DIGITS: Final = 18
_AGAIN: Final = "write the summary again"


class NcclSummary:
    """The importer of summaries: one file is all ranks, or one that stands for all."""

    name: Final = "nccl-summary"

    def sniff(self, head: bytes) -> bool:
        """Tell by its column names whether a file is a summary."""
        names = head.partition(b"\n")[0].decode("utf-8", "replace").strip().split(",")
        return set(_COLUMNS) <= set(names) and not set(_COUNTS).isdisjoint(names)

    def read(self, blob: Blob) -> list[Recording]:
        """Read every rank's calls; `InputError` when a row does not hold what the columns say."""
        lines = blob.load().decode("utf-8", "replace").splitlines()
        try:
            rows = list(csv.DictReader(lines))
        except csv.Error as error:
            raise InputError("the table is damaged", blob.path, str(error), _AGAIN) from error
        by_rank: dict[int, list[tuple[Call, int]]] = {}
        groups: dict[str, Group] = {}
        for line, row in enumerate(rows, start=2):
            where = f"{blob.path} line {line}"
            rank = _whole(row, "rank", where) if "rank" in row else 0
            call, count = _call(row, where)
            if call is not None:
                by_rank.setdefault(rank, []).append((call, count))
                if call.members is not None and call.group is not None:
                    groups.setdefault(call.group, Group(ranks=call.members))
        if not by_rank:
            why = "no row has a collective and a count"
            raise InputError("no collective is summarised", blob.path, why, _AGAIN)
        alike = "rank" not in rows[0]
        sizes = {call.size for call, _ in by_rank[0]} if alike else set()
        return [
            _recording(blob.path, rank, listed, groups, sizes)
            for rank, listed in sorted(by_rank.items())
        ]


def _recording(
    path: str,
    rank: int,
    listed: list[tuple[Call, int]],
    groups: Mapping[str, Group],
    sizes: set[int | None],
) -> Recording:
    """Make one rank's recording; with the one group size of a file without ranks, of that world."""
    recording = Recording(path=path, format=NcclSummary.name, rank=rank, groups=groups)
    losses = recording.losses
    if sizes:
        recording.world = max((size for size in sizes if size is not None), default=1)
        if len(sizes) == 1:
            everyone = Group(ranks=tuple(range(recording.world)), origin="default")
            recording.groups = {call.group: everyone for call, _ in listed if call.group}
            for call, _ in listed:
                call.members = everyone.ranks
        what = "the number of ranks is not in the file: taken as the largest group"
        losses.add(what, f"{recording.world} ranks")
    recording.calls = _spread(listed)
    what = "calls whose order is not in the file: spread evenly by kind and size"
    losses.add(what, path, len(recording.calls))
    losses.add("files without compute", path)
    return recording


def _spread(listed: list[tuple[Call, int]]) -> list[Call]:
    """Put call i of a row's n at (i + 1/2)/n of the whole; the same on all ranks with these rows.

    >>> _spread([(Call(kind="a"), 2), (Call(kind="b"), 1)])[1].kind
    'b'
    """
    rows = sorted(listed, key=lambda item: (item[0].kind, item[0].group or "", item[0].in_bytes))
    places = [
        (Fraction(2 * i + 1, 2 * count), row, call)
        for row, (call, count) in enumerate(rows)
        for i in range(count)
    ]
    return [replace(call) for _, _, call in sorted(places, key=lambda place: place[:2])]


def _call(row: Mapping[str, str | None], where: str) -> tuple[Call | None, int]:
    """Read a row: its call, None for what is no traffic, and how often it was made."""
    name, dtype = str(row.get("Collective name")), str(row.get("dtype"))
    kind = collective_kind(name)
    if kind is None:
        return None, 0
    element = dtype_bytes(dtype)
    if element is None:
        why = "its bytes are not known"
        raise InputError(f"dtype is {dtype!r}", where, why, "correct the row")
    size = _whole(row, "Group size", where)
    members = numbers(row.get("Process Group Ranks"))
    if not 0 < size <= MOST_RANKS or (members and len(members) != size):
        why = f"the row lists {len(members)}" if members else f"there are 1 to {MOST_RANKS} ranks"
        raise InputError(f"Group size is {size}", where, why, "correct the row")
    count = _whole(row, next(name for name in _COUNTS if name in row), where)
    if count > _MOST_CALLS:
        why = f"more than {_MOST_CALLS} are not held in memory"
        raise InputError(f"the count is {count}", where, why, "correct the row")
    in_bytes = element * _whole(row, "In msg nelems", where)
    out_bytes = in_bytes if kind in _SAME_BOTH_WAYS else None
    if row.get("Out msg nelems") not in (None, ""):
        out_bytes = element * _whole(row, "Out msg nelems", where)
    call = Call(
        kind=kind,
        in_bytes=in_bytes,
        out_bytes=out_bytes,
        dtype=dtype,
        group=str(row.get("Process Group Name")),
        members=members or None,
        size=size,
        splits=split_bytes(numbers(row.get("In split size")), in_bytes),
        lane=_whole(row, "stream", where) if "stream" in row else 0,
    )
    return call, count


def _whole(row: Mapping[str, str | None], column: str, where: str) -> int:
    """Read a number of a row, which may be written as 8.0."""
    text = str(row.get(column)).removesuffix(".0")
    if not text.isdecimal() or len(text) > _MOST_DIGITS:
        raise InputError(
            f"{column} is {text!r}",
            where,
            "it must be a whole number at least 0",
            "correct the row",
        )
    return int(text)
