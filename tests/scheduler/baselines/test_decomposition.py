"""Matrices as sums of permutations: nothing lost, equal lines, as few as there can be."""

from __future__ import annotations

from itertools import permutations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from scheduler.policies import _kernels_matchings as kernels
from scheduler.policies.coflows import phases
from scheduler.policies.decomposition import (
    birkhoff,
    both_ways,
    cover,
    cover_both_ways,
    halving,
    served,
    sinkhorn,
    stuffed,
)
from scheduler.policies.spectra import Share, balance
from tests.scheduler.instances import random_dag, training

many = settings(max_examples=60, deadline=None)


@st.composite
def matrices(draw: st.DrawFn, most: int = 10**6) -> np.ndarray:
    n = draw(st.integers(2, 6))
    matrix = draw(arrays(np.int64, (n, n), elements=st.one_of(st.just(0), st.integers(0, most))))
    np.fill_diagonal(matrix, 0)
    matrix[0, 1] = max(matrix[0, 1], 1)
    return matrix


@many
@given(matrices())
def test_balanced_matrices_split_exactly(matrix: np.ndarray) -> None:
    n = len(matrix)
    for full in (stuffed(matrix), sinkhorn(matrix)):
        assert len({*full.sum(axis=0), *full.sum(axis=1)}) == 1
        assert (full[matrix > 0] > 0).all()
        turns = birkhoff(full)
        assert (served(turns, n) == full).all()
        assert len(turns) <= n * n - 2 * n + 2
        assert all(sorted(turn.permutation) == list(range(n)) for turn in turns)
    full = stuffed(matrix)
    assert (full >= matrix).all()
    assert max(full.sum(axis=0)) == max(*matrix.sum(axis=0), *matrix.sum(axis=1))
    assert (served(halving(full, lambda *_: False), n) == full).all()


@many
@given(matrices())
def test_covers_are_as_small_as_the_fullest_line(matrix: np.ndarray) -> None:
    turns = cover(matrix)
    assert len(turns) == max(*(matrix > 0).sum(axis=0), *(matrix > 0).sum(axis=1))
    assert (served(turns, len(matrix)) >= matrix).all()
    weights = [turn.weight for turn in turns]
    assert weights == sorted(weights, reverse=True)


@many
@given(matrices())
def test_duplex_matchings_are_their_own_inverse_and_carry_all(matrix: np.ndarray) -> None:
    both = np.maximum(matrix, matrix.T)
    found = both_ways(birkhoff(stuffed(both)))
    assert (served(found, len(both)) >= 2 * both).all() or not (
        stuffed(both) == stuffed(both).T
    ).all()
    simple = cover_both_ways(both)
    assert (served(simple, len(both)) >= both).all()
    for turn in [*found, *simple]:
        for a, b in enumerate(turn.permutation):
            assert b < 0 or (b != a and turn.permutation[b] == a)


@settings(max_examples=40, deadline=None)
@given(matrices(most=50))
def test_the_assignment_is_the_heaviest(matrix: np.ndarray) -> None:
    n = len(matrix)
    best = max(sum(matrix[i, p[i]] for i in range(n)) for p in permutations(range(n)))
    for heaviest in (kernels.heaviest, kernels.heaviest.py_func):
        to = np.full(n, -1, np.int64)
        heaviest(matrix, to)
        assert sorted(to.tolist()) == list(range(n))
        assert matrix[np.arange(n), to].sum() == best


@settings(max_examples=40, deadline=None)
@given(matrices(most=3), st.integers(1, 3))
def test_perfect_matchings_are_found_when_they_exist(matrix: np.ndarray, least: int) -> None:
    n = len(matrix)
    exists = any(all(matrix[i, p[i]] >= least for i in range(n)) for p in permutations(range(n)))
    for complete in (kernels.complete, kernels.complete.py_func):
        to, of = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
        assert complete(matrix, least, to, of) == exists
        for row in np.flatnonzero(to >= 0):
            assert of[to[row]] == row
            assert matrix[row, to[row]] >= least


def test_balancing_moves_half_the_difference() -> None:
    whole, small = Share((1, 0), 1000.0), Share((0, 1), 100.0)
    first, second = balance([whole, small], [10, 10])
    loads = [sum(10 + share.lit_ns for share in row) for row in (first, second)]
    assert loads[0] == loads[1]
    assert sum(share.lit_ns for share in (*first, *second)) == 1100.0
    nearly = Share((0, 1), 900.0)
    assert balance([nearly, whole], [200, 200]) == [[whole], [nearly]]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_phases_hold_every_message_after_what_it_waits_for(seed: int, symmetric: bool) -> None:  # noqa: FBT001 (drawn)
    graph = training(seed) if symmetric else random_dag(seed)
    rows = phases(graph)
    assert sorted(np.concatenate(rows).tolist()) == graph.messages.tolist()
    number = np.full(graph.tasks, -1)
    for k, messages in enumerate(rows):
        number[messages] = k
    latest = np.full(graph.tasks, -1)  # the last phase among a task's ancestors
    arcs = graph.arcs
    inside = arcs.distance == 0
    before, after = arcs.before[inside], arcs.after[inside]
    for task in graph.topological_order().tolist():
        ahead = before[after == task]
        latest[task] = max([*latest[ahead], *number[ahead], -1])
        assert number[task] < 0 or number[task] > latest[task]
