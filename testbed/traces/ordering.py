"""An order in which everything comes after what it waits for."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

__all__ = ["Circle", "in_order"]


class Circle(ValueError):  # noqa: N818 (it is what was found)
    """Something waits for itself; `place` is the first such thing."""

    def __init__(self, place: int) -> None:
        super().__init__(f"{place} waits for itself")
        self.place = place


def in_order(needs: Sequence[Collection[int]]) -> list[int]:
    """Order places 0..n-1 after all that they need, smallest first where free (Kahn, 1962).

    Raises `Circle`. O((n + needs) log n).

    >>> in_order([{2}, set(), {1}])
    [1, 2, 0]
    """
    after: list[list[int]] = [[] for _ in needs]
    missing = [len(set(before)) for before in needs]
    for place, before in enumerate(needs):
        for need in set(before):
            after[need].append(place)
    ready = [place for place, count in enumerate(missing) if count == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        place = heapq.heappop(ready)
        order.append(place)
        for later in after[place]:
            missing[later] -= 1
            if missing[later] == 0:
                heapq.heappush(ready, later)
    if len(order) < len(needs):
        raise Circle(next(place for place, count in enumerate(missing) if count))
    return order
