"""From numbered frames to figures: the signs, the edges and what was not seen."""

from __future__ import annotations

import numpy as np

from testbed.emulator.probe import Distribution, _summary

OFFSET_NS = 10**18
DELAY_NS = 300


def trace(windows: list[tuple[list[int], list[int]]], down_ns: list[int]) -> object:
    """Build what a train leaves: per window the send times and where each frame landed."""
    from testbed.emulator._kernels_probe import Train

    sent = np.array([t for times, _ in windows for t in times], np.int64)
    landed = np.array([w for _, where in windows for w in where], np.int8)
    first = np.cumsum([0, *(len(times) for times, _ in windows)])
    none = np.zeros(len(windows), np.int64)
    return Train(
        frame=none,
        gap_ns=100,
        begin_ns=none,
        end_ns=none,
        down_ns=np.array(down_ns, np.int64),
        up_ns=none,
        trigger_ns=none,
        trigger_fd=0,
        out_fd=none.astype(np.int32),
        ports=none,
        sent_ns=sent,
        first=first,
        landed=landed,
        stamp_real_ns=np.where(landed > 0, sent + 5 + OFFSET_NS, 0),
    )


def test_signed_errors_of_both_edges() -> None:
    times = [0, 100, 200, 300, 400, 500, 600]
    first = (times, [1, 1, 0, 0, 0, 2, 2])  # dark 190, up 490
    second = ([t + 1000 for t in times], [2, 2, 2, 0, 0, 1, 1])  # dark 1190, so 1200 is too late
    nothing = np.full(2, -1, np.int64)
    found = _summary(
        trace([first, second], [190, 1190]), nothing, nothing, OFFSET_NS, DELAY_NS, ahead=True
    )
    assert (found.last_old_ns.least, found.last_old_ns.most) == (105 - 190, 1205 - 1190)
    assert (found.first_new_ns.least, found.first_new_ns.most) == (505 - 490, 1505 - 1490)
    assert (found.error_ns.samples, found.error_ns.most) == (4, 85)
    assert (found.latency_ns.least, found.latency_ns.most) == (5, 5)
    assert (found.windows, found.missed, found.leaked, found.unseen) == (2, 0, 1, 0)


def test_a_frame_that_passes_in_the_dark_moves_the_edge() -> None:
    times = [0, 100, 200, 300, 400, 500, 600]
    nothing = np.full(1, -1, np.int64)
    late = trace([(times, [1, 1, 0, 1, 0, 2, 2])], [190])
    found = _summary(late, nothing, nothing, OFFSET_NS, DELAY_NS, ahead=True)
    assert found.last_old_ns.most == 305 - 190
    assert found.leaked == 1


def test_a_stopped_probe_is_told() -> None:
    nothing = np.full(2, -1, np.int64)
    gap = ([0, 100, 900, 1000], [1, 1, 2, 2])
    blind = ([2000, 2100], [2, 2])
    found = _summary(
        trace([gap, blind], [190, 2190]), nothing, nothing, OFFSET_NS, DELAY_NS, ahead=True
    )
    assert found.last_old_ns.samples == 1
    assert found.unseen == 4


def test_events_are_measured_from_the_trigger() -> None:
    times = [0, 100, 200, 300, 400, 500, 600]
    done = trace([(times, [1, 1, 1, 0, 0, 0, 2]), (times, [2] * 7)], [-1, -1])
    seen, trigger = np.array([210, -1]), np.array([150, -1])
    found = _summary(done, seen, trigger, OFFSET_NS, DELAY_NS, ahead=False)
    assert found.answer_ns.most == 60
    assert found.event_to_dark_ns.most == 205 - 150
    assert (found.windows, found.missed) == (2, 1)


def test_no_samples_are_null() -> None:
    empty = Distribution.of(np.zeros(0, np.int64))
    assert empty == Distribution(0, None, None, None, None, None)
