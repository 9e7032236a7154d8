"""Aligning the ranks' clocks: a collective ends on all its members at almost the same moment.

Kernels of one host's GPUs were seen to end a collective within 1 to 7 us of each other while they
began it up to 7.6 ms apart, so ends, not begins, are what clocks are compared by.
"""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from testbed.traces.capture import Losses, Recording
    from testbed.traces.matching import Instance

__all__ = ["align", "offsets"]

_ROUNDS: Final = 50
_LEAST_NS: Final = 10_000
_SYNCHRONOUS: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")


def offsets(instances: Iterable[Instance]) -> dict[int, int]:
    """Estimate how far each rank's clock is ahead, in ns, against the median of all clocks.

    Each rank moves to the median of its collectives' distances to their other members' median end,
    in turn, until nothing moves.
    """
    ends: list[dict[int, int]] = []
    touching: dict[int, list[int]] = defaultdict(list)
    for instance in instances:
        if instance.kind not in _SYNCHRONOUS:
            continue
        known = {r: c.end_ns for r, c in instance.calls.items() if c.end_ns is not None}
        if len(known) > 1:
            for rank in known:
                touching[rank].append(len(ends))
            ends.append(known)
    ahead = dict.fromkeys(sorted(touching), 0)
    for _ in range(_ROUNDS):
        moved = 0
        for rank, places in sorted(touching.items()):
            distances = [
                ends[i][rank]
                - ahead[rank]
                - median(ends[i][r] - ahead[r] for r in ends[i] if r != rank)
                for i in places
            ]
            step = round(median(distances))
            ahead[rank] += step
            moved = max(moved, abs(step))
        if moved == 0:
            break
    centre = round(median(ahead.values())) if ahead else 0
    return {rank: value - centre for rank, value in ahead.items()}


def align(
    recordings: Mapping[int, Recording], instances: list[Instance], losses: Losses
) -> dict[int, int]:
    """Return what to subtract from each rank's times; 0 where one host's clock served all."""
    hosts = {recording.host for recording in recordings.values()}
    if len(hosts) == 1 and None not in hosts:
        return dict.fromkeys(recordings, 0)
    found = offsets(instances)
    ahead = {rank: found.get(rank, 0) for rank in recordings}
    for rank, value in ahead.items():
        if abs(value) > _LEAST_NS:
            losses.add("clocks aligned by the ends of collectives", f"rank {rank}: {value} ns")
        else:
            ahead[rank] = 0
    return ahead
