"""A collective whose members share a node, told by what matters: when each of them may leave.

Nothing of it crosses the fabric, so its transfers only add up to times: a member leaves the longest
way from any entry to its exit after that entry. One task stands for all entries equally far away,
in place of every transfer of the algorithm: leaving times are the same to the nanosecond (for
durations as planned), and planning and simulating thousands of GPUs takes a fraction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from scheduler.model.flows import GATE, Flows
from scheduler.model.taskgraph import csr

if TYPE_CHECKING:
    from scheduler.model.taskgraph import Int64s

__all__ = ["condensed"]

_NO_WAY: Final = -1


def condensed(flows: Flows, members: int, dur_ns: Int64s, *, eager_send: bool) -> Flows:
    """Return gates that let every member leave when `flows` would; `flows` if that is no less.

    `dur_ns`, shape (rows,), is how long each row takes inside the node. O(members * arcs).
    """
    from scheduler.model._kernels_order import peel, reach

    arcs = flows.local_arcs(members, eager_send=eager_send)
    tasks = 2 * members + flows.rows
    pointers, listed = csr(arcs[:, 0], arcs[:, 1], tasks)
    missing = np.bincount(arcs[:, 1], minlength=tasks).astype(np.int64)
    order = np.empty(tasks, np.int64)
    if peel(pointers, listed, missing, order) < tasks:
        return flows  # a circle, which whoever finishes the graph tells with its operation
    begin_ns = np.full((tasks, members), _NO_WAY, np.int64)
    np.fill_diagonal(begin_ns, 0)  # the first tasks are the entries
    lasting_ns = np.zeros(tasks, np.int64)
    lasting_ns[members : members + flows.rows] = dur_ns
    reach(pointers, listed, order, lasting_ns, begin_ns)
    away_ns = begin_ns[-members:]  # (exits, entries)
    matters = away_ns > np.where(np.eye(members, dtype=bool), 0, _NO_WAY)
    leaves, enters = np.nonzero(matters)
    kept, gate = np.unique(np.stack([leaves, away_ns[matters]]), axis=1, return_inverse=True)
    member, wait_ns = kept
    rows = len(member)
    if rows >= flows.rows:
        return flows
    nothing = np.zeros(rows, np.int64)
    return Flows.of(
        member,
        np.full(rows, GATE),
        nothing,
        nothing,
        entered=np.stack([enters, gate.reshape(-1)], axis=1).astype(np.int64),
        left=np.stack([np.arange(rows), member], axis=1),
        dur_ns=wait_ns,
    )
