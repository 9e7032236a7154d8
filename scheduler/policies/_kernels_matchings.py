"""Perfect matchings above a threshold, and the heaviest assignment: what decompositions peel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scheduler.kernel import kernel, register_warm_up

if TYPE_CHECKING:
    from scheduler.model.taskgraph import Int64s

__all__ = ["complete", "heaviest"]

_FAR = 1 << 62


@kernel
def complete(values: Int64s, least: int, to: Int64s, of: Int64s) -> bool:
    """Make (to, of) a perfect matching of rows and columns among entries of at least `least`.

    Begins with those of its pairs that still are, and adds the others along shortest augmenting
    paths; -1 is unmatched. False, with as many matched as can be, if there is none. O(n**3).
    """
    n = len(values)
    for row in range(n):
        column = to[row]
        if column >= 0 and values[row, column] < least:
            to[row] = -1
            of[column] = -1
    reached = np.empty(n, np.int64)
    queue = np.empty(n, np.int64)
    perfect = True
    for root in range(n):
        if to[root] >= 0:
            continue
        reached[:] = -1
        queue[0] = root
        head, tail, last = 0, 1, -1
        while head < tail and last < 0:
            row = queue[head]
            head += 1
            for column in range(n):
                if values[row, column] < least or reached[column] >= 0:
                    continue
                reached[column] = row
                if of[column] < 0:
                    last = column
                    break
                queue[tail] = of[column]
                tail += 1
        if last < 0:
            perfect = False
        while last >= 0:  # turn the path over
            row = reached[last]
            before = to[row]
            to[row] = last
            of[last] = row
            last = before
    return perfect


@kernel
def heaviest(values: Int64s, to: Int64s) -> None:
    """Assign a column to every row so that the sum of the entries is the largest possible.

    Shortest augmenting paths with potentials (Kuhn 1955; Jonker and Volgenant 1987). O(n**3). The
    sum of the largest entry of every row must stay below 2**62.
    """
    n = len(values)
    height = np.zeros(n + 1, np.int64)  # potentials of rows and columns, counted from 1
    depth = np.zeros(n + 1, np.int64)
    row_of = np.zeros(n + 1, np.int64)
    way = np.zeros(n + 1, np.int64)
    slack = np.empty(n + 1, np.int64)
    done = np.empty(n + 1, np.bool_)
    for root in range(1, n + 1):
        row_of[0] = root
        slack[:] = _FAR
        done[:] = False
        column = 0
        while True:
            done[column] = True
            row, best, following = row_of[column], _FAR, 0
            for other in range(1, n + 1):
                if done[other]:
                    continue
                cost = -values[row - 1, other - 1] - height[row] - depth[other]
                if cost < slack[other]:
                    slack[other] = cost
                    way[other] = column
                if slack[other] < best:
                    best = slack[other]
                    following = other
            for other in range(n + 1):
                if done[other]:
                    height[row_of[other]] += best
                    depth[other] -= best
                else:
                    slack[other] -= best
            column = following
            if row_of[column] == 0:
                break
        while column != 0:
            row_of[column] = row_of[way[column]]
            column = way[column]
    for column in range(1, n + 1):
        to[row_of[column] - 1] = column - 1


@register_warm_up
def compile_kernels() -> None:
    """Compile what is here with the types used for real."""
    values, to, of = np.ones((2, 2), np.int64), np.full(2, -1, np.int64), np.full(2, -1, np.int64)
    complete(values, 1, to, of)
    heaviest(values, to)
