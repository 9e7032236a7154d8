"""Matchings that meet every pair, and how they are dealt to switches that know a few each."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["deal_runs", "node_matchings"]


def node_matchings(count: int, *, duplex: bool) -> list[tuple[int, ...]]:
    """Return matchings of nodes 0..count-1 that together join every ordered pair exactly once.

    Row k gives each node's destination, -1 for none. Directed: the count-1 circulant shifts of
    RotorNet (Mellette et al., SIGCOMM 2017). Duplex: the rounds of a round-robin tournament by the
    circle method, count-1 of them for an even count and count for an odd one.

    >>> node_matchings(4, duplex=False)
    [(1, 2, 3, 0), (2, 3, 0, 1), (3, 0, 1, 2)]
    >>> node_matchings(3, duplex=True)
    [(1, 0, -1), (-1, 2, 1), (2, -1, 0)]
    """
    if not duplex:
        return [tuple((i + shift) % count for i in range(count)) for shift in range(1, count)]
    even = count + count % 2
    rounds = []
    for turn in range(even - 1):
        circle = [even - 1, *((turn + k) % (even - 1) for k in range(even - 1))]
        partner = [-1] * even
        for left, right in zip(circle[: even // 2], reversed(circle[even // 2 :]), strict=True):
            partner[left], partner[right] = right, left
        rounds.append(tuple(-1 if p >= count else p for p in partner[:count]))
    return rounds


def _clashes(held: Sequence[set[int]], run: Sequence[int]) -> int:
    """Count the slots in which a run would hold a matching that is in use."""
    return sum(number in used for number, used in zip(run, held, strict=True))


def deal_runs(matchings: int, hands: int) -> list[list[int]]:
    """Deal the numbers 0..matchings-1 in equally long runs, in order, one per hand.

    Where they do not fill the last run, the deal starts again with the first ones. A run is turned
    so that no other holds the same number at the same place, where that can be had.

    >>> deal_runs(7, 2), deal_runs(3, 3)
    ([[0, 1, 2, 3], [4, 5, 6, 0]], [[0], [1], [2]])
    """
    length = -(-matchings // hands)
    held: list[set[int]] = [set() for _ in range(length)]  # by place, the numbers there
    runs: list[list[int]] = []
    for hand in range(hands):
        run = [(hand * length + i) % matchings for i in range(length)]
        run = min((run[r:] + run[:r] for r in range(length)), key=partial(_clashes, held))
        for place, number in enumerate(run):
            held[place].add(number)
        runs.append(run)
    return runs
