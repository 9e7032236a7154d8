"""One recording per rank out of everything read: windows chosen, formats of one rank joined."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from testbed.traces.capture import MOST_RANKS
from testbed.traces.demand import seen_once
from testbed.traces.membership import settle_names, supply
from topologies.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from testbed.traces.assembly import Options
    from testbed.traces.capture import Call, Recording

__all__ = ["GROUPS_FORMAT", "of_window", "one_per_rank", "world_of"]

GROUPS_FORMAT: Final = "groups"  # of files that hold nothing but groups

_COMPANION: Final = "execution-trace"


def world_of(recordings: Iterable[Recording]) -> int:
    """Return how many ranks the run had: as recorded, else as many as are there.

    Raises `InputError` when files disagree.
    """
    listed = list(recordings)
    worlds = {recording.world: recording for recording in listed if recording.world is not None}
    if len(worlds) > 1:
        low, high = sorted(worlds)[:2]
        raise InputError(
            f"it is of a run with {high} ranks",
            worlds[high].path,
            f"{worlds[low].path} is of one with {low}",
            "give traces of one run",
        )
    ranks = [r.rank for r in listed if r.rank is not None]
    grouped = [rank for r in listed for group in r.groups.values() for rank in group.ranks]
    world = next(iter(worlds), max([*ranks, *grouped], default=0) + 1)
    if not 0 < world <= MOST_RANKS:
        raise InputError(
            f"the run has {world} ranks",
            listed[0].path if listed else "the traces",
            f"fluxbed counts to {MOST_RANKS}",
            "correct the number of ranks",
        )
    return world


def one_per_rank(recordings: Sequence[Recording], options: Options) -> dict[int, Recording]:
    """Join what is about one rank; raise `InputError` on unknown or duplicate ranks."""
    recordings = _with_groups(recordings)
    main = [r for r in recordings if r.format != _COMPANION]
    companions = [r for r in recordings if r.format == _COMPANION]
    if not main:
        main, companions = companions, []
    if len(main) == 1 and main[0].rank is None and main[0].world in (None, 1):
        main[0].rank = 0
        main[0].losses.add("files that do not say their rank: taken as rank 0", main[0].path)
    by_rank: dict[int, list[Recording]] = defaultdict(list)
    for recording in main:
        if recording.rank is None:
            raise InputError(
                "the file does not say its rank",
                recording.path,
                "distributedInfo is missing",
                "profile after torch.distributed is initialised",
            )
        by_rank[recording.rank].append(recording)
    chosen = {rank: _choose(listed, options) for rank, listed in sorted(by_rank.items())}
    for companion in companions:
        _join(companion, chosen)
    settle_names(chosen)
    if options.ranks is not None:
        chosen = {rank: chosen[rank] for rank in chosen if rank in options.ranks}
    _settle_world(chosen, options)
    return chosen


def of_window(recordings: Sequence[Recording], window: int) -> list[Recording]:
    """Leave out the other profiler windows of ranks that have one numbered `window`."""
    by_rank: dict[int, list[Recording]] = defaultdict(list)
    for recording in recordings:
        if recording.rank is not None and recording.steps and recording.format != _COMPANION:
            by_rank[recording.rank].append(recording)
    others = {
        id(recording)
        for windows in by_rank.values()
        if window < len(windows)
        for place, recording in enumerate(sorted(windows, key=_begin_ns))
        if place != window
    }
    return [recording for recording in recordings if id(recording) not in others]


def _extent(recording: Recording) -> str:
    """Say what a profiler window holds."""
    if not recording.steps:
        return f"{len(recording.calls)} calls, no steps marked"
    return f"steps {recording.steps[0].number} to {recording.steps[-1].number}"


def _begin_ns(recording: Recording) -> int:
    return recording.steps[0].start_ns if recording.steps else 0


def _settle_world(chosen: Mapping[int, Recording], options: Options) -> None:
    """Hold ranks against the size of the run, and take in the groups that the user tells."""
    world = world_of(chosen.values())
    if all(recording.world is None for recording in chosen.values()):
        world = max([world, *(1 + max(ranks) for ranks in options.groups.values())])
    first = chosen[min(chosen)] if chosen else None
    if first is not None and all(r.world is None and not r.groups for r in chosen.values()):
        first.losses.add("runs of unknown size: taken as of the ranks given", f"{world} ranks")
    for rank, recording in chosen.items():
        if rank >= world:
            raise InputError(
                f"it is of rank {rank}",
                recording.path,
                f"the world has {world} ranks",
                "give traces of one run",
            )
    supply(chosen, options.groups, world)


def _with_groups(recordings: Sequence[Recording]) -> list[Recording]:
    """Take in the groups of files that hold nothing else, and give calls their group's members."""
    kept = [recording for recording in recordings if recording.format != GROUPS_FORMAT]
    sides = [recording for recording in recordings if recording.format == GROUPS_FORMAT]
    for recording in kept:
        for side in sides:
            recording.groups = {**side.groups, **recording.groups}
        for call in recording.calls:
            if call.members is None and call.group is not None and call.group in recording.groups:
                call.members = recording.groups[call.group].ranks
    return kept


