"""A real-time thread gives back what its function returned, or raises what it raised."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from testbed.emulator import realtime
from testbed.emulator.realtime import RealtimeThread
from topologies import MachineError


def started(function: object, core: int | None = None) -> RealtimeThread[object]:
    thread = RealtimeThread(function, core=core)  # type: ignore[arg-type]
    thread.start()
    return thread


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may have real-time threads")
@pytest.mark.parametrize("core", [None, 0, 5, -1])
def test_it_runs_in_real_time_on_one_core(core: int | None) -> None:
    policy, cores = started(
        lambda: (os.sched_getscheduler(0), os.sched_getaffinity(0)), core
    ).result()
    assert policy == os.SCHED_FIFO
    assert core is None or len(cores) == 1
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may have real-time threads")
def test_what_it_raises_is_raised_to_who_waits() -> None:
    def fail() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        started(fail).result()


def test_without_the_right_to_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with pytest.raises(MachineError, match="no thread can be real-time"):
        started(lambda: None).result()


@pytest.fixture
def scheduled(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """Two cores' ksoftirqd, one of them real-time already, and how they are scheduled."""
    policy = {11: os.SCHED_OTHER, 22: os.SCHED_FIFO}
    monkeypatch.setattr(realtime, "_softirq_threads", lambda: sorted(policy))
    monkeypatch.setattr(os, "sched_getscheduler", policy.__getitem__)

    def schedule(pid: int, to: int, _: os.sched_param) -> None:
        policy[pid] = to

    monkeypatch.setattr(os, "sched_setscheduler", schedule)
    return policy


@pytest.mark.parametrize(
    ("release", "during"),
    [
        ("5.10.0-8-amd64", os.SCHED_FIFO),
        ("6.1.0-57-amd64", os.SCHED_FIFO),
        ("6.4.1", os.SCHED_FIFO),
        ("6.5.0", os.SCHED_OTHER),
        ("6.18.44-fc-v857", os.SCHED_OTHER),
    ],
)
def test_softirqs_come_first_on_kernels_that_would_starve_them(
    monkeypatch: pytest.MonkeyPatch, scheduled: dict[int, int], release: str, during: int
) -> None:
    monkeypatch.setattr(platform, "release", lambda: release)
    with realtime.softirqs_first():
        assert scheduled == {11: during, 22: os.SCHED_FIFO}
    assert scheduled == {11: os.SCHED_OTHER, 22: os.SCHED_FIFO}


def test_softirq_threads_are_found_where_they_are_seen() -> None:
    for pid in realtime._softirq_threads():
        assert Path(f"/proc/{pid}/comm").read_text().startswith("ksoftirqd/")


@pytest.mark.parametrize(
    ("release", "left"), [("6.1.0-57-amd64", os.SCHED_OTHER), ("6.18.44", os.SCHED_FIFO)]
)
def test_what_a_killed_run_raised_is_put_back(
    scheduled: dict[int, int], monkeypatch: pytest.MonkeyPatch, release: str, left: int
) -> None:
    priority = {11: realtime._SOFTIRQ_PRIORITY, 22: 99}
    scheduled[11] = os.SCHED_FIFO
    monkeypatch.setattr(os, "sched_getparam", lambda pid: os.sched_param(priority[pid]))
    monkeypatch.setattr(realtime.platform, "release", lambda: release)
    told = realtime.restore_softirqs()
    assert scheduled == {11: left, 22: os.SCHED_FIFO}
    assert len(told) == (left == os.SCHED_OTHER)
