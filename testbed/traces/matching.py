"""One collective out of its members' calls: matched by (members, kind, sequence), and verified."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from topologies.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from testbed.traces.capture import Call, Losses, Recording

__all__ = ["Instance", "fit_splits", "match"]

_PAIRWISE: Final = ("send", "recv")
_EQUAL: Final = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
_SAME_STEPS: Final = "give the traces of the same steps of every rank, complete"


@dataclass(slots=True, kw_only=True)
class Instance:
    """A collective and every member's call.

    `members` take part, in group order; they are the whole `group_ranks` except in a send_recv.
    """

    kind: str
    members: tuple[int, ...]
    group_ranks: tuple[int, ...]
    step: int
    place: int
    calls: dict[int, Call]
    root: int | None = None
    peer: int | None = None
    splits: dict[int, tuple[int, ...]] | None = None
    group: str = ""


def match(
    recordings: Mapping[int, Recording], steps: Sequence[int], losses: Losses
) -> list[Instance]:
    """Match the calls of `steps` across ranks; sizes that follow from others are filled in.

    Raises `InputError` naming rank, file and place when a rank lacks a collective others have, or
    kinds or sizes contradict each other.
    """
    wanted = set(steps)
    lists: dict[tuple[int, tuple[int, ...]], dict[int, list[Call]]] = defaultdict(dict)
    pairs: dict[tuple[int, int, int, int | None], dict[str, list[Call]]] = {}
    for rank, recording in recordings.items():
        for call in recording.calls:
            if call.step not in wanted:
                continue
            if min(call.in_bytes or 0, call.out_bytes or 0, *(call.splits or ())) < 0:
                raise _negative(rank, call, recording)
            if call.kind in _PAIRWISE:
                _add_half(pairs, rank, call, recording)
            elif call.members is not None:
                lists[call.step, call.members].setdefault(rank, []).append(call)
    instances = _collectives(lists, recordings, losses)
    instances += _pairs(pairs, recordings)
    for instance in instances:
        _complete(instance, recordings, losses)
    return instances


def _negative(rank: int, call: Call, recording: Recording) -> InputError:
    sizes = [call.in_bytes, call.out_bytes, *(call.splits or ())]
    least = min(size for size in sizes if size is not None)
    return InputError(
        f"rank {rank} moves {least} bytes in its {call.kind}",
        recording.path,
        "a size is at least 0",
        "correct the trace, or record it again",
    )


def _add_half(
    pairs: dict[tuple[int, int, int, int | None], dict[str, list[Call]]],
    rank: int,
    call: Call,
    recording: Recording,
) -> None:
    if call.peer is None:
        raise InputError(
            f"rank {rank} has a {call.kind} without a peer",
            recording.path,
            "the trace does not say who the other rank is",
            "record with communication metadata (PyTorch 2.4 or later)",
        )
    src, dst = (rank, call.peer) if call.kind == "send" else (call.peer, rank)
    halves = pairs.setdefault((call.step, src, dst, call.tag), {"send": [], "recv": []})
    halves[call.kind].append(call)


def _collectives(
    lists: Mapping[tuple[int, tuple[int, ...]], Mapping[int, list[Call]]],
    recordings: Mapping[int, Recording],
    losses: Losses,
) -> list[Instance]:
    instances: list[Instance] = []
    for (step, members), by_rank in lists.items():
        if any(member not in recordings for member in members):
            count = sum(len(calls) for calls in by_rank.values())
            losses.add("calls of groups with ranks that were left out", str(list(members)), count)
            continue
        most = max(len(calls) for calls in by_rank.values())
        for member in members:
            calls = by_rank.get(member, [])
            if len(calls) < most:
                raise _absent(member, members, step, by_rank, recordings[member])
        for place in range(most):
            calls_at = {member: by_rank[member][place] for member in members}
            kinds = {call.kind for call in calls_at.values()}
            if len(kinds) > 1:
                raise _differing(place, members, step, calls_at, recordings)
            instances.append(
                Instance(
                    kind=kinds.pop(),
                    members=members,
                    group_ranks=members,
                    step=step,
                    place=place,
                    calls=calls_at,
                )
            )
    return instances


def _absent(
    member: int,
    members: tuple[int, ...],
    step: int,
    by_rank: Mapping[int, list[Call]],
    recording: Recording,
) -> InputError:
    full = max(by_rank, key=lambda rank: len(by_rank[rank]))
    has = by_rank.get(member, [])
    place = next((i for i, call in enumerate(has) if call.kind != by_rank[full][i].kind), len(has))
    lacking = by_rank[full][place]
    return InputError(
        f"rank {member} lacks the {lacking.kind} numbered {place} of group {list(members)}, "
        f"step {step}",
        recording.path,
        f"rank {full} has {len(by_rank[full])} collectives there and rank {member} has {len(has)}",
        _SAME_STEPS,
    )


def _differing(
    place: int,
    members: tuple[int, ...],
    step: int,
    calls: Mapping[int, Call],
    recordings: Mapping[int, Recording],
) -> InputError:
    first = members[0]
    other = next(rank for rank in members if calls[rank].kind != calls[first].kind)
    return InputError(
        f"collective number {place} of group {list(members)} in step {step} differs between ranks",
        recordings[other].path,
        f"it is {calls[first].kind} on rank {first} and {calls[other].kind} on rank {other}",
        _SAME_STEPS,
    )


def _pairs(
    pairs: Mapping[tuple[int, int, int, int | None], Mapping[str, list[Call]]],
    recordings: Mapping[int, Recording],
) -> list[Instance]:
    instances: list[Instance] = []
    for (step, src, dst, _), halves in pairs.items():
        sends, receives = halves["send"], halves["recv"]
        if len(sends) != len(receives):
            holder = src if len(sends) > len(receives) else dst
            raise InputError(
                f"rank {src} sends {len(sends)} messages to rank {dst} in step {step}",
                recordings[holder].path,
                f"rank {dst} receives {len(receives)} from it",
                _SAME_STEPS,
            )
        for place, (send, receive) in enumerate(zip(sends, receives, strict=True)):
            instances.append(
                Instance(
                    kind="send_recv",
                    members=(src, dst),
                    group_ranks=send.members or receive.members or (src, dst),
                    step=step,
                    place=place,
                    calls={src: send, dst: receive},
                    root=src,
                    peer=dst,
                )
            )
    return instances


def _complete(instance: Instance, recordings: Mapping[int, Recording], losses: Losses) -> None:
    """Fill sizes that others imply, and verify that all agree."""
    if instance.kind == "send_recv":
        _complete_pair(instance, recordings)
    elif instance.kind == "all_to_all":
        _complete_splits(instance, recordings, losses)
    elif instance.kind != "barrier":
        _complete_sizes(instance, recordings)
        roots = {call.root for call in instance.calls.values() if call.root is not None}
        instance.root = roots.pop() if len(roots) == 1 else None


def _complete_pair(instance: Instance, recordings: Mapping[int, Recording]) -> None:
    assert instance.root is not None
    assert instance.peer is not None
    send, receive = instance.calls[instance.root], instance.calls[instance.peer]
    size = send.in_bytes if send.in_bytes is not None else receive.out_bytes
    if receive.out_bytes not in (None, size):
        raise _contradiction(instance, "sent", size, receive.out_bytes, recordings)
    send.in_bytes = receive.out_bytes = size
    send.out_bytes = receive.in_bytes = 0 if size is not None else None


def _complete_sizes(instance: Instance, recordings: Mapping[int, Recording]) -> None:
    count = len(instance.members)
    for call in instance.calls.values():
        if instance.kind == "all_gather" and call.in_bytes is None and call.out_bytes is not None:
            call.in_bytes = call.out_bytes // count
        elif call.out_bytes is None and call.in_bytes is not None:
            if instance.kind == "all_gather":
                call.out_bytes = call.in_bytes * count
            elif instance.kind == "reduce_scatter":
                call.out_bytes = call.in_bytes // count
    if instance.kind in _EQUAL:
        sizes = {call.in_bytes for call in instance.calls.values()} - {None}
        if len(sizes) > 1:
            low, high = min(sizes, key=_or_0), max(sizes, key=_or_0)
            raise _contradiction(instance, "contributed", low, high, recordings)


def _or_0(size: int | None) -> int:
    return size or 0


def _contradiction(
    instance: Instance,
    verb: str,
    low: int | None,
    high: int | None,
    recordings: Mapping[int, Recording],
) -> InputError:
    what = (
        f"{instance.kind} number {instance.place} of group {list(instance.members)} "
        f"in step {instance.step} has different sizes on different ranks"
    )
    return InputError(
        what,
        recordings[instance.members[-1]].path,
        f"{low} and {high} bytes are {verb}",
        "give traces of one run, none of them sampled down",
    )


def _complete_splits(
    instance: Instance, recordings: Mapping[int, Recording], losses: Losses
) -> None:
    """Find who sends how much to whom: recorded splits, else the fit to the totals."""
    members, calls = instance.members, instance.calls
    count = len(members)
    rows = {rank: call.splits for rank, call in calls.items() if call.splits is not None}
    if len(rows) == count and all(len(row) == count for row in rows.values()):
        for place, rank in enumerate(members):
            arriving = sum(row[place] for row in rows.values())
            if calls[rank].out_bytes not in (None, arriving):
                raise _contradiction(
                    instance, "received", arriving, calls[rank].out_bytes, recordings
                )
            calls[rank].out_bytes = arriving
        instance.splits = {rank: rows[rank] for rank in members}
        return
    sent = [calls[rank].in_bytes for rank in members]
    received = [calls[rank].out_bytes for rank in members]
    sent_known = [size for size in sent if size is not None]
    if len(sent_known) < count:
        return
    if None in received and len(set(sent_known)) == 1:
        for call in calls.values():
            call.out_bytes = call.in_bytes if call.out_bytes is None else call.out_bytes
        received = [calls[rank].out_bytes for rank in members]
        losses.add("all_to_all whose received bytes were taken to equal those sent")
    known = [size for size in received if size is not None]
    if len(known) < count:
        return
    if sum(known) != sum(sent_known):
        raise _contradiction(
            instance, "in all sent and received", sum(sent_known), sum(known), recordings
        )
    table = fit_splits(sent_known, known)
    instance.splits = {rank: tuple(row) for rank, row in zip(members, table, strict=True)}
    if len(set(sent_known + known)) > 1:
        losses.add("all_to_all whose splits were inferred from each rank's totals")


def fit_splits(sent: Sequence[int], received: Sequence[int]) -> list[list[int]]:
    """Split each sender's bytes over receivers in proportion to what they receive in all.

    The whole-number table with the given row and column sums nearest sent[i]*received[j]/total.

    >>> fit_splits([8, 8], [4, 12])
    [[2, 6], [2, 6]]
    """
    total = sum(sent)
    if total == 0:
        return [[0] * len(received) for _ in sent]
    upto = [0]
    for size in received:
        upto.append(upto[-1] + size)
    table: list[list[int]] = []
    before, given = [0] * len(upto), 0
    for size in sent:
        given += size
        now = [given * end // total for end in upto]
        table.append(
            [now[j + 1] - now[j] - before[j + 1] + before[j] for j in range(len(received))]
        )
        before = now
    for i, row in enumerate(table):
        for j, value in enumerate(row):
            if value < 0:
                _lift(table, i, j)
    return table


def _lift(table: list[list[int]], i: int, j: int) -> None:
    """Raise a negative entry to 0, keeping all sums, by moving others along a rectangle."""
    while table[i][j] < 0:
        k = max(range(len(table[i])), key=lambda column: table[i][column])
        m = max(range(len(table)), key=lambda row: table[row][j])
        table[i][j] += 1
        table[i][k] -= 1
        table[m][j] -= 1
        table[m][k] += 1
