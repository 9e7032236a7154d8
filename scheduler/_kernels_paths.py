"""Longest paths in a dependency graph between messages, within an iteration and into the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scheduler.kernel import kernel

if TYPE_CHECKING:
    from scheduler.model.taskgraph import Int64s

LONG_AGO: Final = -(1 << 58)  # no path: a time that is never waited for


@kernel
def paths_from(
    order: Int64s,
    arc_ptr: Int64s,
    arc_before: Int64s,
    arc_length: Int64s,
    arc_distance: Int64s,
    begin: int,
    within: Int64s,
    around: Int64s,
) -> None:
    """Fill with the longest time from the start of `begin` to each task's, `LONG_AGO` for none.

    `within` in the same iteration, `around` in the next one; both (tasks,). `arc_*` are grouped by
    the task they enter.
    """
    within[:] = LONG_AGO
    around[:] = LONG_AGO
    within[begin] = 0
    for task in order:
        for k in range(arc_ptr[task], arc_ptr[task + 1]):
            before = arc_before[k]
            if arc_distance[k] == 0 and within[before] > LONG_AGO:
                within[task] = max(within[task], within[before] + arc_length[k])
    for task in order:
        for k in range(arc_ptr[task], arc_ptr[task + 1]):
            before = arc_before[k]
            if arc_distance[k] == 0 and around[before] > LONG_AGO:
                around[task] = max(around[task], around[before] + arc_length[k])
            elif arc_distance[k] == 1 and within[before] > LONG_AGO:
                around[task] = max(around[task], within[before] + arc_length[k])


@kernel
def paths_to(
    order: Int64s,
    arc_ptr: Int64s,
    arc_before: Int64s,
    arc_length: Int64s,
    arc_distance: Int64s,
    goal: int,
    within: Int64s,
    around: Int64s,
) -> None:
    """Fill with the longest time from each task's start to that of `goal`, as `paths_from`."""
    within[:] = LONG_AGO
    around[:] = LONG_AGO
    within[goal] = 0
    for task in order[::-1]:
        for k in range(arc_ptr[task], arc_ptr[task + 1]):
            if arc_distance[k] == 0 and within[task] > LONG_AGO:
                before = arc_before[k]
                within[before] = max(within[before], within[task] + arc_length[k])
    for task in order:
        for k in range(arc_ptr[task], arc_ptr[task + 1]):
            if arc_distance[k] == 1 and within[task] > LONG_AGO:
                before = arc_before[k]
                around[before] = max(around[before], within[task] + arc_length[k])
    for task in order[::-1]:
        for k in range(arc_ptr[task], arc_ptr[task + 1]):
            if arc_distance[k] == 0 and around[task] > LONG_AGO:
                before = arc_before[k]
                around[before] = max(around[before], around[task] + arc_length[k])


@kernel
def needed(path: Int64s, least_ns: Int64s, keep: Int64s) -> None:
    """Mark in `keep` (n, n) the paths between messages that no two others imply.

    `path` is from the end of the row's message to the start of the column's, `LONG_AGO` for none;
    messages are in an order that the paths allow.
    """
    for u in range(len(path)):
        for v in range(u + 1, len(path)):
            keep[u, v] = path[u, v] > LONG_AGO
            if keep[u, v] == 0:
                continue
            for w in range(u + 1, v):
                if (
                    path[u, w] > LONG_AGO
                    and path[w, v] > LONG_AGO
                    and path[u, w] + least_ns[w] + path[w, v] >= path[u, v]
                ):
                    keep[u, v] = 0
                    break
