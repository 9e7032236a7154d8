"""Measure the fabric with frames: how exact its dark windows are, and how late a sleep is.

A dark window is probed by a dense train of numbered frames across both its edges. The kernel
stamps each frame as it enters the switch, so the edges are seen where they happen, to within the
gap between two frames. Each figure is signed: `last_old_ns` is the last frame the old circuit
passed minus the time it was to go dark (positive: passed too late), `first_new_ns` the first frame
the new circuit passed minus the time it was to be up (negative: passed too early).
"""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from testbed.emulator.netns import in_netns
from testbed.emulator.realtime import RealtimeThread

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from testbed.emulator.network import EmulatedFabric

__all__ = [
    "DarkWindows",
    "Distribution",
    "measure_dark_windows",
    "measure_sleep",
]

_ETHERTYPE: Final = 0x88B5  # for local experiments (IEEE 802)
_FRAME: Final = (b"\xff" * 6 + b"\x02\xfb\x02" + bytes(3) + _ETHERTYPE.to_bytes(2, "big")).ljust(
    64, b"\0"
)
_SO_RCVBUFFORCE: Final = 33
_SO_TIMESTAMPNS: Final = 35
_BUFFER_BYTES: Final = 32 << 20
_LEAD_NS: Final = 20_000_000
_SETTLE_NS: Final = 100_000
_OFFSET_READINGS: Final = 2000


@dataclass(frozen=True, slots=True)
class Distribution:
    """Samples in ns, as a table shows them; None where there was no sample."""

    samples: int
    least: float | None
    p1: float | None
    p50: float | None
    p99: float | None
    most: float | None

    @classmethod
    def of(cls, samples: NDArray[np.int64]) -> Distribution:
        """Summarise `samples`.

        >>> Distribution.of(np.arange(101)).p99
        99.0
        """
        if not len(samples):
            return cls(0, None, None, None, None, None)
        return cls(len(samples), *np.percentile(samples, [0, 1, 50, 99, 100]).tolist())


@dataclass(frozen=True, slots=True)
class DarkWindows:
    """How exact `windows` dark windows were, seen by a frame every `gap_ns`.

    `error_ns` is |last_old_ns| and |first_new_ns| together. `unseen` edges had no frame near them
    because the probe itself was stopped: counted, and out of the samples only where a window has
    no frame on one side. `leaked` frames entered the switch after dark and passed.

    Event-driven windows only: `answer_ns` is from a trigger's arrival at a host to its request,
    `event_to_dark_ns` to the last frame that passed; in `missed` windows no trigger came in time.
    """

    windows: int
    missed: int
    ahead: bool
    delay_ns: int
    gap_ns: int
    last_old_ns: Distribution
    first_new_ns: Distribution
    error_ns: Distribution
    event_to_dark_ns: Distribution
    answer_ns: Distribution
    probe_gap_ns: Distribution
    latency_ns: Distribution
    unseen: int
    leaked: int


def measure_sleep(turns: int = 500, gap_ns: int = 200_000) -> Distribution:
    """By how much a real-time sleep of `gap_ns` ends late."""
    from testbed.emulator._kernels_probe import sleep_lateness

    late_ns = np.zeros(turns, np.int64)
    sleep_lateness(0, late_ns[:1])
    thread = RealtimeThread(lambda: sleep_lateness(gap_ns, late_ns))
    thread.start()
    thread.result()
    return Distribution.of(late_ns)


def measure_dark_windows(
    network: EmulatedFabric,
    windows: int = 2000,
    *,
    ahead: bool = True,
    delay_ns: int = 300_000,
    gap_ns: int = 3_500,
) -> DarkWindows:
    """Probe `windows` dark windows of `delay_ns` on plane 0's ports 0, 1 and 2.

    Port 0's circuit changes between 1 and 2. `ahead`: every change is written a millisecond
    before; else a second real-time thread requests it when a trigger frame reaches port 1 of
    another plane, as the engine does. Needs three ports, and two planes unless `ahead`.
    """
    from testbed.emulator._kernels_probe import Train, react, train

    crossbar = network.crossbar
    margin_ns = 100_000
    period_ns = 2 * (delay_ns + 2 * margin_ns)  # at most half a core, so nobody is stopped for long
    trigger_port = network.port_base[1] if len(network.port_base) > 2 else 0  # noqa: PLR2004
    phase = np.random.default_rng(0)  # frames fall anywhere about an edge, not always alike
    with ExitStack() as stack:
        sockets = [
            stack.enter_context(_raw_socket(network, port))
            for port in (0, 1, 2, trigger_port, trigger_port + 1)
        ]

        def plan(windows: int) -> Train:
            start_ns = time.monotonic_ns() + _LEAD_NS
            down_ns = start_ns + period_ns * np.arange(windows, dtype=np.int64)
            begin_ns = down_ns - margin_ns + phase.integers(gap_ns, size=windows)
            end_ns = down_ns + delay_ns + margin_ns
            frames = windows * int((delay_ns + 2 * margin_ns) / gap_ns + 2)
            never = np.full(windows, -1, np.int64)
            return Train(
                frame=np.frombuffer(_FRAME, np.int64),
                gap_ns=gap_ns,
                begin_ns=begin_ns,
                end_ns=end_ns,
                down_ns=down_ns if ahead else never,
                up_ns=down_ns + delay_ns if ahead else never,
                trigger_ns=never if ahead else down_ns,
                trigger_fd=sockets[3].fileno(),
                out_fd=np.array([s.fileno() for s in sockets[:3]], np.int32),
                ports=np.arange(3),
                sent_ns=np.zeros(frames, np.int64),
                first=np.zeros(windows + 1, np.int64),
                landed=np.zeros(frames, np.int8),
                stamp_real_ns=np.zeros(frames, np.int64),
            )

        def run(windows: int) -> tuple[Train, NDArray[np.int64], NDArray[np.int64]]:
            crossbar.reset()
            crossbar.set_circuit_at(0, 1)
            crossbar.set_circuit_at(trigger_port, trigger_port + 1)
            todo = plan(windows)
            seen_ns, stamp_real_ns = np.full((2, windows), -1, np.int64)
            threads = [RealtimeThread(lambda: train(crossbar.tables, todo), core=0)]
            if not ahead:
                fd = sockets[4].fileno()
                arguments = (crossbar.tables, todo, fd, delay_ns, seen_ns, stamp_real_ns)
                threads.append(RealtimeThread(lambda: react(*arguments), core=1))
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.result()
            return todo, seen_ns, stamp_real_ns

        none = np.zeros(0, np.int64)
        train(crossbar.tables, plan(0))  # compiles, or loads
        react(crossbar.tables, plan(0), 0, delay_ns, none, none)
        before_ns = _real_minus_monotonic_ns()
        done, seen_ns, trigger_real_ns = run(windows)
        offset_ns = (before_ns + _real_minus_monotonic_ns()) // 2
    crossbar.reset()
    return _summary(done, seen_ns, trigger_real_ns - offset_ns, offset_ns, delay_ns, ahead=ahead)


