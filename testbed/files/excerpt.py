"""Which part of a long run is drawn: nobody looks at a million intervals, or waits for them.

A run that is short enough is drawn whole. Of a longer one a stretch is chosen: whole iterations
from the steady state on, or less than one where even that is too much. Tables always hold all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from scheduler.model.taskgraph import COMPUTE
from scheduler.model.timeline import NONE
from topologies.units import format_duration

if TYPE_CHECKING:
    from scheduler.model.taskgraph import Int64s, TaskGraph
    from scheduler.model.timeline import Timeline

__all__ = ["Excerpt", "begin_times", "choose_excerpt", "iterations_ns"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """The stretch [begin_ns, end_ns) of a run; `drawn` of its `intervals` begin in it."""

    begin_ns: int
    end_ns: int
    intervals: int
    drawn: int

    @property
    def whole(self) -> bool:
        """Whether nothing is left out."""
        return self.drawn == self.intervals

    def shows(self, start_ns: Int64s, end_ns: Int64s) -> Int64s:
        """Return which intervals, both of whose ends are known, are seen in it: their rows."""
        known = (start_ns != NONE) & (end_ns != NONE)
        return np.flatnonzero(known & (start_ns < self.end_ns) & (end_ns >= self.begin_ns))

    def told(self) -> str:
        """Say in a sentence what is drawn and what is not.

        >>> Excerpt(begin_ns=0, end_ns=2_000_000, intervals=5000, drawn=100).told()
        '0 ns to 2 ms: 100 of 5,000 intervals'
        """
        span = f"{format_duration(self.begin_ns)} to {format_duration(self.end_ns)}"
        return f"{span}: {self.drawn:,} of {self.intervals:,} intervals"


def begin_times(graph: TaskGraph, timeline: Timeline) -> Int64s:
    """Return when each interval of a drawing begins, ascending.

    Intervals are computations, transfers, circuits, and the dark before those that were made.
    """
    begun = (timeline.start_ns != NONE) & (timeline.end_ns != NONE)
    computed = begun & np.tile(graph.kind == COMPUTE, timeline.iterations)
    circuits = timeline.circuits
    times = np.concatenate(
        [
            timeline.start_ns[computed],
            timeline.transfers.start_ns,
            circuits.up_ns,
            circuits.dark_ns[circuits.dark_ns != NONE],
        ]
    )
    times.sort()
    return times


def iterations_ns(timeline: Timeline, first: int, last: int) -> tuple[int, int] | None:
    """Return when iteration `first` begins and `last` ends, counted from 0; None if never."""
    ends = timeline.iteration_ends_ns
    if not 0 <= first <= last < len(ends) or ends[last] == NONE:
        return None
    return int(ends[first - 1]) if first else 0, int(ends[last])


def choose_excerpt(
    begins_ns: Int64s,
    timeline: Timeline,
    *,
    skip: int,
    most: int,
    asked: tuple[int, int] | None = None,
) -> Excerpt:
    """Return what is drawn of a run whose intervals begin at `begins_ns`, ascending.

    At most `most` of them: of a stretch asked for its beginning, else whole iterations from `skip`
    on if one fits.
    """
    ends = timeline.iteration_ends_ns
    begin, end = asked or (0, int(timeline.end_ns.max(initial=0)) + 1)
    if asked is None and len(begins_ns) > most and 0 < skip <= len(ends) and ends[skip - 1] != NONE:
        begin = int(ends[skip - 1])
    first = int(np.searchsorted(begins_ns, begin)) if begin else 0
    last = int(np.searchsorted(begins_ns, end))
    if last - first > most:
        end = max(int(begins_ns[first + most]), begin + 1)
        whole = ends[(ends > begin) & (ends <= end)]
        if asked is None and len(whole):
            end = int(whole.max())
        last = min(int(np.searchsorted(begins_ns, end)), first + most)
    return Excerpt(begin_ns=begin, end_ns=end, intervals=len(begins_ns), drawn=last - first)
