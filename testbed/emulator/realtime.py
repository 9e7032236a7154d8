"""Run something in a real-time thread: SCHED_FIFO, fine timers, one core of its own if asked."""

from __future__ import annotations

import ctypes
import os
import threading
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from topologies import MachineError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RealtimeThread"]

Result = TypeVar("Result")

_PR_SET_TIMERSLACK: Final = 29
PRIORITY: Final = 50


class RealtimeThread(threading.Thread, Generic[Result]):
    """A thread that runs `function` in SCHED_FIFO; `result()` waits and returns or raises.

    `core` counts the cores this process may use, and wraps; without one the thread may move.
    Whatever was compiled later than the thread's start would be compiled in real time: warm up
    first.
    """

    def __init__(self, function: Callable[[], Result], *, core: int | None = None) -> None:
        super().__init__(daemon=True)
        self._function = function
        self._core = core
        self._returned: list[Result] = []
        self._raised: BaseException | None = None
        self._ended = threading.Event()

    def run(self) -> None:
        """Become real-time, then run the function."""
        try:
            _become_realtime(self._core)
            self._returned.append(self._function())
        except BaseException as raised:  # noqa: BLE001 (the thread that waits gets it)
            self._raised = raised
        finally:
            self._ended.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait a while; return whether the thread has ended.

        Unlike `join`, after which an interrupted wait takes a living thread for dead (before Python
        3.13), this may be interrupted by Ctrl-C and called again.
        """
        return self._ended.wait(timeout_s)

    def result(self) -> Result:
        """Wait for the thread to end; return what its function did, or raise it."""
        self._ended.wait()
        if self._raised is not None:
            raise self._raised
        return self._returned[0]


def _become_realtime(core: int | None) -> None:
    if core is not None:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[core % len(cores)]})
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    except OSError as refused:
        why = f"the kernel says {refused.strerror!r}"
        fix = "run as root outside a cgroup without real-time share, and see fluxbed doctor"
        raise MachineError("no thread can be real-time", "SCHED_FIFO", why, fix) from refused
