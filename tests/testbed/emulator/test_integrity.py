from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.model.taskgraph import MESSAGE
from testbed.emulator.integrity import covered_exactly_once, violation

EXTENTS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(1, 4)), max_size=8)


def by_counting(extents: list[tuple[int, int, int]], sizes: dict[int, int]) -> list[int]:
    """The same, byte by byte."""
    seen: dict[int, list[int]] = {task: [] for task in sizes}
    for task, offset, length in extents:
        seen.setdefault(task, []).extend(range(offset, offset + length))
    return sorted(
        task
        for task, bytes_seen in seen.items()
        if sorted(bytes_seen) != list(range(sizes.get(task, 0))) or task not in sizes
    )


@given(EXTENTS, st.dictionaries(st.integers(0, 3), st.integers(1, 8)))
def test_coverage_is_what_counting_bytes_says(
    extents: list[tuple[int, int, int]], sizes: dict[int, int]
) -> None:
    task = np.array(sorted(sizes), np.int64)
    size = np.array([sizes[t] for t in sorted(sizes)], np.int64)
    rows = np.array(extents, np.int64).reshape(-1, 3)
    assert covered_exactly_once(rows, task, size).tolist() == by_counting(extents, sizes)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.randoms())
def test_pieces_in_any_order_cover(lengths: list[int], chance: Any) -> None:
    ends = np.cumsum(lengths)
    rows = [[4, int(end) - length, length] for end, length in zip(ends, lengths, strict=True)]
    chance.shuffle(rows)
    extents = np.array(rows, np.int64)
    assert not len(covered_exactly_once(extents, np.array([4]), np.array([ends[-1]])))


MEASURES = {
    "frames_sent": 2,
    "frames_received": 2,
    "frames_duplicate": 0,
    "frames_disordered": 0,
    "frames_foreign": 0,
}
COUNTED = {"forwarded_frames": 2, "dark_frames": 0, "unconnected_frames": 0, "conflict_frames": 0}
EXTENT = np.array([[0, 0, 5, 0], [1, 0, 6, 1]], np.int64)


def judge(extents: Any = EXTENT, measures: Any = (), counted: Any = ()) -> str | None:
    layout: Any = SimpleNamespace(
        graph=SimpleNamespace(tasks=2),
        work=SimpleNamespace(kind=np.array([MESSAGE, MESSAGE]), size_bytes=np.array([5, 6])),
    )
    timeline: Any = SimpleNamespace(measures=MEASURES | dict(measures))
    found = violation(layout, timeline, extents, COUNTED | dict(counted))
    return found and found.what


def test_a_whole_run_breaks_nothing() -> None:
    assert judge() is None
    lost_and_sent_again = {"frames_sent": 3}, {"dark_frames": 1}
    assert judge(EXTENT, *lost_and_sent_again) is None


@pytest.mark.parametrize(
    ("broken", "what"),
    [
        ({"extents": EXTENT[:1]}, "1 messages did not arrive exactly once, message 1 among them"),
        ({"extents": EXTENT[[0, 0, 1]]}, "1 messages did not arrive exactly once, message 0 among"),
        ({"measures": {"frames_disordered": 3}}, "3 frames were overtaken"),
        ({"measures": {"frames_foreign": 1}}, "1 datagrams are not the frames they claim to be"),
        ({"measures": {"frames_sent": 3}}, "the switches saw 2 frames, the hosts sent 3"),
        ({"measures": {"frames_received": 3}}, "3 frames arrived, the switches forwarded 2"),
        (
            {"measures": {"frames_sent": 2}, "counted": {"forwarded_frames": 1, "dark_frames": 1}},
            "2 frames arrived, the switches forwarded 1",
        ),
    ],
)
def test_what_is_not_whole_is_said(broken: dict[str, Any], what: str) -> None:
    found = judge(**broken)
    assert found is not None
    assert found.startswith(what)
