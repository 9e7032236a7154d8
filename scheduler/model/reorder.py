"""Bytes a receiver holds because earlier ones of their message are still under way.

Earlier means sent earlier by the source. Each relay forwards a message's bytes first in, first out,
so a byte that arrives is known by the moment it left. All curves are piecewise linear and are
evaluated in rational arithmetic where one of them bends, so the maximum found is the maximum.
"""

from __future__ import annotations

from bisect import bisect_right
from fractions import Fraction
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scheduler.model.taskgraph import Int64s, TaskGraph
    from scheduler.model.timeline import Timeline
    from topologies.fabric import Fabric

__all__ = ["reorder_peaks"]

_Piece: TypeAlias = tuple[Fraction, Fraction, Fraction]  # start, end, bytes per ns
_Steps: TypeAlias = list[tuple[Fraction, Fraction]]  # time, bytes

_HAIR: Final = Fraction(1, 10**5)  # ns: a point this much earlier stands for the left-hand limit


class _Curve:
    """Cumulative bytes over time of pieces that each flow at a constant rate."""

    def __init__(self, pieces: Sequence[_Piece]) -> None:
        slopes: dict[Fraction, Fraction] = {}
        for start, end, rate in pieces:
            slopes[start] = slopes.get(start, Fraction(0)) + rate
            slopes[end] = slopes.get(end, Fraction(0)) - rate
        self.times = sorted(slopes)
        self.values: list[Fraction] = []
        self.rates: list[Fraction] = []
        value, rate, last = Fraction(0), Fraction(0), Fraction(0)
        for time in self.times:
            value += rate * (time - last)
            rate, last = rate + slopes[time], time
            self.values.append(value)
            self.rates.append(rate)
        self.total = value

    def at(self, time: Fraction) -> Fraction:
        """Bytes until `time`."""
        k = bisect_right(self.times, time) - 1
        return Fraction(0) if k < 0 else self.values[k] + self.rates[k] * (time - self.times[k])

    def when(self, value: Fraction) -> Fraction:
        """When the byte after `value` flows: the latest time at which `value` bytes have."""
        k = bisect_right(self.values, value) - 1
        k = min(k, len(self.times) - 2)
        rate = self.rates[k]
        return self.times[k] if rate == 0 else self.times[k] + (value - self.values[k]) / rate


def _held(paths: Sequence[tuple[_Curve, _Curve]], now: Fraction) -> Fraction:
    """Arrived minus in-order bytes of one message at `now`."""
    arrived = [path_in.at(now) for _, path_in in paths]
    missing = [
        sent.when(got) for (sent, _), got in zip(paths, arrived, strict=True) if got < sent.total
    ]
    if not missing:
        return Fraction(0)
    first = min(missing)
    return sum(
        (got - min(got, sent.at(first)) for (sent, _), got in zip(paths, arrived, strict=True)),
        Fraction(0),
    )


def _message_steps(paths: Sequence[tuple[_Curve, _Curve]]) -> _Steps:
    """(time, bytes held) wherever one message's held bytes may turn; jumps give two points."""
    bends = {time for _, arrives in paths for time in arrives.times}
    leaves = {time for sent, _ in paths for time in sent.times}
    for sent, arrives in paths:
        for time in leaves:
            value = sent.at(time)
            if 0 < value < arrives.total:
                bends.add(arrives.when(value))
    times = sorted(bends | {time - _HAIR for time in bends})
    return [(time, _held(paths, time)) for time in times]


def reorder_peaks(graph: TaskGraph, fabric: Fabric, timeline: Timeline) -> Int64s:
    """Return the most bytes each node held out of order, shape (nodes,); 0 without relays."""
    peaks = np.zeros(fabric.nodes, np.int64)
    moved = timeline.transfers
    curves: dict[int, list[_Steps]] = {}
    for task in np.unique(moved.task[moved.hop > 0]).tolist():
        target = int(graph.dst[task % graph.tasks])
        paths = _paths(fabric, timeline, task, target)
        if not paths:
            continue  # it never left its source: not for us to say
        curves.setdefault(target, []).append(_message_steps(paths))
    for node, each in curves.items():
        times = np.unique([float(time) for steps in each for time, _ in steps])
        held = np.zeros(len(times))
        for steps in each:
            held += np.interp(times, [float(t) for t, _ in steps], [float(b) for _, b in steps])
        peaks[node] = int(np.ceil(held.max() - float(_HAIR)))
    return peaks


def _paths(
    fabric: Fabric, timeline: Timeline, task: int, target: int
) -> list[tuple[_Curve, _Curve]]:
    """Per way a message took (directly, or by one relay): when its bytes left and arrived."""
    moved = timeline.transfers
    sent: dict[int, list[_Piece]] = {}
    arrives: dict[int, list[_Piece]] = {}
    for row in np.flatnonzero(moved.task == task).tolist():
        rate = Fraction(fabric.planes[int(moved.plane[row])].rate_bps, 8 * 10**9)
        start = Fraction(int(moved.start_ns[row]))
        end = start + int(moved.size_bytes[row]) / rate
        first_hop = int(moved.hop[row]) == 0
        relay = int(moved.to_node[row] if first_hop else moved.from_node[row])
        if first_hop:
            sent.setdefault(relay, []).append((start, end, rate))
        if int(moved.to_node[row]) == target:
            late = fabric.latency_ns
            arrives.setdefault(relay, []).append((start + late, end + late, rate))
    return [(_Curve(pieces), _Curve(arrives.get(via, []))) for via, pieces in sent.items()]
