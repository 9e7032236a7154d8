"""From kernels to segments: a rank's time, cut where it enters a collective or stops waiting.

Each rank has one line of compute. It is its wall clock minus the time it waited for collectives,
so host gaps stay in. The line is cut where a collective is entered, which then needs everything
computed before, and where one is joined: the next segment needs it. What overlapped in the capture
overlaps in replay.

When a collective is joined: where the trace says so, which few do; at its end where the issuing
thread waited; where the line was idle at its end and what came next was queued already, or the host
was blocked until then; else when parameters are updated. A captured duration is never a transfer
time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final

import numpy as np

from testbed.traces.capture import Enter, Work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from testbed.traces.capture import Busy, Call, Losses, Recording, Step

__all__ = ["cut"]

_PIPELINED: Final = (
    "collectives nobody waits for within their step (a later step may): not waited for"
)
_QUEUED_NS: Final = 50_000
_WOKEN_NS: Final = 100_000
_BLOCKED_NS: Final = 5_000
_JOIN, _ENTER, _LATE_JOIN = 0, 1, 2  # in this order where they fall together


class _Line:
    """One step of one rank: the busy intervals sorted, and where the step begins and ends."""

    def __init__(
        self,
        busy: Busy,
        step: Step | None,
        number: int,
        begin_ns: int | None,
        calls: Sequence[Call],
    ) -> None:
        inside = busy.step == number
        self.starts = busy.start_ns[inside]
        self.ends = busy.end_ns[inside]
        self.launches = busy.launch_ns[inside]
        self.latest: NDArray[np.int64] = np.maximum.accumulate(self.ends)
        seen = [int(self.starts[0]), int(self.latest[-1])] if len(self.starts) else []
        if step is None:  # no mark says where it begins and ends: from the first to the last
            times = (t for call in calls for t in (call.issued_ns, call.start_ns, call.end_ns))
            seen += [t for t in times if t is not None]
            begin = min(seen, default=0)
        else:
            begin = step.start_ns
            seen.append(step.end_ns)
        self.begin_ns = begin if begin_ns is None else max(begin, begin_ns)
        self.end_ns = max([*seen, self.begin_ns])

    def next_after(self, time_ns: int) -> int:
        """Return the index of the first interval that starts after `time_ns`."""
        return int(np.searchsorted(self.starts, time_ns, "right"))

    def idle_since(self, time_ns: int) -> int | None:
        """Return since when nothing runs at `time_ns`; None if something does."""
        index = self.next_after(time_ns)
        latest = int(self.latest[index - 1]) if index else self.begin_ns
        return latest if latest <= time_ns else None

    def launched_after(self, time_ns: int) -> int | None:
        """Return when the first interval that the host asked for after `time_ns` starts."""
        later = self.starts[self.launches >= time_ns]
        return int(later.min()) if len(later) else None


def cut(recording: Recording, step: Step | None, number: int, begin_ns: int | None,
        losses: Losses) -> tuple[list[Work | Enter], int | None]:  # fmt: skip
    """Cut one step of one rank; return its pieces in order and when it ended.

    `begin_ns` is when the previous step ended on this rank, if there was one. Calls must be in the
    order they were issued.
    """
    if recording.program is not None:
        return recording.program.get(number, []), None
    calls = [call for call in recording.calls if call.step == number]
    if not recording.timed:
        return _cut_untimed(calls, recording.updates_ns), None
    line = _Line(recording.busy, step, number, begin_ns, calls)
    marks: list[tuple[int, int, int]] = []
    waiting: list[tuple[int, int]] = []
    entered: dict[int, int] = {}
    lane_end: dict[int, int] = {}
    joiner = _Joiner(line, recording)
    for place, call in enumerate(calls):
        time_ns = _enter_ns(call, line, recording, lane_end.get(call.lane))
        time_ns = max(min(time_ns, line.end_ns), entered.get(call.lane, line.begin_ns))
        entered[call.lane] = time_ns
        marks.append((time_ns, _ENTER, place))
        end_ns = call.end_ns
        if end_ns is not None:
            lane_end[call.lane] = max(end_ns, lane_end.get(call.lane, end_ns))
        joined = joiner.join(call, time_ns)
        if joined is None:
            losses.add(_PIPELINED, call.kind)
            continue
        idle_ns, join_ns = joined
        marks.append((join_ns, _JOIN if join_ns > time_ns else _LATE_JOIN, place))
        if idle_ns < join_ns:
            waiting.append((max(idle_ns, time_ns), join_ns))
    return _walk(line, calls, sorted(marks), waiting), line.end_ns


def _cut_untimed(calls: Sequence[Call], updates: Sequence[int]) -> list[Work | Enter]:
    """Order calls and waits where there are no times: no compute is known."""
    marks: list[tuple[int, int, int]] = []
    for place, call in enumerate(calls):
        issued = call.issued_ns or 0
        marks.append((issued, _ENTER, place))
        later = bisect_right(updates, issued)
        at = call.awaited_ns if call.awaited_ns is not None else next(iter(updates[later:]), None)
        if at is not None:
            marks.append((at, _LATE_JOIN, place))
    pieces: list[Work | Enter] = []
    joined: dict[int, Call] = {}
    for time_ns, what, place in sorted(marks):
        if what == _ENTER:
            pieces.append(Enter(time_ns, calls[place], tuple(joined.values())))
        else:
            joined[place] = calls[place]
    return pieces


def _enter_ns(call: Call, line: _Line, recording: Recording, lane_end: int | None) -> int:
    """Return when the rank had everything the call needed."""
    issued = call.issued_ns if call.issued_ns is not None else call.start_ns or line.begin_ns
    if call.kind in ("send", "recv") and call.start_ns is not None:
        return min(issued, call.start_ns) if not recording.on_gpu else call.start_ns
    if not recording.on_gpu or call.start_ns is None:
        return issued
    blocked = lane_end is not None and lane_end >= call.start_ns - _BLOCKED_NS
    if not blocked:
        return call.start_ns
    needed = line.ends[(line.launches < issued) & (line.ends <= call.start_ns)]
    ready = int(needed.max()) if len(needed) else issued
    return min(call.start_ns, max(issued, ready))


class _Joiner:
    """Finds when a rank stops waiting for a call, from what the trace shows."""

    def __init__(self, line: _Line, recording: Recording) -> None:
        self._line = line
        self._on_gpu = recording.on_gpu
        self._updates = recording.updates_ns
        self._syncs = recording.syncs
        self._sync_ends = [end for _, end in recording.syncs]

    def join(self, call: Call, entered_ns: int) -> tuple[int, int] | None:
        """Return (idle since, joined at): the line waits between them; None if never seen."""
        line, end_ns = self._line, call.end_ns
        if call.awaited_ns is not None and call.resumed_ns is not None:
            return self._told(call, call.awaited_ns, call.resumed_ns)
        if end_ns is None:
            return (entered_ns, entered_ns) if call.waited else self._at_update(call, entered_ns)
        if end_ns > line.end_ns:
            return None
        end_ns = max(end_ns, entered_ns)
        idle_ns = line.idle_since(end_ns)
        if call.waited:
            return (end_ns if idle_ns is None else idle_ns), end_ns
        if idle_ns is not None and self._blocked(end_ns):
            return idle_ns, end_ns
        return self._at_update(call, end_ns)

    def _told(self, call: Call, awaited_ns: int, resumed_ns: int) -> tuple[int, int] | None:
        """Join where the trace says: on a CPU while the host waits, on a GPU in its queue."""
        line = self._line
        if not self._on_gpu:
            return None if resumed_ns > line.end_ns else (awaited_ns, resumed_ns)
        start = line.launched_after(awaited_ns)
        if start is None:
            return None
        end_ns = start if call.end_ns is None else min(start, call.end_ns)
        idle_ns = line.idle_since(end_ns)
        return (start, start) if idle_ns is None or end_ns == start else (idle_ns, end_ns)

    def _blocked(self, end_ns: int) -> bool:
        """Tell whether what follows an idle moment waited for it to end."""
        line = self._line
        index = line.next_after(end_ns)
        if index >= len(line.starts) or not self._on_gpu:
            return True
        launch, start = int(line.launches[index]), int(line.starts[index])
        if launch < end_ns:
            return start - end_ns <= _QUEUED_NS
        place = bisect_left(self._sync_ends, end_ns)
        return (
            place < len(self._syncs)
            and self._syncs[place][0] <= end_ns
            and self._syncs[place][1] - end_ns <= _WOKEN_NS
        )

    def _at_update(self, call: Call, not_before_ns: int) -> tuple[int, int] | None:
        """Join where the host first updates parameters after having issued the call."""
        issued = call.issued_ns if call.issued_ns is not None else not_before_ns
        place = bisect_right(self._updates, issued)
        if place == len(self._updates):
            return None
        start = self._line.launched_after(self._updates[place])
        if start is None or start > self._line.end_ns:
            return None
        at = max(start, not_before_ns)
        return at, at


def _walk(
    line: _Line,
    calls: Sequence[Call],
    marks: Sequence[tuple[int, int, int]],
    waiting: Sequence[tuple[int, int]],
) -> list[Work | Enter]:
    """Go through the marks in time; between two of them lies a segment, waiting taken out."""
    idle = _union(waiting)
    pieces: list[Work | Enter] = []
    at = line.begin_ns
    work: Work | None = None
    joined: list[Call] = []
    for time_ns, what, place in [*marks, (line.end_ns, _JOIN, -1)]:
        length = time_ns - at - _overlap(idle, at, time_ns)
        if length > 0:
            work = Work(at, length, tuple(joined))
            pieces.append(work)
            joined = []
        at = max(at, time_ns)
        if place < 0:
            break
        if what == _ENTER:
            before = () if work is None else (work,)
            pieces.append(Enter(time_ns, calls[place], (*before, *joined)))
        else:
            joined.append(calls[place])
    return pieces


def _union(intervals: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif end > start:
            merged.append((start, end))
    return merged


def _overlap(merged: Sequence[tuple[int, int]], start: int, end: int) -> int:
    """Return how much of [start, end) the disjoint sorted intervals cover. O(log n + hits)."""
    place = max(0, bisect_right(merged, (start, 2**62)) - 1)
    covered = 0
    for low, high in merged[place:]:
        if low >= end:
            break
        covered += max(0, min(high, end) - max(low, start))
    return covered
