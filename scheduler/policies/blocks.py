"""Which messages Flux moves together: the ranks of a phase, the messages of a step, single ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scheduler.policies._kernels_flux import ANY, NEVER
from scheduler.policies._kernels_flux_search import Blocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scheduler.model.taskgraph import Int64s, TaskGraph
    from scheduler.policies._kernels_flux import Instance

__all__ = ["blocks_of", "make_blocks", "numbered", "shapes"]


def numbered(*columns: Int64s) -> Int64s:
    """Number the distinct rows of equally long columns 0.. in sorted order.

    >>> numbered(np.array([5, 3, 5]), np.array([1, 1, 1])).tolist()
    [1, 0, 1]
    """
    numbers = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values = np.unique(column, return_inverse=True)[1]
        numbers = np.unique(
            numbers * (int(values.max(initial=0)) + 1) + values, return_inverse=True
        )[1]
    return numbers.astype(np.int64)


def shapes(graph: TaskGraph) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    """Describe how each message lies in its group, shape (messages,) each.

    The group's number, how many members it has, the first member's distance to the second, and how
    far round the members the message goes. A message without a group is a group of its own.
    """
    messages = graph.messages
    count = len(messages)
    src, dst, group = graph.src[messages], graph.dst[messages], graph.group[messages]
    group = numbered(np.where(group < 0, -1 - messages, group))
    both = np.stack([np.concatenate([group, group]), np.concatenate([src, dst])])
    members, place = np.unique(both, axis=1, return_inverse=True)
    first = np.searchsorted(members[0], group)
    size = np.searchsorted(members[0], group, side="right") - first
    stride = members[1, np.minimum(first + 1, len(members[1]) - 1)] - members[1, first]
    place = place.reshape(-1)
    return group, size, stride, (place[count:] - place[:count]) % size


def blocks_of(graph: TaskGraph, depth: Int64s) -> list[Int64s]:
    """Return the block of each message at each level, coarse to fine; equal levels appear once.

    A *step* is the part of a group (`TaskGraph.group`) that goes equally far round its members, so
    that no node sends twice in it where the members' numbers allow. A *phase* is the steps of all
    groups that are alike: equally deep in the graph (`depth`), of equal sizes and shape. The finest
    level is single messages. Shape (messages,) each, in order of `graph.messages`.
    """
    messages = graph.messages
    group, _, _, distance = shapes(graph)
    step = numbered(group, distance)
    steps = int(step.max(initial=-1)) + 1
    largest, deepest = np.zeros(steps, np.int64), np.zeros(steps, np.int64)
    np.maximum.at(largest, step, graph.size_bytes[messages])
    np.maximum.at(deepest, step, depth[messages])
    width = np.bincount(step, minlength=steps)
    alike = numbered(deepest[step], largest[step], width[step], distance, graph.step[messages])
    levels: list[Int64s] = []
    for level in (alike, step, np.arange(len(messages), dtype=np.int64)):
        if not levels or not np.array_equal(numbered(levels[-1]), numbered(level)):
            levels.append(level)
    return levels


def make_blocks(instance: Instance, messages: Int64s, levels: Sequence[Int64s]) -> Blocks:
    """Lay the levels out for the kernels."""
    tasks, planes = len(instance.kind), len(instance.mode)
    of = np.full((len(levels), tasks), ANY, np.int64)
    offset, members, sizes = 0, [], []
    for row, level in zip(of, levels, strict=True):
        numbers = numbered(level)
        row[messages] = numbers + offset
        offset += int(numbers.max(initial=-1)) + 1
        members.append(messages[np.argsort(numbers, kind="stable")])
        sizes.append(np.bincount(numbers))
    pointer = np.concatenate([[0], np.cumsum(np.concatenate(sizes))]).astype(np.int64)
    listed = np.concatenate(members).astype(np.int64)
    carries = np.ones((offset, planes), bool)
    for k in range(planes):
        no = of[:, messages[instance.wire_ns[k, messages] == NEVER]].ravel()
        carries[no, k] = False
    choice = np.argsort(~carries, axis=1, kind="stable").astype(np.int64)
    return Blocks(of, pointer, listed, choice, carries.sum(axis=1).astype(np.int64))