def _choose(listed: list[Recording], options: Options) -> Recording:
    """Choose among several files of one rank: profiler windows, or a file given twice."""
    if all(recording.partial for recording in listed):
        return _add_up(listed)
    listed.sort(key=_begin_ns)
    if len(listed) == 1 and options.window in (None, 0):
        return listed[0]
    numbers = [step.number for recording in listed for step in recording.steps]
    first, last = listed[0], listed[-1]
    choice = ", as ARCHIVE!MEMBER for one file of an archive" if "!" in last.path else ""
    if len(set(numbers)) < len(numbers) or any(not recording.steps for recording in listed[1:]):
        raise InputError(
            f"rank {last.rank} appears twice",
            last.path,
            f"{first.path} is of the same rank and steps",
            f"give each rank once{choice}",
        )
    if options.window is None or options.window >= len(listed):
        windows = ", ".join(f"{number} ({_extent(r)})" for number, r in enumerate(listed))
        if len(listed) == 1:
            what, fix = f"rank {first.rank} has one profiler window", "leave --window out"
        else:
            what = f"rank {first.rank} has {len(listed)} profiler windows"
            fix = "choose one with --window"
        asked = "none is chosen" if options.window is None else f"there is no {options.window}"
        raise InputError(what, first.path, f"{asked} of {windows}", fix)
    return listed[options.window]


def _add_up(listed: list[Recording]) -> Recording:
    """Add up what several files tell about one rank."""
    first, *others = listed
    count = sum(len(recording.calls) for recording in listed)
    first.calls = seen_once(listed)
    for other in others:
        first.losses.merge(other.losses)
    what = "messages that several captures saw: counted once"
    first.losses.add(what, first.path, count - len(first.calls))
    first.calls.sort(key=lambda call: call.issued_ns or 0)
    return first


def _join(companion: Recording, chosen: dict[int, Recording]) -> None:
    """Complete a rank's recording with its ExecutionTrace: groups, sequence, splits, sizes."""
    same = [r for r in chosen.values() if r.process is not None and r.process == companion.process]
    target = (
        same[0] if len(same) == 1 else chosen.get(-1 if companion.rank is None else companion.rank)
    )
    if target is None:
        raise InputError(
            "the ExecutionTrace belongs to no Kineto trace given",
            companion.path,
            "neither its process nor its rank is among theirs",
            "give both of the same ranks",
        )
    target.groups = {**companion.groups, **target.groups}
    target.format = f"{target.format}+{companion.format}"
    steps = {step.number for step in companion.steps}
    waiting = list(companion.calls)
    for call in target.calls:
        if steps and target.steps and call.step not in steps:
            continue
        place = next((i for i, other in enumerate(waiting) if _same(call, other)), None)
        if place is None:
            if call.in_bytes is None or call.members is None:
                target.losses.add("calls not found in the ExecutionTrace", call.kind)
            continue
        _take(call, waiting[place], target)
        del waiting[: place + 1]


def _same(call: Call, other: Call) -> bool:
    return (
        call.kind == other.kind
        and (call.in_bytes is None or other.in_bytes in (None, call.in_bytes))
        and (not call.step or not other.step or call.step == other.step)
        and (call.seq is None or other.seq in (None, call.seq))
    )


def _take(call: Call, other: Call, target: Recording) -> None:
    """Take from `other` what `call` does not know."""
    for name in (
        "in_bytes",
        "out_bytes",
        "dtype",
        "members",
        "group",
        "size",
        "splits",
        "seq",
        "tag",
    ):
        if getattr(call, name) is None:
            setattr(call, name, getattr(other, name))
    if call.root is None and call.peer is None:
        call.root, call.peer, call.local = other.root, other.peer, other.local
    if call.waited is None:
        call.waited = other.waited
    if call.awaited_ns is None:
        _take_wait(call, other, target)


def _take_wait(call: Call, other: Call, target: Recording) -> None:
    """Take when the host waited, if the record ids of both formats agree on the call itself.

    They agree per thread only, so the call's own row has to be around its launch.
    """
    rows, issued = target.rows, call.issued_ns
    if issued is None or other.record not in rows or other.wait_record not in rows:
        return
    called, waited = rows[other.record], rows[other.wait_record]
    if called[0] <= issued <= called[1] <= waited[0]:
        call.awaited_ns, call.resumed_ns = waited
