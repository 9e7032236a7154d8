"""The workload for a known fabric: one iteration as arrays of tasks and the arcs between them.

A task is a computation of a rank, a message between two nodes, or a marker: the zero-time moment
at which a rank enters or leaves a collective. Task ids number the base iteration 0..T-1; task
`base` of iteration i of an unrolled graph is i*T + base. A message's id is its task id.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scheduler.model.perturbation import Variation

__all__ = [
    "COMPUTE",
    "KINDS",
    "MARKER",
    "MESSAGE",
    "ORIGINS",
    "Arcs",
    "Int64s",
    "TaskGraph",
    "csr",
    "grouped",
]

Int64s: TypeAlias = NDArray[np.int64]

COMPUTE: Final = 0
MESSAGE: Final = 1
MARKER: Final = 2
KINDS: Final = ("compute", "message", "marker")
ORIGINS: Final = ("recorded", "stream", "inferred", "collective", "iteration")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arcs:
    """Constraints "after[k] starts no earlier than the end of before[k]", shape (arcs,) each.

    `distance` is 0 within an iteration and 1 for an arc to the next one; `origin` indexes
    `ORIGINS`.
    """

    before: Int64s
    after: Int64s
    distance: Int64s
    origin: Int64s


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskGraph:
    """One iteration of a workload on `nodes` nodes. All arrays have shape (tasks,), int64.

    `kind` indexes `KINDS`; `op` is the workload operation's id; `rank`, `stream` are -1 for
    messages, `src`, `dst` (nodes) and `size_bytes` are -1, -1, 0 for everything else; `dur_ns` is
    0 except for compute. `position` counts a rank's tasks on one stream (-1 for messages).
    `variation` is how iterations differ from this (None: not at all).
    `group` is equal for messages that move together: same operation, same step, same channel (-1
    for non-messages). `step` is the message's step within its operation (-1 for others).
    """

    nodes: int
    kind: Int64s
    op: Int64s
    rank: Int64s
    stream: Int64s
    position: Int64s
    src: Int64s
    dst: Int64s
    size_bytes: Int64s
    dur_ns: Int64s
    group: Int64s
    step: Int64s
    arcs: Arcs
    variation: Variation | None = None

    @property
    def tasks(self) -> int:
        """How many tasks one iteration has."""
        return len(self.kind)

    @property
    def messages(self) -> Int64s:
        """The ids of all messages, ascending."""
        return np.flatnonzero(self.kind == MESSAGE).astype(np.int64)

    def durations_ns(self, iterations: int) -> Int64s:
        """Return how long each task of the unrolled graph lasts by itself, shape (n*T,)."""
        if self.variation is None:
            return np.tile(self.dur_ns, iterations)
        return self._varied(self.variation.durations_ns, iterations)

    def sizes_bytes(self, iterations: int) -> Int64s:
        """Return the size of each message of the unrolled graph, 0 of other tasks, (n*T,)."""
        if self.variation is None:
            return np.tile(self.size_bytes, iterations)
        return self._varied(self.variation.sizes_bytes, iterations)

    def _varied(self, of: Callable[[TaskGraph, int], Int64s], iterations: int) -> Int64s:
        return np.concatenate([of(self, iteration) for iteration in range(iterations)])

    def planned(self) -> TaskGraph:
        """Return the graph as planners know it: every iteration alike."""
        return dataclasses.replace(self, variation=None)

    def successors(self, iterations: int) -> tuple[Int64s, Int64s, Int64s]:
        """Unroll to `iterations`: CSR pointers (n*T+1,), successor ids, and in-degrees (n*T,)."""
        total = iterations * self.tasks
        before, after = self.unrolled_arcs(iterations)[:2]
        pointers, listed = csr(before, after, total)
        return pointers, listed, np.bincount(after, minlength=total).astype(np.int64)

    def unrolled_arcs(self, iterations: int) -> tuple[Int64s, Int64s, Int64s]:
        """Unroll to `iterations`: arrays before, after (unrolled task ids) and origin, per arc."""
        arcs, tasks = self.arcs, self.tasks
        shift = np.arange(iterations, dtype=np.int64)[:, None] * tasks
        before = shift + arcs.before[None, :]
        after = shift + arcs.after[None, :] + arcs.distance[None, :] * tasks
        origin = np.broadcast_to(arcs.origin, before.shape)
        inside = after < iterations * tasks
        return before[inside], after[inside], origin[inside].astype(np.int64)

    def topological_order(self) -> Int64s:
        """Order the tasks so that every distance-0 arc points forward.

        Raises ValueError naming a task on a cycle where the graph has one. O(tasks + arcs).
        """
        order, left = self._peel()
        if left.any():
            raise ValueError(f"task {self.cycle()[0]} waits for itself")
        return order

    def cycle(self) -> list[int]:
        """Return tasks each of which waits for the one before it, in a circle; empty if none do."""
        left = self._peel()[1]
        arcs = self.arcs
        stuck = (arcs.distance == 0) & left[arcs.before] & left[arcs.after]
        previous = dict(zip(arcs.after[stuck].tolist(), arcs.before[stuck].tolist(), strict=True))
        if not previous:
            return []
        turns: dict[int, int] = {}
        task = next(iter(previous))
        while task not in turns:
            turns[task] = len(turns)
            task = previous[task]
        return list(turns)[turns[task] :][::-1]

    def _peel(self) -> tuple[Int64s, NDArray[np.bool_]]:
        """Order the tasks as far as can be; the second array tells those on or behind a cycle."""
        from scheduler.model._kernels_order import peel

        inside = self.arcs.distance == 0
        before, after = self.arcs.before[inside], self.arcs.after[inside]
        pointers, listed = csr(before, after, self.tasks)
        missing = np.bincount(after, minlength=self.tasks).astype(np.int64)
        order = np.empty(self.tasks, np.int64)
        peel(pointers, listed, missing, order)
        return order, missing > 0


def grouped(rows: Int64s, count: int) -> tuple[Int64s, Int64s]:
    """Put equal `rows`, numbers below `count`, together: pointers (count+1,) and their indices.

    Indices of one row ascend. O(rows + count).

    >>> pointers, order = grouped(np.array([1, 0, 1]), 2)
    >>> pointers.tolist(), order.tolist()
    ([0, 1, 3], [1, 0, 2])
    """
    from scheduler.model._kernels_order import arrange

    pointers = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=count), out=pointers[1:])
    order = np.empty(len(rows), np.int64)
    arrange(rows, pointers[:-1].copy(), order)
    return pointers, order


def csr(rows: Sequence[int] | Int64s, values: Sequence[int] | Int64s, count: int) -> Any:  # noqa: ANN401
    """Group `values` by row: pointers (count+1,) and the values, in input order within a row.

    >>> pointers, listed = csr([1, 0, 1], [5, 6, 7], 2)
    >>> pointers.tolist(), listed.tolist()
    ([0, 1, 3], [6, 5, 7])
    """
    pointers, order = grouped(np.ascontiguousarray(rows, np.int64), count)
    return pointers, np.asarray(values, np.int64)[order]
