"""Probes: dense trains of numbered frames across the edges of dark windows.

All run in one real-time thread each. Times are CLOCK_MONOTONIC in ns unless they say `_real_ns`:
kernel receive stamps are CLOCK_REALTIME, taken when a frame enters the switch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from scheduler.kernel import kernel
from testbed.emulator._kernels_crossbar import darken_input, darken_output, light
from testbed.emulator._kernels_libc import (
    IOVEC,
    MMSGHDR,
    MSG_DONTWAIT,
    NS_PER_S,
    monotonic_ns,
    recvmmsg,
    sendmmsg,
    sleep_until_ns,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from testbed.emulator.crossbar import CrossbarTables

__all__ = ["Train", "react", "sleep_lateness", "train"]

WORDS = 8
NUMBER = 2  # the word of a train's frame that says which it is, after the Ethernet header
BATCH = 64
SPIN_NS = 40_000


class Train(NamedTuple):
    """What `train` needs and fills, for F frames in W windows.

    `frame` int64[8] is a frame with everything but its number. `begin_ns`, `end_ns` int64[W]: when
    frames are sent, every `gap_ns`. `down_ns`, `up_ns` int64[W] are written into the crossbar one
    window ahead; -1 leaves that to `react`.
    `trigger_ns` int64[W]: when a frame goes out of `trigger_fd`, -1 never. `out_fd` int32[3]: who
    sends the train, then who receives it in even and in odd windows once it is up; `ports`
    int64[3] likewise. `sent_ns` int64[F], `first` int64[W + 1]: window w sent frames first[w] to
    first[w+1]. `landed` int8[F]: 0 dropped, else by which receiver; `stamp_real_ns` int64[F].
    """

    frame: NDArray[np.int64]
    gap_ns: int
    begin_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    down_ns: NDArray[np.int64]
    up_ns: NDArray[np.int64]
    trigger_ns: NDArray[np.int64]
    trigger_fd: int
    out_fd: NDArray[np.int32]
    ports: NDArray[np.int64]
    sent_ns: NDArray[np.int64]
    first: NDArray[np.int64]
    landed: NDArray[np.int8]
    stamp_real_ns: NDArray[np.int64]


@kernel
def _headers(buffers: NDArray[np.int64], control: NDArray[np.int64]) -> Any:  # noqa: ANN401
    """Return (headers, vectors) over rows of `buffers`; the caller keeps both alive."""
    headers = np.zeros(len(buffers), MMSGHDR)
    vectors = np.zeros(len(buffers), IOVEC)
    for row in range(len(buffers)):
        vectors[row]["base"] = buffers[row].ctypes.data
        vectors[row]["len"] = buffers.shape[1] * 8
        headers[row]["iov"] = vectors[row:].ctypes.data
        headers[row]["iovlen"] = 1
        headers[row]["control"] = control[row].ctypes.data
    return headers, vectors


@kernel
def _drain(
    fd: int,
    headers: Any,  # noqa: ANN401 (a structured array)
    buffers: NDArray[np.int64],
    control: NDArray[np.int64],
    who: int,
    todo: Train,
) -> None:
    while True:
        for row in range(BATCH):
            headers[row]["controllen"] = control.shape[1] * 8
        got = recvmmsg(fd, headers.ctypes.data, np.uint32(BATCH), MSG_DONTWAIT, 0)
        for row in range(got):
            number = buffers[row, NUMBER]
            todo.landed[number] = who
            todo.stamp_real_ns[number] = control[row, 2] * NS_PER_S + control[row, 3]
        if got < BATCH:
            return


@kernel
def _write_ahead(tables: CrossbarTables, todo: Train, window: int) -> None:
    """Write the window's dark time and its new circuit, whichever receiver's turn it is."""
    if window >= len(todo.begin_ns) or todo.down_ns[window] < 0:
        return
    new = todo.ports[1 + (window + 1) % 2]
    darken_output(tables, todo.ports[0], todo.down_ns[window])
    darken_input(tables, new, todo.down_ns[window])
    light(tables, todo.ports[0], new, todo.up_ns[window])


@kernel
def train(tables: CrossbarTables, todo: Train) -> int:
    """Send dense trains of numbered frames through every window; return how many frames."""
    timespec = np.zeros(2, np.int64)
    frame = todo.frame.copy().reshape(1, WORDS)
    nothing = np.zeros((BATCH, 8), np.int64)
    header, vector = _headers(frame, nothing)
    buffers = np.zeros((BATCH, WORDS), np.int64)
    control = np.zeros((BATCH, 8), np.int64)
    headers, vectors = _headers(buffers, control)
    number = 0
    _write_ahead(tables, todo, 0)
    for window in range(len(todo.begin_ns)):
        _write_ahead(tables, todo, window + 1)
        sleep_until_ns(todo.begin_ns[window] - SPIN_NS, timespec)
        due_ns = todo.begin_ns[window]
        trigger_ns = todo.trigger_ns[window]
        now_ns = monotonic_ns(timespec)
        while now_ns < todo.end_ns[window] and number < len(todo.sent_ns):
            if trigger_ns >= 0 and now_ns >= trigger_ns:
                trigger_ns = -1
                frame[0, NUMBER] = window
                sendmmsg(todo.trigger_fd, header.ctypes.data, np.uint32(1), 0)
            elif now_ns >= due_ns:
                frame[0, NUMBER] = number
                todo.sent_ns[number] = monotonic_ns(timespec)
                sendmmsg(todo.out_fd[0], header.ctypes.data, np.uint32(1), 0)
                number += 1
                due_ns = max(due_ns + todo.gap_ns, now_ns)
            now_ns = monotonic_ns(timespec)
        todo.first[window + 1] = number
        for who in range(1, 3):
            _drain(todo.out_fd[who], headers, buffers, control, who, todo)
    return number + 0 * (len(vector) + len(vectors))  # both stay alive until here


@kernel
def react(
    tables: CrossbarTables,
    todo: Train,
    trigger_fd: int,
    delay_ns: int,
    seen_ns: NDArray[np.int64],
    stamp_real_ns: NDArray[np.int64],
) -> int:
    """Answer each window's trigger as a controller does: dark now, up `delay_ns` later.

    `seen_ns` int64[W] is when the change was requested (-1: no trigger came), `stamp_real_ns`
    int64[W] when the trigger arrived. Returns how many were answered.
    """
    timespec = np.zeros(2, np.int64)
    buffers = np.zeros((BATCH, WORDS), np.int64)
    control = np.zeros((BATCH, 8), np.int64)
    headers, vectors = _headers(buffers, control)
    answered = 0
    for window in range(len(todo.begin_ns)):
        new = todo.ports[1 + (window + 1) % 2]
        sleep_until_ns(todo.begin_ns[window] - SPIN_NS, timespec)
        while monotonic_ns(timespec) < todo.end_ns[window]:
            headers[0]["controllen"] = control.shape[1] * 8
            got = recvmmsg(trigger_fd, headers.ctypes.data, np.uint32(1), MSG_DONTWAIT, 0)
            if got < 1 or buffers[0, NUMBER] != window:
                continue
            now_ns = monotonic_ns(timespec)
            darken_output(tables, todo.ports[0], now_ns)
            darken_input(tables, new, now_ns)
            light(tables, todo.ports[0], new, now_ns + delay_ns)
            seen_ns[window] = now_ns
            stamp_real_ns[window] = control[0, 2] * NS_PER_S + control[0, 3]
            answered += 1
            break
        if seen_ns[window] < 0:  # the next window begins on the other circuit all the same
            light(tables, todo.ports[0], new, monotonic_ns(timespec))
    return answered + 0 * len(vectors)  # they stay alive until here


@kernel
def sleep_lateness(gap_ns: int, late_ns: NDArray[np.int64]) -> None:
    """Sleep `len(late_ns)` times for `gap_ns`; by how much each sleep ended late."""
    timespec = np.zeros(2, np.int64)
    for turn in range(len(late_ns)):
        until_ns = monotonic_ns(timespec) + gap_ns
        sleep_until_ns(until_ns, timespec)
        late_ns[turn] = monotonic_ns(timespec) - until_ns
