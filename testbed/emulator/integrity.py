"""After a run: did every virtual byte arrive exactly once and in order, and do the counts agree?

What is checked against what was received, not against what was sent: `extents` are runs of bytes
as the receivers saw them in the frames' own headers, and the crossbar counts for itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scheduler.model.taskgraph import MESSAGE
from topologies.errors import CheckError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scheduler.dispatch.layout import Layout
    from scheduler.model.taskgraph import Int64s
    from scheduler.model.timeline import Timeline

__all__ = ["covered_exactly_once", "violation"]

TASK, OFFSET, LENGTH = 0, 1, 2


def covered_exactly_once(extents: Int64s, task: Int64s, size_bytes: Int64s) -> Int64s:
    """Return the messages, of `task` (ascending) of `size_bytes`, not covered exactly once.

    `extents` int64[:, 3 or more] has columns task, offset, length, in any order of rows. A message
    is covered exactly once when its extents, sorted, begin at 0, follow each other without gap or
    overlap, and end at its size; a task in `extents` that is not in `task` is returned too.

    >>> extents = np.array([[7, 10, 5], [7, 0, 10], [8, 0, 4]])
    >>> covered_exactly_once(extents, np.array([7, 8]), np.array([15, 5])).tolist()
    [8]
    """
    order = np.lexsort((extents[:, OFFSET], extents[:, TASK]))
    rows = extents[order]
    owner, begin = rows[:, TASK], rows[:, OFFSET]
    end = begin + rows[:, LENGTH]
    first = np.diff(owner, prepend=-1) != 0
    expected = np.where(first, 0, np.concatenate([np.zeros(1, np.int64), end[:-1]])[: len(end)])
    wrong = set(owner[(begin != expected) | (rows[:, LENGTH] <= 0)].tolist())
    last = np.flatnonzero(np.append(first[1:], True)) if len(rows) else np.zeros(0, np.int64)
    reached = dict(zip(owner[last].tolist(), end[last].tolist(), strict=True))
    sizes = dict(zip(task.tolist(), size_bytes.tolist(), strict=True))
    wrong |= {message for message, size in sizes.items() if reached.get(message) != size}
    wrong |= reached.keys() - sizes.keys()
    return np.array(sorted(wrong), np.int64)


def violation(
    layout: Layout, timeline: Timeline, extents: Int64s, counted: Mapping[str, int]
) -> CheckError | None:
    """Return what a finished run breaks, or None. `counted` are the switches' totals by name."""
    measures, tasks = timeline.measures, layout.graph.tasks
    messages = np.flatnonzero(layout.work.kind == MESSAGE)
    wrong = covered_exactly_once(extents, messages, layout.work.size_bytes[messages])
    if len(wrong):
        iteration, message = divmod(int(wrong[0]), tasks)
        what = f"{len(wrong)} messages did not arrive exactly once, message {message} among them"
        why = "the extents received do not cover them"
        return _broken(what, f"iteration {iteration}", why)
    if measures["frames_disordered"]:
        what = f"{measures['frames_disordered']} frames were overtaken"
        return _broken(what, "integrity", "each path keeps its order")
    if measures["frames_foreign"]:
        what = f"{measures['frames_foreign']} datagrams are not the frames they claim to be"
        return _broken(what, "integrity", "only this run sends here")
    sent, received = measures["frames_sent"], measures["frames_received"]
    useless = ("frames_duplicate", "frames_discarded", "frames_spoilt")
    repeated = sum(int(measures.get(name) or 0) for name in useless)
    forwarded = counted["forwarded_frames"]
    causes = ("dark", "unconnected", "conflict", "queue")
    dropped = sum(counted.get(f"{cause}_frames", 0) for cause in causes)
    if forwarded + dropped != sent:
        what = f"the switches saw {forwarded + dropped} frames, the hosts sent {sent}"
        return _broken(what, "integrity", "every frame sent enters a switch")
    assert received is not None
    if forwarded < received + repeated:
        what = f"{received + repeated} frames arrived, the switches forwarded {forwarded}"
        return _broken(what, "integrity", "every frame received left a switch")
    return None


def _broken(what: str, where: str, why: str) -> CheckError:
    return CheckError(what, where, why, "do not use this run; look at its drops and resent frames")
