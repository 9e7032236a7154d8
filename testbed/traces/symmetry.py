"""One rank recorded, all ranks wanted: the others by symmetry, where the groups are known.

Groups must be recorded and lie on a grid (start, stride, size); the other ranks' groups are their
translations. Sizes and compute are cloned, an all_to_all becomes uniform. The result says which
ranks were synthesised, and is no capture.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from testbed.traces.capture import Enter, Losses, Work, strided
from topologies.errors import InputError
from topologies.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from testbed.traces.capture import Call, Recording

_CALL_BYTES: Final = 1400  # of memory, with the segments beside it, measured
_RANK_BYTES: Final = 3500
_MOST_UNASKED_BYTES: Final = 840_000_000  # a number gone wrong fills no memory
_MOST_BYTES: Final = 28_000_000_000

__all__ = ["synthesise", "translate"]


def translate(members: tuple[int, ...], rank: int, world: int) -> tuple[int, ...] | None:
    """Return the group that holds `rank` if groups like `members` tile the world; else None.

    >>> translate((0, 2), 5, 8), translate((0, 1, 2, 3), 5, 8), translate((0, 1, 3), 5, 8)
    ((5, 7), (4, 5, 6, 7), None)
    """
    size = len(members)
    stride = members[1] - members[0] if size > 1 else 1
    regular = stride > 0 and members == strided(members[0], stride, size)
    if not regular or world % (stride * size) or members[0] // stride % size:
        return None
    first = rank - rank // stride % size * stride
    return tuple(range(first, first + stride * size, stride))


def synthesise(
    recordings: dict[int, Recording], world: int, wanted: Iterable[int] | None
) -> tuple[int, ...]:
    """Add the `wanted` ranks that are missing, clones of the only one; return which they are.

    None wants all, unless they would need much memory. Sizes that are unknown stay so. Raises
    `InputError` when a call's group is not known or does not tile the world, when it is pairwise,
    or when they would not fit in memory.
    """
    ((known, recording),) = recordings.items()
    for call in recording.calls:
        why = _obstacle(call, known, world)
        if why is not None:
            raise InputError(
                f"only rank {known} of {world} is recorded",
                recording.path,
                f"the others cannot be derived: {why}",
                "give the traces of all ranks, or the members of unknown groups with --group",
            )
    ranks = range(world) if wanted is None else wanted
    added = tuple(sorted({rank for rank in ranks if rank < world} - {known}))
    _require_memory(recording, 1 + len(added), world, unasked=wanted is None)
    for call in recording.calls:
        if call.kind == "all_to_all":
            call.splits, call.out_bytes = None, call.in_bytes
    for rank in added:
        calls = [_clone(call, rank, world) for call in recording.calls]
        groups = {
            f"{name} of {rank}": replace(group, ranks=moved, origin="inferred")
            for name, group in recording.groups.items()
            if (moved := translate(group.ranks, rank, world)) is not None and moved != group.ranks
        }
        recordings[rank] = replace(
            recording,
            rank=rank,
            calls=calls,
            groups=groups,
            losses=Losses(),
            program=_clone_program(recording, calls),
        )
    return added


def _require_memory(recording: Recording, ranks: int, world: int, *, unasked: bool) -> None:
    """Raise `InputError` when that many ranks like `recording` would not fit in memory."""
    needed = ranks * (_RANK_BYTES + _CALL_BYTES * len(recording.calls))
    most = _MOST_UNASKED_BYTES if unasked else _MOST_BYTES
    if needed <= most:
        return
    fix = "choose some ranks with --ranks, best those of whole groups"
    if needed <= _MOST_BYTES:
        fix += f", or ask for all with --ranks 0-{world - 1}"
    raise InputError(
        f"{ranks} ranks like rank {recording.rank} need about {format_bytes(needed)} of memory",
        recording.path,
        f"at most {format_bytes(most)} is taken{' unasked' * unasked}",
        fix,
    )


def _obstacle(call: Call, known: int, world: int) -> str | None:
    """Say why a call cannot be cloned, if it cannot."""
    if call.members is None:
        return f"the group of {call.kind} calls is not recorded"
    if translate(call.members, known, world) != call.members:
        return f"group {list(call.members)} does not repeat over {world} ranks"
    if call.kind in ("send", "recv"):
        return f"the pattern of {call.kind}s of other ranks is not known"
    return None


def _clone_program(recording: Recording, calls: list[Call]) -> dict[int, list[Work | Enter]] | None:
    """Copy what the rank does, with the copied calls in it."""
    if recording.program is None:
        return None
    call_of = {id(old): new for old, new in zip(recording.calls, calls, strict=True)}
    work_of: dict[int, Work] = {}
    program: dict[int, list[Work | Enter]] = {}
    for number, pieces in recording.program.items():
        copies = program.setdefault(number, [])
        for piece in pieces:
            after, begun = (
                tuple(
                    work_of[id(need)] if isinstance(need, Work) else call_of[id(need)]
                    for need in needs
                )
                for needs in (piece.after, piece.starts_after)
            )
            if isinstance(piece, Work):
                work_of[id(piece)] = replace(piece, after=after, starts_after=begun)
                copies.append(work_of[id(piece)])
            else:
                call = call_of[id(piece.call)]
                copies.append(replace(piece, call=call, after=after, starts_after=begun))
    return program


def _clone(call: Call, rank: int, world: int) -> Call:
    assert call.members is not None
    members = translate(call.members, rank, world)
    assert members is not None
    root = call.root
    if root is not None and not call.local:
        root = members[call.members.index(root)]
    return replace(call, members=members, root=root, group=None)
