"""Who is in a group that only its name tells: over all ranks, those that name it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from scheduler.model.workload import Group

if TYPE_CHECKING:
    from collections.abc import Mapping

    from testbed.traces.capture import Call, Recording

__all__ = ["RING_FORMAT", "settle_names"]

RING_FORMAT: Final = "flight-recorder"  # of files that hold the last calls only


def settle_names(chosen: Mapping[int, Recording]) -> None:
    """Give calls the members of the groups they name.

    A group's members are the ranks that say their place in it, or else, in a ring buffer, those
    that call it; calls that a ring buffer kept on some members only are dropped.
    """
    named = _callers(chosen)
    groups = {**_placed(chosen), **named}
    for rank, recording in chosen.items():
        mine = {name: group for name, group in groups.items() if rank in group.ranks}
        recording.groups = {**mine, **recording.groups}
        for call in recording.calls:
            if call.members is None and call.group in groups:
                call.members = groups[call.group].ranks
    if named:
        _trim(chosen)


def _placed(chosen: Mapping[int, Recording]) -> dict[str, Group]:
    """Assemble groups from their members' places; those with a gap are left out."""
    placed: dict[str, dict[int, int]] = defaultdict(dict)
    sizes: dict[str, int] = {}
    for rank, recording in chosen.items():
        for name, (place, size) in recording.places.items():
            placed[name][place] = rank
            sizes[name] = size
    return {
        name: Group(ranks=tuple(places[k] for k in range(sizes[name])))
        for name, places in placed.items()
        if len(places) == sizes[name] and set(places) == set(range(sizes[name]))
    }


def _callers(chosen: Mapping[int, Recording]) -> dict[str, Group]:
    """Assemble groups of ring buffers from the ranks that call them."""
    callers: dict[str, set[int]] = defaultdict(set)
    for rank, recording in chosen.items():
        if recording.format == RING_FORMAT:
            for call in recording.calls:
                if call.group is not None and call.members is None:
                    callers[call.group].add(rank)
    return {
        name: Group(ranks=tuple(sorted(ranks)), origin="inferred")
        for name, ranks in callers.items()
    }


def _trim(chosen: Mapping[int, Recording]) -> None:
    """Drop what a ring buffer does not hold on every member."""
    first: dict[tuple[int, ...], int] = {}
    last: dict[tuple[int, ...], int] = {}
    for recording in chosen.values():
        numbers: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for call in recording.calls:
            if call.seq is not None and call.members is not None:
                numbers[call.members].append(call.seq)
        for members, seen in numbers.items():
            first[members] = max(min(seen), first.get(members, 0))
            last[members] = min(max(seen), last.get(members, max(seen)))

    def everywhere(call: Call) -> bool:
        members = call.members
        if call.seq is None or members is None or members not in first:
            return True
        return first[members] <= call.seq <= last[members]

    for recording in chosen.values():
        kept = [call for call in recording.calls if everywhere(call)]
        what = "calls that some member's ring buffer lost"
        recording.losses.add(what, recording.path, len(recording.calls) - len(kept))
        recording.calls = kept
