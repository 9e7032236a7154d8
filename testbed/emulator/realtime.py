"""Run something in a real-time thread: SCHED_FIFO, fine timers, one core of its own if asked."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from testbed.emulator.registry import read_records
from topologies import MachineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["RealtimeThread", "core_at", "engine_place", "restore_softirqs", "softirqs_first"]

Result = TypeVar("Result")

_PR_SET_TIMERSLACK: Final = 29
PRIORITY: Final = 50
_SOFTIRQ_PRIORITY: Final = PRIORITY + 1
_SOFTIRQS_IN_PLACE: Final = (6, 5)


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


def engine_place() -> int:
    """Return which core is for this process's engine: -1, the last, as the first serves interrupts.

    Runs that are at work at the same time, oldest first, take one core after another from the end:
    two real-time threads on one core would make each other late.
    """
    owners = {record.owner for record in read_records() if record.owner.lives()}
    oldest = sorted(owners, key=lambda owner: (owner.start_ticks, owner.pid))
    pids = [owner.pid for owner in oldest]
    return -1 - pids.index(os.getpid()) if os.getpid() in pids else -1


def core_at(place: int) -> int:
    """Return the core that a `RealtimeThread` of that `core` stays on."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[place % len(cores)]


def _become_realtime(core: int | None) -> None:
    if core is not None:
        os.sched_setaffinity(0, {core_at(core)})
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    except OSError as refused:
        why = f"the kernel says {refused.strerror!r}"
        fix = "run as root outside a cgroup without real-time share, and see fluxbed doctor"
        raise MachineError("no thread can be real-time", "SCHED_FIFO", why, fix) from refused


@contextlib.contextmanager
def softirqs_first() -> Iterator[None]:
    """Let each core's ksoftirqd run before real-time threads of ours, where that is needed.

    Before Linux 6.5 a core that has once woken its ksoftirqd leaves all frames to it; beneath a
    real-time thread it would not run, and the frames would wait until they count as lost. What is
    changed is put back at the end; one that is real-time already is left as it is.
    """
    with contextlib.ExitStack() as changed:
        if _kernel_version() < _SOFTIRQS_IN_PLACE:
            for pid in _softirq_threads():
                if os.sched_getscheduler(pid) == os.SCHED_OTHER:
                    os.sched_setscheduler(pid, os.SCHED_FIFO, os.sched_param(_SOFTIRQ_PRIORITY))
                    changed.callback(os.sched_setscheduler, pid, os.SCHED_OTHER, os.sched_param(0))
        yield


def restore_softirqs() -> list[str]:
    """Put back what a killed run left of `softirqs_first`; return a line for each core's thread.

    Only threads with the very priority given there are touched. Call it when no run lives.
    """
    restored = []
    if _kernel_version() < _SOFTIRQS_IN_PLACE:
        for pid in _softirq_threads():
            given = os.sched_getscheduler(pid) == os.SCHED_FIFO
            if given and os.sched_getparam(pid).sched_priority == _SOFTIRQ_PRIORITY:
                os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))
                restored.append(f"real-time priority of ksoftirqd (process {pid})")
    return restored


def _kernel_version() -> tuple[int, ...]:
    numbers = platform.release().split("-")[0].split(".")[:2]
    return tuple(int(number) for number in numbers if number.isdecimal())


def _softirq_threads() -> list[int]:
    """Return the ksoftirqd of every core; none inside a container, which does not see them."""
    found = []
    for name in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            if name.read_text().startswith("ksoftirqd/"):
                found.append(int(name.parent.name))
    return sorted(found)
