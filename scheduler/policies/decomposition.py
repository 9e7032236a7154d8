"""Traffic matrices as sums of weighted permutations: what coflow and circuit schedulers share.

A permutation is a tuple: position i leads to `permutation[i]`, or to nobody (-1, or i itself). All
matrices are of integers, so sums are exact and every decomposition ends.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from scheduler.model.taskgraph import Int64s, TaskGraph

__all__ = [
    "Turn",
    "among",
    "birkhoff",
    "both_ways",
    "cover",
    "cover_both_ways",
    "demand",
    "halving",
    "served",
    "sinkhorn",
    "stuffed",
    "useful",
]

_SINKHORN_ROUNDS: Final = 200
_SINKHORN_SUM: Final = 10**9  # of a line; finer than any slot


class Turn(NamedTuple):
    """A permutation and how much of every pair it joins it carries."""

    permutation: tuple[int, ...]
    weight: int


def demand(graph: TaskGraph, messages: Int64s | None = None) -> Int64s:
    """Return the bytes that go from each node to each other, shape (nodes, nodes).

    Of all messages, or of those listed.
    """
    chosen = graph.messages if messages is None else messages
    total = np.zeros((graph.nodes, graph.nodes), np.int64)
    np.add.at(total, (graph.src[chosen], graph.dst[chosen]), graph.size_bytes[chosen])
    return total


def among(matrix: Int64s, members: Sequence[int], *, duplex: bool) -> Int64s:
    """Return the demand among some nodes; on duplex planes the larger of both ways for both."""
    part: Int64s = matrix[np.ix_(members, members)]
    return np.maximum(part, part.T) if duplex else part


def useful(turns: Iterable[Turn], matrix: Int64s) -> list[Turn]:
    """Leave out the turns that join no pair with demand: all they carry is dummy."""
    rows = np.arange(len(matrix))
    return [turn for turn in turns if matrix[rows, turn.permutation][_joined(turn)].any()]


def served(turns: Iterable[Turn], nodes: int) -> Int64s:
    """Return how much the turns carry of every pair, shape (nodes, nodes)."""
    total = np.zeros((nodes, nodes), np.int64)
    for turn in turns:
        joined = _joined(turn)
        total[joined, np.asarray(turn.permutation)[joined]] += turn.weight
    return total


def _joined(turn: Turn) -> Int64s:
    return np.flatnonzero(np.asarray(turn.permutation) >= 0)


def stuffed(matrix: Int64s) -> Int64s:
    """Add dummy demand until all lines have the sum of the largest.

    QuickStuff (Liu et al., "Scheduling Techniques for Hybrid Circuit/Packet Networks", CoNEXT
    2015): entries that exist grow first, so that few new ones appear. O(n**2).

    >>> stuffed(np.array([[0, 3], [1, 1]])).tolist()
    [[1, 3], [3, 1]]
    """
    full = matrix.copy()
    target = int(max(full.sum(axis=0).max(), full.sum(axis=1).max()))
    rows, columns = target - full.sum(axis=1), target - full.sum(axis=0)
    exists = full > 0
    for wanted in (exists, ~exists):
        for i, j in np.argwhere(wanted):
            more = min(rows[i], columns[j])
            full[i, j] += more
            rows[i] -= more
            columns[j] -= more
    return full


def sinkhorn(matrix: Int64s) -> Int64s:
    """Scale rows and columns in turn until all lines have nearly equal sums, then stuff the rest.

    Sinkhorn and Knopp (1967), as traffic-matrix scheduling does (Porter et al., "Integrating
    Microsecond Circuit Switching into the Data Center" (Mordia), SIGCOMM 2013). Where no scaling
    makes the sums equal, for want of entries, stuffing bears the difference. A line sums to 10**9.
    """
    share = matrix.astype(np.float64)
    for _ in range(_SINKHORN_ROUNDS):
        for axis in (1, 0):
            total = share.sum(axis=axis, keepdims=True)
            np.divide(share, total, out=share, where=total > 0)
    if not share.any():
        return stuffed(matrix)
    share /= max(share.sum(axis=0).max(), share.sum(axis=1).max())
    kept = np.maximum(np.floor(share * _SINKHORN_SUM), matrix > 0).astype(np.int64)
    return stuffed(kept)


def birkhoff(matrix: Int64s) -> list[Turn]:
    """Split a matrix of equal line sums into permutations (Birkhoff 1946), heavy ones first.

    Each is a perfect matching whose least entry is the largest possible, found by bisection, which
    keeps their number low; it is at most n**2 - 2n + 2. O(turns * log(n) * n**3).
    """
    from scheduler.policies._kernels_matchings import complete

    rest = matrix.copy()
    to, of = np.full(len(rest), -1, np.int64), np.full(len(rest), -1, np.int64)
    turns = []
    while rest.any():
        values = np.unique(rest[rest > 0])
        low, high = 0, len(values) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if complete(rest, values[middle], to, of):
                low = middle
            else:
                high = middle - 1
        complete(rest, values[low], to, of)
        turns.append(_peel(rest, to, int(values[low])))
    return turns


def halving(matrix: Int64s, enough: Callable[[list[Turn], int], bool]) -> list[Turn]:
    """Peel permutations of a matrix of equal line sums by a halving threshold.

    BigSlice of Solstice (Liu et al., CoNEXT 2015): take a perfect matching among the entries of at
    least r, for as long as its least entry, and halve r when there is none; r begins as the largest
    power of two that some entry reaches. Ends when `enough` says so of the turns so far and r, and
    with nothing left at the latest.
    """
    from scheduler.policies._kernels_matchings import complete

    rest = matrix.copy()
    to, of = np.full(len(rest), -1, np.int64), np.full(len(rest), -1, np.int64)
    turns: list[Turn] = []
    least = 1 << max(int(rest.max()).bit_length() - 1, 0)
    while rest.any() and not enough(turns, least):
        if complete(rest, least, to, of):
            turns.append(_peel(rest, to, int(rest[np.arange(len(rest)), to].min())))
        else:
            least //= 2
    return turns


def _peel(rest: Int64s, to: Int64s, weight: int) -> Turn:
    rest[np.arange(len(rest)), to] -= weight
    return Turn(tuple(to.tolist()), weight)


def cover(matrix: Int64s) -> list[Turn]:
    """Cover a matrix by as few permutations as there are: the most entries of any line (Koenig).

    Spectra's decomposition (arXiv 2603.07373, from its abstract; details are ours): each round the
    assignment of greatest weight among those that take an entry of every line that has the most
    left. A pair is served by one permutation only, whose weight is its largest entry; the other
    pairs lead to nobody (-1). Heavy ones first. O(turns * n**3).
    """
    from scheduler.policies._kernels_matchings import heaviest

    rest = matrix.copy()
    n = len(rest)
    rows, to = np.arange(n), np.empty(n, np.int64)
    shift = max(0, int(rest.max()).bit_length() + 2 * n.bit_length() + 4 - 60)
    turns = []
    while rest.any():
        entries = rest > 0
        out, into = entries.sum(axis=1), entries.sum(axis=0)
        most = max(out.max(), into.max())
        value = np.where(entries, (rest >> shift) + 1, 0)
        bonus = n * int(value.max()) + 1
        value += entries * bonus * ((out == most)[:, None].astype(np.int64) + (into == most))
        heaviest(value, to)
        taken = entries[rows, to]
        weight = int(rest[rows, to][taken].max())
        turns.append(Turn(tuple(np.where(taken, to, -1).tolist()), weight))
        rest[rows, to] = 0
    return sorted(turns, key=lambda turn: -turn.weight)


def cover_both_ways(matrix: Int64s) -> list[Turn]:
    """Cover a symmetric matrix by self-inverse matchings: heavy pairs first, first fit.

    At most one less than twice as many as the most entries of a line. Heavy ones first.
    """
    n = len(matrix)
    found: list[tuple[list[int], int]] = []
    upper = np.argwhere(np.triu(matrix, 1) > 0)
    order = np.argsort(-matrix[upper[:, 0], upper[:, 1]], kind="stable")
    for a, b in upper[order].tolist():
        for matching, _ in found:
            if matching[a] < 0 and matching[b] < 0:
                break
        else:
            matching = [-1] * n
            found.append((matching, int(matrix[a, b])))
        matching[a], matching[b] = b, a
    return [Turn(tuple(matching), weight) for matching, weight in found]


def both_ways(turns: Iterable[Turn]) -> list[Turn]:
    """Split permutations into matchings that are their own inverse, as duplex planes need them.

    The turns are those of a symmetric matrix. Every cycle is an even or an odd round of circuits
    that join both ways: it is walked twice at half the weight, its circuits in turn, and an odd one
    needs a third matching (Shannon 1949). Weights double, so that they stay whole; equal matchings
    are joined, first found first.
    """
    weights: Counter[tuple[int, ...]] = Counter()
    for permutation, weight in turns:
        for matching in _matchings_of(permutation):
            weights[matching] += weight
    return [Turn(matching, weight) for matching, weight in weights.items()]


def _matchings_of(permutation: Sequence[int]) -> list[tuple[int, ...]]:
    n = len(permutation)
    parts: list[list[int]] = [[-1] * n, [-1] * n, [-1] * n]
    seen = [False] * n
    headed = set(permutation)
    for start in sorted(range(n), key=lambda i: i in headed):  # paths from their heads, then cycles
        if seen[start]:
            continue
        chain = [start]
        seen[start] = True
        while (after := permutation[chain[-1]]) >= 0 and not seen[after]:
            chain.append(after)
            seen[after] = True
        if len(chain) == 1:
            continue
        closed = permutation[chain[-1]] == start
        links = list(pairwise(chain))
        if closed and len(links) > 1:
            links.append((chain[-1], start))
        for k, (a, b) in enumerate(links):
            odd = closed and len(chain) % 2 == 1 and k == len(links) - 1
            for part in (0, 1) if len(links) == 1 else (2 if odd else k % 2,):
                parts[part][a], parts[part][b] = b, a
    return [tuple(part) for part in parts if any(other >= 0 for other in part)]
