"""Order the tasks of a graph, and its arcs: compiled, because there are millions of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scheduler.kernel import kernel, register_warm_up

if TYPE_CHECKING:
    from scheduler.model.taskgraph import Int64s

__all__ = ["arrange", "peel", "reach"]


@kernel
def peel(pointers: Int64s, listed: Int64s, missing: Int64s, order: Int64s) -> int:
    """Write a topological order to `order` and return how many tasks it reached (Kahn 1962).

    `pointers`, shape (tasks+1,), and `listed` are the successors in CSR form; `missing`, shape
    (tasks,), is each task's in-degree and is used up: what stays positive lies on or behind a
    cycle. O(tasks + arcs).
    """
    found = 0
    for task in range(len(missing)):
        if missing[task] == 0:
            order[found] = task
            found += 1
    done = 0
    while done < found:
        task = order[done]
        done += 1
        for k in range(pointers[task], pointers[task + 1]):
            after = listed[k]
            missing[after] -= 1
            if missing[after] == 0:
                order[found] = after
                found += 1
    return done


@kernel
def arrange(rows: Int64s, place: Int64s, order: Int64s) -> None:
    """Write to `order` the indices of `rows`, those of one row together and ascending.

    `place`, shape (rows there may be,), is where the first of each row goes, and is used up.
    """
    for k in range(len(rows)):
        row = rows[k]
        order[place[row]] = k
        place[row] += 1


@kernel
def reach(
    pointers: Int64s, listed: Int64s, order: Int64s, dur_ns: Int64s, begin_ns: Int64s
) -> None:
    """Spread how long after each source each task begins, the longest way counting.

    `pointers` and `listed` are as in `peel`, `order` is what it found, `dur_ns`, shape (tasks,), is
    how long tasks last. `begin_ns`, shape (tasks, sources), holds -1 where a source does not lead.
    """
    for task in order:
        for k in range(pointers[task], pointers[task + 1]):
            after = listed[k]
            for source in range(begin_ns.shape[1]):
                if begin_ns[task, source] >= 0:
                    ended_ns = begin_ns[task, source] + dur_ns[task]
                    begin_ns[after, source] = max(begin_ns[after, source], ended_ns)


@register_warm_up
def _warm_up() -> None:
    one, none = np.zeros(1, np.int64), np.zeros(0, np.int64)
    pointers = np.zeros(2, np.int64)
    peel(pointers, none, one.copy(), np.empty(1, np.int64))
    arrange(none, one.copy(), none)
    reach(pointers, none, one, one, np.zeros((1, 1), np.int64))
