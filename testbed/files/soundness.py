"""Whether a workload can be executed at all: ids, ranks, groups, sizes and the order of things."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scheduler.model.workload import COLLECTIVES, Compute
from topologies.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from scheduler.model.workload import Collective, Operation, Workload

__all__ = ["check_workload"]

_CORRECT: Final = "correct the operation"


def check_workload(workload: Workload, place: Callable[[int], str]) -> None:
    """Raise `InputError` at the first operation that cannot be; `place(index)` says where it is.

    Checked: groups within the world, ids unique, ranks within the world and equal to the group,
    roots, peers and splits of members, dependencies on operations of the same rank, and no
    operation that waits for itself, streams (program order) included. Index -1 is the header.
    O(operations + dependencies).
    """
    _check_header(workload, place(-1))
    index_of: dict[int, int] = {}
    members = {name: frozenset(group.ranks) for name, group in workload.groups.items()}
    for index, operation in enumerate(workload.operations):
        if operation.id in index_of:
            why = f"{place(index_of[operation.id])} has the same id"
            _refuse(place(index), f"operation {operation.id} appears twice", why)
        index_of[operation.id] = index
        if not isinstance(operation, Compute):
            _check_collective(operation, workload, members, place(index))
        elif operation.rank >= workload.world:
            why = f"the world has {workload.world} ranks"
            _refuse(place(index), f"the rank is {operation.rank}", why)
    if not _check_needs(workload.operations, index_of, place):
        _check_order(workload.operations, index_of, place)


def _check_needs(
    operations: Sequence[Operation], index_of: dict[int, int], place: Callable[[int], str]
) -> bool:
    """Raise unless all that is awaited exists on its rank; True if it all comes earlier."""
    forward = True
    for index, operation in enumerate(operations):
        for rank, needed in _needs(operation):
            before = index_of.get(needed)
            if before is None:
                _refuse(place(index), f"operation {needed} is awaited", "there is none of that id")
            elif rank not in _ranks(operations[before]):
                why = f"rank {rank} has no part in it"
                _refuse(place(index), f"operation {needed} is awaited by rank {rank}", why)
            elif before >= index:
                forward = False
    return forward


def _refuse(where: str, what: str, why: str) -> None:
    raise InputError(what, where, why, _CORRECT)


def _check_header(workload: Workload, where: str) -> None:
    for name, group in workload.groups.items():
        if not group.ranks or len(set(group.ranks)) < len(group.ranks):
            _refuse(where, f"group {name!r} has ranks {list(group.ranks)}", "they must be distinct")
        if max(group.ranks) >= workload.world:
            why = f"the world has {workload.world} ranks"
            _refuse(where, f"group {name!r} has rank {max(group.ranks)}", why)


def _check_collective(
    operation: Collective, workload: Workload, members: dict[str, frozenset[int]], where: str
) -> None:
    """Raise unless kind, group, ranks, root, peer and splits fit each other."""
    if operation.kind not in COLLECTIVES:
        why = f"the kinds are {', '.join(COLLECTIVES)}"
        _refuse(where, f"the kind is {operation.kind!r}", why)
    if operation.group not in members:
        why = f"the header's groups are {', '.join(workload.groups) or 'none'}"
        _refuse(where, f"the group is {operation.group!r}", why)
    group = members[operation.group]
    expected = {operation.root, operation.peer} if operation.kind == "send_recv" else group
    if set(operation.ranks) != expected:
        why = f"its members are {sorted(expected, key=str)}"
        _refuse(where, f"the ranks of a {operation.kind} are {sorted(operation.ranks)}", why)
    for name, rank in (("root", operation.root), ("peer", operation.peer)):
        if rank is not None and rank not in group:
            why = f"group {operation.group!r} has {sorted(group)}"
            _refuse(where, f"the {name} is rank {rank}", why)
    for rank, row in (operation.splits or {}).items():
        sent = operation.ranks[rank].in_bytes if rank in operation.ranks else None
        if rank not in group or len(row) != len(group) or (sent is not None and sum(row) != sent):
            why = f"it needs one size per member, {sent} bytes in all"
            _refuse(where, f"the splits of rank {rank} are {list(row)}", why)


def _ranks(operation: Operation) -> frozenset[int] | tuple[int]:
    return (operation.rank,) if isinstance(operation, Compute) else frozenset(operation.ranks)


def _needs(operation: Operation) -> Iterator[tuple[int, int]]:
    """Yield (rank, id) of everything the operation waits for."""
    if isinstance(operation, Compute):
        for needed in operation.deps + operation.starts_after:
            yield operation.rank, needed
    else:
        for rank, part in operation.ranks.items():
            for needed in part.deps + part.starts_after:
                yield rank, needed


def _streams(operation: Operation) -> Iterator[tuple[int, int]]:
    if isinstance(operation, Compute):
        yield operation.rank, operation.stream
    else:
        for rank, part in operation.ranks.items():
            yield rank, part.stream


def _check_order(
    operations: Sequence[Operation], index_of: dict[int, int], place: Callable[[int], str]
) -> None:
    """Raise if an operation waits for itself, counting the order of streams (Kahn's algorithm)."""
    after: list[list[int]] = [[] for _ in operations]
    missing = [0] * len(operations)
    last: dict[tuple[int, int], int] = {}
    for index, operation in enumerate(operations):
        before = {index_of[needed] for _, needed in _needs(operation)}
        for stream in _streams(operation):
            if stream in last:
                before.add(last[stream])
            last[stream] = index
        for earlier in before:
            after[earlier].append(index)
        missing[index] = len(before)
    ready = [index for index, count in enumerate(missing) if not count]
    for index in ready:
        for later in after[index]:
            missing[later] -= 1
            if not missing[later]:
                ready.append(later)
    if len(ready) < len(operations):
        index = next(index for index, count in enumerate(missing) if count)
        what = f"operation {operations[index].id} waits for itself"
        _refuse(place(index), what, "the dependencies form a circle")
