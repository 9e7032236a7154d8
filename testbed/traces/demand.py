"""Traffic without operations: who sent how much to whom, in order. A demand, not a program.

Captures on the wire or at the NIC say nothing of collectives, groups or compute. Each message
becomes a send and a receive; what one file tells about a rank adds to what another tells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from testbed.traces.capture import Call, Recording

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["DEMAND", "Message", "recordings_of"]

DEMAND: Final = "traffic without operations, groups or compute: replayed as bare messages"


class Message(NamedTuple):
    """`size_bytes` from rank `src` to `dst`; `tag` tells queues apart; `time_ns` only orders."""

    time_ns: int
    src: int
    dst: int
    size_bytes: int
    tag: int
    step: int = 0


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
            issued_ns=message.time_ns, step=message.step,
        )  # fmt: skip
        received = Call(
            kind="recv", peer=message.src, tag=message.tag, out_bytes=message.size_bytes,
            issued_ns=message.time_ns, step=message.step,
        )  # fmt: skip
        rank(message.src).calls.append(sent)
        rank(message.dst).calls.append(received)
    for recording in by_rank.values():
        recording.losses.add(DEMAND, path)
    return [by_rank[number] for number in sorted(by_rank)]
