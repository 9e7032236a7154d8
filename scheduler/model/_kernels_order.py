"""Order the tasks of a graph: compiled, because a chain is as deep as it has tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scheduler.kernel import kernel, register_warm_up

if TYPE_CHECKING:
    from scheduler.model.taskgraph import Int64s

__all__ = ["peel"]


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


@register_warm_up
def _warm_up() -> None:
    pointers = np.zeros(2, np.int64)
    peel(pointers, np.zeros(0, np.int64), np.zeros(1, np.int64), np.empty(1, np.int64))
