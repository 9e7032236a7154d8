"""Which communicator a call belongs to, when its trace does not say.

gloo's traces list the groups but not which call used which. A worker thread serves one group, so
threads are decided, not calls. A collective cannot end on one rank before all have begun it: the
group is the largest one in which that never (or least often) is contradicted.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, TypeAlias

from scheduler.model.workload import Group
from testbed.traces.capture import implied_size
from topologies.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from testbed.traces.capture import Call, Losses, Recording

__all__ = ["settle_groups"]

_SYNCHRONOUS: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
_PAIRWISE: Final = ("send", "recv")
_SLACK: Final = 0.02

_Signature: TypeAlias = tuple[int, str, int | None]
_Index: TypeAlias = "Mapping[int, dict[_Signature, list[Call]]]"


def settle_groups(recordings: Mapping[int, Recording], world: int, losses: Losses) -> None:
    """Give every call its members, and make roots and peers global ranks.

    Raises `InputError` when the groups of a rank's calls cannot be told apart.
    """
    everyone = Group(ranks=tuple(range(world)), origin="default")
    index = {rank: _by_signature(recording.calls) for rank, recording in recordings.items()}
    for rank, recording in sorted(recordings.items()):
        candidates = _candidates(rank, recording, everyone)
        units: dict[tuple[int, str], list[Call]] = defaultdict(list)
        for call in recording.calls:
            if call.members is None and call.kind not in _PAIRWISE:
                by_lane = recording.timed or recording.on_gpu
                units[call.lane if by_lane else -1, "" if by_lane else call.kind].append(call)
        for calls in units.values():
            name = _decide(rank, calls, candidates, index, recording)
            for call in calls:
                call.group, call.members = name, candidates[name].ranks
            origin = "inferred" if len(candidates) > 1 else candidates[name].origin
            if origin == "inferred":
                losses.add("collectives whose group was inferred", f"rank {rank}", len(calls))
            elif origin == "default":
                what = "collectives without a recorded group: taken as one of all ranks"
                losses.add(what, f"rank {rank}", len(calls))
        recording.groups = {**candidates, **recording.groups}
    for rank, recording in sorted(recordings.items()):
        _make_global(rank, recording, recordings, everyone)


def _by_signature(calls: Iterable[Call]) -> dict[_Signature, list[Call]]:
    found: dict[_Signature, list[Call]] = defaultdict(list)
    for call in calls:
        found[_signature(call)].append(call)
    return found


def _signature(call: Call) -> _Signature:
    return call.step, call.kind, None if call.kind == "all_to_all" else call.in_bytes


def _candidates(rank: int, recording: Recording, everyone: Group) -> dict[str, Group]:
    """List the groups the rank is in: those recorded, else all ranks."""
    recorded = {
        name: group
        for name, group in recording.groups.items()
        if rank in group.ranks and group.origin != "default"  # as what --group tells is
    }
    return recorded or {"world": everyone}


def _decide(
    rank: int,
    calls: Sequence[Call],
    candidates: Mapping[str, Group],
    index: _Index,
    recording: Recording,
) -> str:
    """Choose the group of calls that share one."""
    sizes = {size for call in calls if (size := implied_size(call)) is not None}
    fitting = {name: group for name, group in candidates.items() if sizes <= {len(group.ranks)}}
    if len(fitting) == 1:
        return next(iter(fitting))
    if not fitting:
        raise InputError(
            f"rank {rank} uses a group of {sorted(sizes)} ranks that is not recorded",
            recording.path,
            f"the file lists groups of {sorted(len(g.ranks) for g in candidates.values())}",
            "record with a PyTorch that writes distributedInfo.pg_config (2.3 or later)",
        )
    if not recording.timed:
        raise InputError(
            f"the groups of rank {rank}'s calls cannot be told apart",
            recording.path,
            "this format lists groups but not which call used which",
            "give the Kineto traces of the same run as well, or tell the members with --group",
        )
    doubts = {name: _doubt(rank, calls, group, index) for name, group in fitting.items()}
    least = min(doubts.values())
    good = [name for name, doubt in doubts.items() if doubt <= least + _SLACK]
    return max(good, key=lambda name: len(fitting[name].ranks))


def _doubt(
    rank: int,
    calls: Sequence[Call],
    group: Group,
    index: _Index,
) -> float:
    """Return the share of (call, other member) pairs that contradict the group."""
    pairs = against = 0
    for call in calls:
        key = _signature(call)
        place = index[rank][key].index(call)
        for other in group.ranks:
            if other == rank or other not in index:
                continue
            theirs = index[other].get(key, [])
            pairs += 1
            if place >= len(theirs):
                against += 1
            elif call.kind in _SYNCHRONOUS:
                against += _apart(call, theirs[place])
    return against / pairs if pairs else 1.0


def _apart(one: Call, other: Call) -> bool:
    """Tell whether one ended before the other began."""
    if None in (one.start_ns, one.end_ns, other.start_ns, other.end_ns):
        return False
    assert one.start_ns is not None
    assert one.end_ns is not None
    assert other.start_ns is not None
    assert other.end_ns is not None
    return one.end_ns < other.start_ns or other.end_ns < one.start_ns


def _make_global(
    rank: int, recording: Recording, recordings: Mapping[int, Recording], everyone: Group
) -> None:
    """Turn positions in a group into ranks; pairwise calls search the group that fits."""
    if not any(call.local for call in recording.calls):
        return
    groups = [group for group in recording.groups.values() if rank in group.ranks]
    groups.sort(key=lambda group: -len(group.ranks))
    groups.append(everyone)
    for call in recording.calls:
        if not call.local:
            continue
        if call.kind in _PAIRWISE and call.peer is not None:
            fitting = [
                group.ranks
                for group in ([Group(ranks=call.members)] if call.members else groups)
                if call.peer < len(group.ranks) and _answers(rank, call, group.ranks, recordings)
            ]
            if not fitting:
                raise InputError(
                    f"rank {rank} has a {call.kind} without its other half",
                    recording.path,
                    f"no rank at position {call.peer} of its groups has it",
                    "give the traces of all ranks and the same steps",
                )
            call.members, call.peer = fitting[0], fitting[0][call.peer]
        elif call.root is not None and call.members is not None:
            inside = 0 <= call.root < len(call.members)
            call.root = call.members[call.root] if inside else None
        call.local = False


def _answers(
    rank: int, call: Call, members: tuple[int, ...], recordings: Mapping[int, Recording]
) -> bool:
    """Tell whether the peer, were this the group, has the other half of a pairwise call."""
    assert call.peer is not None
    other = recordings.get(members[call.peer])
    opposite = "recv" if call.kind == "send" else "send"
    if other is None:
        return False
    wanted = (members.index(rank), rank)
    return any(
        half.kind == opposite and half.step == call.step and half.peer == wanted[not half.local]
        for half in other.calls
    )
