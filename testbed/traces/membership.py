"""Who is in a group that only its name tells: over all ranks, those that name it; or the user."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from scheduler.model.workload import Group
from testbed.traces.capture import implied_size
from testbed.traces.symmetry import translate
from topologies.errors import InputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from testbed.traces.capture import Call, Recording

__all__ = ["RING_FORMAT", "settle_names", "supply"]

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


def supply(
    chosen: Mapping[int, Recording], told: Mapping[str, tuple[int, ...]], world: int
) -> None:
    """Give calls without known members those `told`, by group name, KIND:BYTES or KIND.

    A group told stands for all like it: a rank that is not in it gets the one that tiling the world
    with it gives. Raises `InputError` where that is none, or of another size than the call's bytes
    imply, and `UsageError` when a name is that of no call.
    """
    named: set[str] = set()
    unknown: set[str] = set()
    for rank, recording in chosen.items():
        groups: dict[str, Group] = {}
        for call in recording.calls:
            if call.members is not None:
                continue
            names = (call.group, f"{call.kind}:{call.in_bytes}", call.kind)
            name = next((name for name in names if name in told), None)
            if name is None:
                unknown |= {name for name in names if name and not name.endswith(":None")}
                continue
            if name not in groups:
                groups[name] = _translated(name, told[name], rank, world, recording.path)
            call.members = groups[name].ranks
            recording.losses.add("collectives whose group the user told", name)
            _verify(call, name, recording.path)
        named |= groups.keys()
        recording.groups = {**recording.groups, **groups}
    for name in told:
        if name not in named:
            left = ", ".join(sorted(unknown)) or "none: every group is known"
            why = f"no collective without a known group is called so; there are {left}"
            raise UsageError(f"{name!r} is not wanted", "--group", why, "correct or leave it out")


def _translated(name: str, members: tuple[int, ...], rank: int, world: int, path: str) -> Group:
    ranks = members if rank in members else translate(members, rank, world)
    if ranks is None or max(ranks) >= world:
        raise InputError(
            f"rank {rank} has no group like {list(members)}, told for {name}",
            path,
            f"the group does not repeat over {world} ranks",
            "correct --group, with its members as 0-3 or 0-12:4",
        )
    return Group(ranks=ranks, origin="default")


def _verify(call: Call, name: str, path: str) -> None:
    """Hold the group told against the number of members that the call's bytes imply."""
    size = implied_size(call)
    assert call.members is not None
    if size not in (None, len(call.members)):
        raise InputError(
            f"the group told for {name} has {len(call.members)} ranks",
            path,
            f"an {call.kind} that makes {call.out_bytes} bytes of {call.in_bytes} has {size}",
            "correct --group, or tell KIND:BYTES=RANKS where a kind is used in several groups",
        )


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
