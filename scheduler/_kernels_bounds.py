"""The maximum cycle ratio of a dependency graph with distances."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from scheduler.kernel import kernel

if TYPE_CHECKING:
    from scheduler.model.taskgraph import Int64s

NO_PARENT: Final = -1


@kernel
def relax(
    order: Int64s,
    arc_ptr: Int64s,
    arc_before: Int64s,
    arc_length: Int64s,
    arc_distance: Int64s,
    weight: int,
    turns: int,
    potential: Int64s,
    parent: Int64s,
) -> bool:
    """One pass of longest paths with arc costs turns * length - weight * distance, in `order`.

    `arc_*` are grouped by the task they enter. Returns whether anything grew.
    """
    grew = False
    for task in order:
        for k in range(arc_ptr[task], arc_ptr[task + 1]):
            reach = potential[arc_before[k]] + turns * arc_length[k] - weight * arc_distance[k]
            if reach > potential[task]:
                potential[task] = reach
                parent[task] = k
                grew = True
    return grew


@kernel
def find_cycle(
    arc_before: Int64s, arc_length: Int64s, arc_distance: Int64s, parent: Int64s, seen: Int64s
) -> tuple[int, int]:
    """Return (length, distance) of a cycle of `parent` arcs, or (0, 0) where there is none."""
    seen[:] = 0
    for root in range(len(parent)):
        at = root
        while seen[at] == 0:
            seen[at] = root + 1
            if parent[at] == NO_PARENT:
                break
            at = arc_before[parent[at]]
        else:
            if seen[at] != root + 1:
                continue
            length, distance, start = 0, 0, at
            while True:
                k = parent[at]
                length += arc_length[k]
                distance += arc_distance[k]
                at = arc_before[k]
                if at == start:
                    return length, distance
    return 0, 0


@kernel
def cycle_ratio(
    order: Int64s,
    arc_ptr: Int64s,
    arc_before: Int64s,
    arc_length: Int64s,
    arc_distance: Int64s,
    weight: int,
    turns: int,
) -> tuple[int, int]:
    """Return (length, distance) of a cycle of the largest ratio, (weight, turns) if none is more.

    A cycle of positive cost at the present ratio has a larger ratio, which becomes the present one,
    until no such cycle is left (Dasdan, Gupta, IEEE TCAD 17, 1998, survey this family). Every ratio
    is that of a simple cycle, so it ends; a pass costs O(tasks + arcs), and there are at most as
    many passes per ratio as a path has arcs of distance 1, plus one. -1, -1: a cycle of distance 0.
    """
    tasks = len(arc_ptr) - 1
    potential = np.zeros(tasks, np.int64)
    parent = np.full(tasks, NO_PARENT, np.int64)
    seen = np.zeros(tasks, np.int64)
    while True:
        potential[:] = 0
        parent[:] = NO_PARENT
        improved = False
        while relax(
            order, arc_ptr, arc_before, arc_length, arc_distance, weight, turns, potential, parent
        ):
            length, distance = find_cycle(arc_before, arc_length, arc_distance, parent, seen)
            if length == 0 and distance == 0:
                continue
            if distance == 0:
                return -1, -1
            if length * turns <= weight * distance:
                continue
            weight, turns, improved = length, distance, True
            break
        if not improved:
            return weight, turns


@kernel
def reach_chain(
    order: Int64s,
    arc_ptr: Int64s,
    arc_before: Int64s,
    arc_distance: Int64s,
    place: Int64s,
    latest: Int64s,
    earliest: Int64s,
) -> None:
    """For each task, the last place of the chain that leads to it and the first it leads to.

    `place` is a task's place in the chain, -1 outside it. `latest` is -1 and `earliest` the number
    of tasks where there is none.
    """
    tasks = len(order)
    latest[:] = place
    for task in range(tasks):
        earliest[task] = place[task] if place[task] >= 0 else tasks
    for task in order:
        for k in range(arc_ptr[task], arc_ptr[task + 1]):
            if arc_distance[k] == 0:
                latest[task] = max(latest[task], latest[arc_before[k]])
    for task in order[::-1]:
        for k in range(arc_ptr[task], arc_ptr[task + 1]):
            if arc_distance[k] == 0:
                other = arc_before[k]
                earliest[other] = min(earliest[other], earliest[task])


@kernel
def load_ns(
    wire: Int64s,
    peer: Int64s,
    ports: int,
    delay_ns: int,
    equal: bool,
    capacity: float,
    seen: Int64s,
    stamp: int,
) -> int:
    """Least time in which `ports` ports of one node can move these messages one way, in ns.

    `wire` is each message's time at the fastest port. See `scheduler.bounds` for the proof.
    `capacity` is the rate of all ports in units of the fastest. `seen` per node is scratch.
    """
    item = np.sort(wire)[::-1]
    peers, total = 0, 0
    order = np.argsort(-wire)
    for k in order:
        total += wire[k]
        if seen[peer[k]] != stamp:
            seen[peer[k]] = stamp
            peers += 1
    misses = max(peers - ports, 0)
    if not equal:
        return int(total / capacity)
    best = -(-(total + misses * delay_ns) // ports)
    # Each peer's longest message bears the change that leads to it.
    stamp_two = stamp + 1
    for i in range(len(order)):
        k = order[i]
        item[i] = wire[k]
        if seen[peer[k]] != stamp_two:
            seen[peer[k]] = stamp_two
            item[i] += delay_ns
    item = np.sort(item)[::-1]
    i = 1
    while i * ports < len(item):
        share = 0
        for back in range(i + 1):
            share += item[i * ports - back]
        best = max(best, share - delay_ns)
        i += 1
    return best


@kernel
def windows(
    latest: Int64s,
    earliest: Int64s,
    wire: Int64s,
    peer: Int64s,
    none: int,
    most: int,
    ports: int,
    delay_ns: int,
    equal: bool,
    capacity: float,
    nodes: int,
    found: Int64s,
) -> int:
    """List (from place, to place, least time between) for one side of one node; returns how many.

    The arrays are of the messages of that side. For every place from which some message is led to,
    the `most` nearest places that messages lead to are taken. `found` has 3 columns.
    """
    starts = np.unique(latest[latest >= 0])
    stops = np.unique(earliest[earliest < none])
    seen = np.full(nodes, -1, np.int64)
    stamp, count = 0, 0
    chosen = np.empty(len(latest), np.int64)
    for start in starts:
        tried, before = 0, 0
        for stop in stops:
            if stop <= start or tried == most or count == len(found):
                continue
            size = 0
            for m in range(len(latest)):
                if latest[m] >= start and earliest[m] <= stop:
                    chosen[size] = m
                    size += 1
            if size <= before:
                continue
            before = size
            tried += 1
            found[count, 0] = start
            found[count, 1] = stop
            found[count, 2] = load_ns(
                wire[chosen[:size]],
                peer[chosen[:size]],
                ports,
                delay_ns,
                equal,
                capacity,
                seen,
                stamp,
            )
            stamp += 2
            count += 1
    return count


@kernel
def topological(succ_ptr: Int64s, succ: Int64s, missing: Int64s, order: Int64s) -> int:
    """Fill `order` so that arcs point forward; returns how many tasks a circle does not hold up.

    `missing` counts each task's arcs in and is used up.
    """
    count, done = 0, 0
    for task in range(len(missing)):
        if missing[task] == 0:
            order[count] = task
            count += 1
    while done < count:
        task = order[done]
        done += 1
        for k in range(succ_ptr[task], succ_ptr[task + 1]):
            after = succ[k]
            missing[after] -= 1
            if missing[after] == 0:
                order[count] = after
                count += 1
    return count
