"""Rotating through the patterns of collectives, plane by plane: how periodic networks would do it.

A pattern is what the ranks of equally shaped groups do when all send equally far round: the shift
by d in every tensor-parallel group, say. Its circuits never share a port, so whole patterns can
follow each other on a plane as a rotor's matchings do, only in the order the workload wants.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scheduler.policies.blocks import numbered, shapes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scheduler.model.taskgraph import Int64s, TaskGraph
    from topologies.fabric import Fabric

__all__ = ["rotations"]


def rotations(graph: TaskGraph, fabric: Fabric, depth: Int64s) -> Iterator[tuple[Int64s, Int64s]]:
    """Yield (plane, key), shape (tasks,) each: patterns on planes, one after another.

    Patterns are dealt to planes by their bytes, most first to the least loaded, or in runs of equal
    length. Each operation goes through a plane's patterns in order, or every other one backwards,
    so that the next begins with the circuits that stand. Operations follow each other by `depth`.
    """
    messages = graph.messages
    _, size, stride, distance = shapes(graph)
    pattern = numbered(size, stride, distance)
    patterns = int(pattern.max(initial=-1)) + 1
    load = np.bincount(pattern, weights=graph.size_bytes[messages], minlength=patterns)
    optical = [k for k, plane in enumerate(fabric.planes) if plane.kind == "ocs"]
    if not optical or not patterns:
        return
    rates = np.array([fabric.planes[k].rate_bps for k in optical], np.float64)
    balanced, total = np.zeros(patterns, np.int64), np.zeros(len(optical))
    for one in np.argsort(-load, kind="stable"):
        balanced[one] = np.argmin((total + load[one]) / rates)
        total[balanced[one]] += load[one]
    runs = np.arange(patterns) * len(optical) // patterns
    first = np.full(int(graph.op[messages].max()) + 1, graph.tasks)
    np.minimum.at(first, graph.op[messages], depth[messages])
    turn = numbered(first[graph.op[messages]])  # operations that are alike go together
    step = depth[messages] - first[graph.op[messages]]
    for dealt in (balanced, runs):
        for back in (True, False):
            place = np.where(back & (turn % 2 == 1), patterns - pattern, pattern)
            plane, key = np.zeros(graph.tasks, np.int64), np.zeros(graph.tasks, np.int64)
            plane[messages] = np.array(optical)[dealt[pattern]]
            key[messages] = (turn * (int(step.max()) + 1) + step) * (patterns + 1) + place
            yield plane, key
