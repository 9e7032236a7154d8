"""From every rank's recording to one workload: groups, matching, clocks, segments, order."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scheduler.model.workload import (
    Collective,
    Compute,
    Group,
    Loss,
    Participation,
    Source,
    Workload,
)
from testbed.files.soundness import check_workload
from testbed.traces.capture import BEFORE, Enter, Losses, Work
from testbed.traces.clocks import align
from testbed.traces.cutting import cut
from testbed.traces.grouping import settle_groups
from testbed.traces.matching import Instance, match
from testbed.traces.symmetry import synthesise
from topologies.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scheduler.model.workload import Operation
    from testbed.traces.capture import Call, Recording

__all__ = ["Options", "assemble"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the user wants of a trace: some ranks, one window or iteration, scaled compute.

    `groups` are members told by the user, where the trace does not say (`membership.supply`).
    """

    ranks: frozenset[int] | None = None
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    window: int | None = None
    iteration: int | None = None
    strict: bool = False
    compute_scale: float = 1.0


def assemble(
    recordings: dict[int, Recording], world: int, source: Source, options: Options
) -> Workload:
    """Build the workload of one recording per rank.

    Raises `InputError` when ranks are missing, collectives do not match, or nothing is left.
    """
    losses = Losses()
    synthesised: tuple[int, ...] = ()
    wanted = options.ranks if options.ranks is not None else frozenset(range(world))
    if len(recordings) == 1 and not wanted <= recordings.keys():
        synthesised = synthesise(recordings, world, options.ranks)
    where = source.path
    _require_ranks(recordings, world, wanted, where)
    for rank, recording in sorted(recordings.items()):
        losses.merge(recording.losses, f"rank {rank}: ")
    steps = _common_steps(recordings, options, losses, where)
    settle_groups(recordings, world, losses)
    instances = match(recordings, steps, losses)
    ahead = align(recordings, instances, losses)
    groups = _name_groups(recordings, instances)
    operations = _Builder(recordings, steps, instances, ahead, losses).build(where)
    if not any(isinstance(operation, Collective) for operation in operations):
        raise InputError(
            "no collective is left to replay",
            where,
            "none is recorded in the chosen steps by all its members",
            "record a distributed run, every rank of it",
        )
    hosts = {rank: recording.host for rank, recording in sorted(recordings.items())}
    workload = Workload(
        world=world,
        groups=groups,
        operations=tuple(operations),
        source=source,
        iterations=tuple(steps),
        placement={r: h for r, h in hosts.items() if h} if all(hosts.values()) else None,
        time_base="unix" if all(r.timed for r in recordings.values()) else None,
        compute_scale=options.compute_scale,
        losses=tuple(
            Loss(what=what, count=count, example=losses.examples.get(what))
            for what, count in sorted(losses.counts.items())
        ),
        synthesised_ranks=synthesised,
    )
    check_workload(workload, lambda index: f"{where} operation {index}")
    return workload


def _require_ranks(
    recordings: Mapping[int, Recording], world: int, wanted: frozenset[int], where: str
) -> None:
    missing = sorted(wanted - set(recordings))
    if missing:
        shown = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")  # noqa: PLR2004
        raise InputError(
            f"rank {shown} is missing" if len(missing) == 1 else f"ranks {shown} are missing",
            where,
            f"the world has {world} ranks and the files hold {len(recordings)}",
            "give the traces of all ranks, or choose some with --ranks",
        )


def _common_steps(
    recordings: Mapping[int, Recording], options: Options, losses: Losses, where: str
) -> list[int]:
    """List the steps that every rank recorded, in order."""
    per_rank = [
        {step.number for step in recording.steps}
        or {call.step for call in recording.calls if call.step != BEFORE}
        or {0}
        for recording in recordings.values()
    ]
    common = set.intersection(*per_rank)
    losses.add("steps that not every rank recorded", None, len(set.union(*per_rank) - common))
    if not common:
        raise InputError(
            "no step is recorded by every rank",
            where,
            f"the ranks' steps are {', '.join(str(sorted(steps)) for steps in per_rank[:4])}",
            "profile the same steps on every rank",
        )
    if options.iteration is not None:
        if options.iteration not in common:
            raise InputError(
                f"iteration {options.iteration} is not recorded",
                where,
                f"there are {sorted(common)}",
                "choose one of them",
            )
        return [options.iteration]
    return sorted(common)