def _summary(
    done: Any,  # noqa: ANN401 (a Train, whose module is compiled)
    seen_ns: NDArray[np.int64],
    trigger_ns: NDArray[np.int64],
    offset_ns: int,
    delay_ns: int,
    *,
    ahead: bool,
) -> DarkWindows:
    stamp_ns = done.stamp_real_ns - offset_ns
    down_ns = done.down_ns if ahead else seen_ns
    last_old, first_new, to_dark, answer = [], [], [], []
    gaps: list[NDArray[np.int64]] = []
    unseen = leaked = 0
    for window, (start, end) in enumerate(zip(done.first[:-1], done.first[1:], strict=True)):
        if down_ns[window] < 0:
            continue
        landed, stamps, sent = (a[start:end] for a in (done.landed, stamp_ns, done.sent_ns))
        old = np.flatnonzero(landed == 1 + window % 2)
        new = np.flatnonzero(landed == 1 + (window + 1) % 2)
        if not len(old) or not len(new):
            unseen += 2
            continue
        edges = (int(down_ns[window]), int(down_ns[window]) + delay_ns)
        last_old.append(int(stamps[old[-1]]) - edges[0])
        first_new.append(int(stamps[new[0]]) - edges[1])
        leaked += int(np.count_nonzero(stamps[old] > edges[0]))
        spacing = np.diff(sent)
        gaps.append(spacing)
        unseen += sum(
            bool(spacing[max(0, edge - 1) : edge + 1].max(initial=0) > 4 * done.gap_ns)
            for edge in np.searchsorted(sent, edges)
        )
        if not ahead:
            to_dark.append(int(stamps[old[-1]]) - int(trigger_ns[window]))
            answer.append(int(seen_ns[window]) - int(trigger_ns[window]))

    def summed(samples: list[int]) -> Distribution:
        return Distribution.of(np.array(samples, np.int64))

    arrived = done.landed[: done.first[-1]] > 0
    latency_ns = (stamp_ns - done.sent_ns)[: done.first[-1]][arrived]
    return DarkWindows(
        windows=len(down_ns),
        missed=int(np.count_nonzero(down_ns < 0)),
        ahead=ahead,
        delay_ns=delay_ns,
        gap_ns=done.gap_ns,
        last_old_ns=summed(last_old),
        first_new_ns=summed(first_new),
        error_ns=summed([abs(error) for error in (*last_old, *first_new)]),
        event_to_dark_ns=summed(to_dark),
        answer_ns=summed(answer),
        probe_gap_ns=Distribution.of(np.concatenate(gaps) if gaps else np.zeros(0, np.int64)),
        latency_ns=Distribution.of(latency_ns),
        unseen=unseen,
        leaked=leaked,
    )


def _raw_socket(network: EmulatedFabric, port: int) -> socket.socket:
    """Open a packet socket on a port's host interface that stamps what it receives."""
    link = network.links[port]
    with in_netns(network.host_pid(link.node)):
        opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETHERTYPE))
    try:
        opened.bind((link.host_end, _ETHERTYPE))
        opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
        opened.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    except BaseException:
        opened.close()
        raise
    return opened


def _real_minus_monotonic_ns() -> int:
    """Bracket CLOCK_REALTIME between two readings of CLOCK_MONOTONIC; keep the closest pair."""
    best = (1 << 62, 0)
    for _ in range(_OFFSET_READINGS):
        before_ns = time.monotonic_ns()
        real_ns = time.clock_gettime_ns(time.CLOCK_REALTIME)
        after_ns = time.monotonic_ns()
        best = min(best, (after_ns - before_ns, real_ns - (before_ns + after_ns) // 2))
    return best[1]
