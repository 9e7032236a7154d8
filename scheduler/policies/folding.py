"""Which tasks are alike: the ranks of an SPMD step, found by refining colours."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from scheduler.policies.blocks import numbered, shapes

if TYPE_CHECKING:
    from scheduler.model.taskgraph import Int64s, TaskGraph

__all__ = ["fold"]


def fold(graph: TaskGraph, *, duplex: bool = False) -> Int64s:
    """Return each task's class, shape (tasks,): tasks of a class may start together.

    Tasks are alike if they last equally long and what comes before and after them is alike (colour
    refinement: Weisfeiler and Leman, 1968), so a schedule in which every class starts at once keeps
    all dependencies if its classes do. Messages of a class share no port: no node sends
    twice or receives twice in it (with `duplex`, no node has two peers); where they would, each is
    a class of its own. What the fold loses are schedules that break the symmetry.
    """
    messages = graph.messages
    distance = np.zeros(graph.tasks, np.int64)
    distance[messages] = shapes(graph)[3] + 1
    arcs = graph.arcs
    apart = np.zeros(graph.tasks, np.int64)
    while True:
        colour = numbered(graph.kind, graph.dur_ns, graph.size_bytes, graph.step, distance, apart)
        while True:
            finer = colour
            for near, far in ((arcs.after, arcs.before), (arcs.before, arcs.after)):
                finer = numbered(finer, _sets(near, finer[far] * 2 + arcs.distance, graph.tasks))
            if finer.max(initial=0) == colour.max(initial=0):
                break
            colour = finer
        clash = np.zeros(graph.tasks, bool)
        src, dst = graph.src[messages], graph.dst[messages]
        for end in (src, dst):
            keys = numbered(colour[messages], end)
            clash[messages[np.bincount(keys)[keys] > 1]] = True
        if duplex:  # both ways between two nodes are one circuit, but a node has only one
            low, high = np.minimum(src, dst), np.maximum(src, dst)
            rows = np.unique(np.stack([colour[messages], low, high]), axis=1)
            keys = numbered(np.tile(rows[0], 2), np.concatenate([rows[1], rows[2]]))
            bad = np.unique(np.tile(rows[0], 2)[np.bincount(keys)[keys] > 1])
            clash[messages] |= np.isin(colour[messages], bad)
        if not clash.any():
            return colour
        clash = np.isin(colour, colour[clash])
        apart[clash] = np.flatnonzero(clash) + 1


def _sets(near: Int64s, values: Int64s, tasks: int) -> Int64s:
    """Number, for every task, the set of `values` beside it in `near`."""
    rows = np.unique(np.stack([near, values]), axis=1)
    sets: dict[bytes, int] = {}
    bounds = np.searchsorted(rows[0], np.arange(tasks + 1))
    found = [
        sets.setdefault(rows[1, a:b].tobytes(), len(sets)) for a, b in pairwise(bounds.tolist())
    ]
    return np.array(found, np.int64)
