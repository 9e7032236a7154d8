"""A NIC with a send buffer of finite size: when each message is let in.

Every node has one buffer of so many bytes for the messages it sends. A message that is ready asks
its NIC for room, is let in first in first out, by (ready, id), and may be sent from then on: it is
then that it takes its place in its queue and that a dispatcher hears of it. It holds as many bytes
as it has, or the whole buffer if it has more (the rest follows as its first bytes leave), until
its last bit has left the node, whatever way it goes; then the room serves who waits. So what waits
never exceeds the buffer, and one message that waits for its circuit can hold up others.

Bytes that a relay keeps for others (two-hop routing) and bytes that a receiver puts in order have
memory of their own, without end.
"""

from __future__ import annotations

import dataclasses
import heapq
from typing import TYPE_CHECKING

import numpy as np

from scheduler.model.taskgraph import MESSAGE
from scheduler.model.timeline import NONE

if TYPE_CHECKING:
    from scheduler.model.taskgraph import Int64s, TaskGraph
    from scheduler.model.timeline import Timeline
    from topologies.fabric import Fabric

__all__ = ["as_admitted"]


def as_admitted(
    graph: TaskGraph, fabric: Fabric, timeline: Timeline, nic_buffer_bytes: int | None
) -> Timeline:
    """Return the timeline with `ready_ns` of messages replaced by when their NIC let them in.

    It follows from when messages became ready and when they left; NONE for those never let in.
    None bytes are a buffer without end: nothing changes. O(messages * log messages).
    """
    if nic_buffer_bytes is None:
        return timeline
    ready = timeline.ready_ns.copy()
    sizes = graph.sizes_bytes(timeline.iterations)
    left = _left_ns(fabric, timeline, sizes)
    message = np.flatnonzero(np.tile(graph.kind == MESSAGE, timeline.iterations) & (ready != NONE))
    source = graph.src[message % graph.tasks]
    message = message[np.lexsort((message, ready[message], source))]
    ends = np.searchsorted(np.sort(source), np.arange(fabric.nodes + 1))
    for node in range(fabric.nodes):
        mine = message[ends[node] : ends[node + 1]]
        needs = np.minimum(sizes[mine], nic_buffer_bytes)
        ready[mine] = _let_in(ready[mine], left[mine], needs, nic_buffer_bytes)
    return dataclasses.replace(timeline, ready_ns=ready)


def _left_ns(fabric: Fabric, timeline: Timeline, sizes: Int64s) -> Int64s:
    """Return when the last bit of each message left its source, NONE where some did not."""
    moved = timeline.transfers
    rows = np.flatnonzero(moved.hop == 0)
    sent = np.zeros(len(sizes), np.int64)
    np.add.at(sent, moved.task[rows], moved.size_bytes[rows])
    last = np.full(len(sizes), NONE, np.int64)
    np.maximum.at(last, moved.task[rows], moved.end_ns[rows] - fabric.latency_ns)
    last[sent < sizes] = NONE
    return last


def _let_in(ready: Int64s, left: Int64s, needs: Int64s, room: int) -> Int64s:
    """Return when one NIC lets its messages in, in their order."""
    admitted = np.full(len(ready), NONE, np.int64)
    leaving: list[tuple[int, int]] = []
    now = 0
    for k, (asked, gone, need) in enumerate(
        zip(ready.tolist(), left.tolist(), needs.tolist(), strict=True)
    ):
        now = max(now, asked)
        while leaving and (room < need or leaving[0][0] <= now):
            time, freed = heapq.heappop(leaving)
            now, room = max(now, time), room + freed
        if room < need:
            break  # and so nothing behind it
        admitted[k] = now
        room -= need
        if gone != NONE:
            heapq.heappush(leaving, (gone, need))
    return admitted
