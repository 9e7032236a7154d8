"""Traffic without operations: who sent how much to whom, in order. A demand, not a program.

Captures on the wire or at the NIC say nothing of collectives, groups or compute. Each message
becomes a send and a receive; what one file tells about a rank adds to what another tells, except
that a message both ends' captures saw counts once.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from testbed.traces.capture import Call, Recording

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["DEMAND", "Message", "address_order", "number_hosts", "recordings_of", "seen_once"]

DEMAND: Final = "traffic without operations, groups or compute: replayed as bare messages"


class Message(NamedTuple):
    """`size_bytes` from rank `src` to `dst`; `tag` tells queues apart; `time_ns` only orders.

    `sequence`, where there is one, is the same for the same message in captures of both its ends.
    """

    time_ns: int
    src: int
    dst: int
    size_bytes: int
    tag: int
    step: int = 0
    sequence: int | None = None


def recordings_of(
    messages: Iterable[Message], path: str, form: str, hosts: dict[int, str] | None = None
) -> list[Recording]:
    """Make one recording per rank that sends or receives."""
    by_rank: dict[int, Recording] = {}

    def rank(number: int) -> Recording:
        if number not in by_rank:
            host = (hosts or {}).get(number)
            by_rank[number] = Recording(
                path=path, format=form, rank=number, host=host, partial=True
            )
        return by_rank[number]

    for message in sorted(messages):
        if message.src == message.dst:
            rank(message.src).losses.add("messages to oneself", path)
            continue
        sent = Call(
            kind="send", peer=message.dst, tag=message.tag, in_bytes=message.size_bytes,
            issued_ns=message.time_ns, step=message.step, seq=message.sequence,
        )  # fmt: skip
        received = Call(
            kind="recv", peer=message.src, tag=message.tag, out_bytes=message.size_bytes,
            issued_ns=message.time_ns, step=message.step, seq=message.sequence,
        )  # fmt: skip
        rank(message.src).calls.append(sent)
        rank(message.dst).calls.append(received)
    for recording in by_rank.values():
        recording.losses.add(DEMAND, path)
    return [by_rank[number] for number in sorted(by_rank)]


def number_hosts(recordings: Sequence[Recording]) -> None:
    """Number the ranks of several captures alike: by address, over all of them.

    Each capture numbered those it saw, so that the same number may be another host in another.
    """
    known = [r for r in recordings if r.partial and r.host is not None and _is_address(r.host)]
    if len({recording.path for recording in known}) < 2:  # noqa: PLR2004 (one needs no more)
        return
    addresses = sorted({r.host for r in known if r.host is not None}, key=address_order)
    number = {address: place for place, address in enumerate(addresses)}
    moved = {(r.path, r.rank): number[r.host] for r in known if r.host is not None}
    for recording in known:
        recording.rank = moved[recording.path, recording.rank]
        for call in recording.calls:
            call.peer = moved[recording.path, call.peer]


def _is_address(host: str) -> bool:
    try:
        return ipaddress.ip_address(host) is not None
    except ValueError:
        return False


def address_order(address: str) -> tuple[int, int]:
    """Return what IP addresses are sorted by: version, then number."""
    parsed = ipaddress.ip_address(address)
    return parsed.version, int(parsed)


def seen_once(listed: Sequence[Recording]) -> list[Call]:
    """Return the calls of one rank in several captures, those that more than one saw only once.

    What a capture saw several times (sequence numbers come again) counts as often as in the one
    that saw most of it. Calls without a sequence number all count.
    """
    kept: dict[object, list[Call]] = {}
    for place, recording in enumerate(listed):
        mine: dict[object, list[Call]] = defaultdict(list)
        for number, call in enumerate(recording.calls):
            same = (call.kind, call.peer, call.tag, call.step, call.seq)
            mine[(place, number) if call.seq is None else same].append(call)
        for key, calls in mine.items():
            if key not in kept or _amount(calls) > _amount(kept[key]):
                kept[key] = calls
    return [call for calls in kept.values() for call in calls]


def _amount(calls: Sequence[Call]) -> tuple[int, int]:
    return len(calls), sum((call.in_bytes or 0) + (call.out_bytes or 0) for call in calls)