def _name_groups(
    recordings: Mapping[int, Recording], instances: list[Instance]
) -> dict[str, Group]:
    """Name each set of members as the traces do, and every instance's group; origin kept."""
    known: dict[tuple[int, ...], tuple[str, Group]] = {}
    seen: set[int] = set()
    for recording in recordings.values():
        for name, group in recording.groups.items():
            if id(group) not in seen:  # shared by all ranks, and costly to hash for each
                seen.add(id(group))
                known.setdefault(group.ranks, (name, group))
    groups: dict[str, Group] = {}
    named: dict[tuple[int, ...], str] = {}
    for instance in instances:
        members = instance.group_ranks
        if members not in named:
            told = next((c.group for c in instance.calls.values() if c.group), "")
            name, group = known.get(members, (told, Group(ranks=members)))
            if not name or name in groups:
                name = "-".join(map(str, members)) if len(members) < 9 else f"group{len(groups)}"  # noqa: PLR2004
            while name in groups:
                name += "'"
            named[members] = name
            groups[name] = group
        instance.group = named[members]
    return dict(sorted(groups.items()))


class _Builder:
    """Numbers segments and collectives so that everything comes after what it waits for."""

    def __init__(
        self,
        recordings: Mapping[int, Recording],
        steps: list[int],
        instances: list[Instance],
        ahead: Mapping[int, int],
        losses: Losses,
    ) -> None:
        self._recordings = recordings
        self._ahead = ahead
        self._owner: dict[int, Instance] = {
            id(call): instance for instance in instances for call in instance.calls.values()
        }
        self._nodes: list[tuple[int, int, Work | Instance]] = []
        self._number: dict[int, int] = {}
        self._time: list[tuple[int, int]] = []
        self._preds: list[set[int]] = []
        self._streams: dict[int, dict[object, int]] = {}
        self._needs: dict[tuple[int, int], list[int]] = {}
        self._begun: dict[tuple[int, int], list[int]] = {}
        for rank, recording in sorted(recordings.items()):
            self._add_rank(rank, recording, steps, losses)

    def _add_rank(self, rank: int, recording: Recording, steps: list[int], losses: Losses) -> None:
        by_number = {step.number: step for step in recording.steps}
        previous: int | None = None
        last: dict[int, int] = {}
        for number in steps:
            if recording.timed and previous is None:
                previous = _backlog(recording)
            pieces, previous = cut(recording, by_number.get(number), number, previous, losses)
            for place, piece in enumerate(pieces):
                if isinstance(piece, Enter) and id(piece.call) not in self._owner:
                    continue
                item = piece if isinstance(piece, Work) else self._owner[id(piece.call)]
                told = piece.start_ns if isinstance(piece, Work) else piece.time_ns
                at = place if told is None else told - self._ahead[rank]
                node = self._node(rank, number, at, item)
                needs = self._nodes_of(rank, number, at, piece.after)
                self._needs[rank, node] = needs
                if piece.starts_after:
                    begun = self._nodes_of(rank, number, at, piece.starts_after)
                    self._begun[rank, node] = begun
                    self._preds[node].update(begun)
                stream = self._stream(rank, piece if isinstance(piece, Work) else piece.call)
                self._preds[node].update(needs)
                if stream in last:
                    self._preds[node].add(last[stream])
                last[stream] = node

    def _nodes_of(
        self, rank: int, step: int, time_ns: int, items: tuple[Call | Work, ...]
    ) -> list[int]:
        return [
            self._node(rank, step, time_ns, item)
            for need in items
            if (item := need if isinstance(need, Work) else self._owner.get(id(need))) is not None
        ]

    def _node(self, rank: int, step: int, time_ns: int, item: Work | Instance) -> int:
        number = self._number.get(id(item))
        if number is None:
            number = self._number[id(item)] = len(self._nodes)
            self._nodes.append((rank, step, item))
            self._time.append((step, time_ns))
            self._preds.append(set())
        elif isinstance(item, Instance):
            self._time[number] = max(self._time[number], (step, time_ns))
        return number

    def _stream(self, rank: int, item: Call | Work) -> int:
        """Give each lane a stream, 0 being compute; without a GPU, lanes are groups and peers."""
        key: object
        if isinstance(item, Work):
            if item.stream == 0:
                return 0
            key = ("compute", item.stream)
        elif self._recordings[rank].on_gpu:
            key = item.lane
        else:
            key = item.members if item.peer is None else (item.kind, item.peer)
        streams = self._streams.setdefault(rank, {})
        return streams.setdefault(key, len(streams) + 1)

    def build(self, where: str) -> list[Operation]:
        """Order the nodes (Kahn's algorithm, earliest first) and make operations of them."""
        after: list[list[int]] = [[] for _ in self._nodes]
        missing = [len(preds) for preds in self._preds]
        for node, preds in enumerate(self._preds):
            for pred in preds:
                after[pred].append(node)
        ready = [(*self._time[node], node) for node, count in enumerate(missing) if not count]
        heapq.heapify(ready)
        order: dict[int, int] = {}
        while ready:
            node = heapq.heappop(ready)[2]
            order[node] = len(order)
            for later in after[node]:
                missing[later] -= 1
                if not missing[later]:
                    heapq.heappush(ready, (*self._time[later], later))
        if len(order) < len(self._nodes):
            stuck = next(node for node, count in enumerate(missing) if count)
            rank, step, item = self._nodes[stuck]
            kind = item.kind if isinstance(item, Instance) else "compute"
            raise InputError(
                f"{kind} of rank {rank} in step {step} waits for itself",
                where,
                "the ranks' traces order their collectives in a circle",
                "give traces of one run, of the same steps",
            )
        sequence: dict[str, int] = {}
        return [self._operation(node, order, sequence) for node in order]

    def _operation(
        self, node: int, order: Mapping[int, int], sequence: dict[str, int]
    ) -> Operation:
        rank, step, item = self._nodes[node]
        if isinstance(item, Work):
            return Compute(
                id=order[node],
                rank=rank,
                stream=self._stream(rank, item),
                dur_ns=item.dur_ns,
                start_ns=None if item.start_ns is None else item.start_ns - self._ahead[rank],
                iter=step,
                deps=tuple(sorted(order[need] for need in self._needs[rank, node])),
                starts_after=self._started(rank, node, order),
            )
        seq = sequence.get(item.group, 0)
        sequence[item.group] = seq + 1
        some = next(iter(item.calls.values()))
        return Collective(
            id=order[node],
            kind=item.kind,
            group=item.group,
            seq=seq,
            iter=step,
            dtype=some.dtype,
            root=item.root,
            peer=item.peer,
            tag=some.tag,
            splits=item.splits,
            ranks={
                member: self._participation(member, node, call, order)
                for member, call in sorted(item.calls.items())
            },
        )

    def _participation(
        self, rank: int, node: int, call: Call, order: Mapping[int, int]
    ) -> Participation:
        timed, ahead = self._recordings[rank].timed, self._ahead[rank]
        return Participation(
            in_bytes=call.in_bytes,
            out_bytes=call.out_bytes,
            stream=self._stream(rank, call),
            arrive_ns=call.start_ns - ahead if timed and call.start_ns is not None else None,
            end_ns=call.end_ns - ahead if timed and call.end_ns is not None else None,
            deps=tuple(sorted(order[need] for need in self._needs[rank, node])),
            starts_after=self._started(rank, node, order),
        )

    def _started(self, rank: int, node: int, order: Mapping[int, int]) -> tuple[int, ...]:
        return tuple(sorted(order[need] for need in self._begun.get((rank, node), ())))


def _backlog(recording: Recording) -> int | None:
    """Return when work launched before the first step ended, if there was any by its start."""
    early = recording.busy.step == BEFORE
    if not early.any() or not recording.steps:
        return None
    begun = recording.busy.start_ns <= recording.steps[0].start_ns
    return int(recording.busy.end_ns[early & begun].max(initial=recording.steps[0].start_ns))
