"""A real-time thread gives back what its function returned, or raises what it raised."""

from __future__ import annotations

import os

import pytest

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
