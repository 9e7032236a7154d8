"""`--pcap`: what hosts sent and received during an execution, as nanosecond pcap files.

A thread of ordinary, low priority, kept off the engine's core, empties the rings of
`packet_ring` into one file per host, in order of time. Both directions are captured, on every
interface of the host: a frame whose source MAC is the host's was sent. Times are CLOCK_REALTIME,
as the kernel stamped them. How much of it was lost is measured against what the engine counted.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Final, Self

from testbed.emulator.netns import in_netns
from testbed.emulator.packet_ring import (
    BLOCK_BYTES,
    RETIRE_NS,
    SNAPSHOT_BYTES,
    CapturedFrame,
    PacketRing,
)
from topologies.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

    from scheduler.model.timeline import Timeline
    from testbed.emulator.network import EmulatedFabric

__all__ = [
    "PCAP_HEADER",
    "PCAP_RECORD",
    "CaptureCount",
    "PacketCapture",
    "pcap_header",
    "pcap_record",
]

_ALL_RINGS_BYTES: Final = 512 << 20
_MOST_BLOCKS: Final = 64  # 16 MiB: some 80,000 frames
_LEAST_BLOCKS: Final = 4
_LOOK_S: Final = 0.05
_NICE: Final = 10
_SETTLE_NS: Final = 5 * RETIRE_NS  # no ring holds a frame back for longer
_NANOSECONDS: Final = 0xA1B23C4D
_ETHERNET: Final = 1
PCAP_HEADER: Final = struct.Struct("<IHHiIII")
PCAP_RECORD: Final = struct.Struct("<IIII")


def pcap_header() -> bytes:
    """Return the beginning of a little-endian nanosecond pcap of Ethernet frames."""
    return PCAP_HEADER.pack(_NANOSECONDS, 2, 4, 0, 0, SNAPSHOT_BYTES, _ETHERNET)


def pcap_record(frame: CapturedFrame) -> bytes:
    """Return a frame as it stands in the file."""
    seconds, ns = divmod(frame.time_ns, 1_000_000_000)
    return PCAP_RECORD.pack(seconds, ns, len(frame.head), frame.size_bytes) + frame.head


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureCount:
    """What one host's file holds, beside what the engine counted for the host.

    `lost_frames` are those the engine counted and the file lacks, by direction; `ring_full_frames`
    those of them that found no room.
    """

    node: int
    sent_frames: int
    received_frames: int
    counted_sent_frames: int
    counted_received_frames: int
    ring_full_frames: int

    @property
    def lost_frames(self) -> int:
        """How many frames the file lacks."""
        sent = self.counted_sent_frames - self.sent_frames
        received = self.counted_received_frames - self.received_frames
        return max(sent, 0) + max(received, 0)

    def measures(self) -> dict[str, int]:
        """Return the counts by name, for the manifest."""
        return {
            f"pcap_h{self.node}_sent_frames": self.sent_frames,
            f"pcap_h{self.node}_received_frames": self.received_frames,
            f"pcap_h{self.node}_lost_frames": self.lost_frames,
        }

    def __str__(self) -> str:
        return (
            f"h{self.node}.pcap: {self.sent_frames} frames sent and {self.received_frames} "
            f"received, {self.lost_frames} lost of the {self.counted_sent_frames} and "
            f"{self.counted_received_frames} that were counted"
        )


class _HostCapture:
    """The rings of one host and the file they are emptied into."""

    def __init__(self, node: int, rings: Sequence[PacketRing], stream: BinaryIO) -> None:
        self.node = node
        self._rings = rings
        self._stream = stream
        self._waiting: list[CapturedFrame] = []
        self.sent = self.received = 0
        stream.write(pcap_header())

    def collect(self, *, over: bool = False) -> None:
        """Empty the rings; write what no ring can still have an earlier frame than."""
        for ring in self._rings:
            self._waiting += ring.read()
        self._waiting.sort()
        ready = len(self._waiting)
        if not over and ready:
            latest_ns = self._waiting[-1].time_ns - _SETTLE_NS
            while ready and self._waiting[ready - 1].time_ns > latest_ns:
                ready -= 1
        frames, self._waiting = self._waiting[:ready], self._waiting[ready:]
        self._stream.write(b"".join(map(pcap_record, frames)))
        sent = sum(frame.sent for frame in frames)
        self.sent += sent
        self.received += len(frames) - sent

    def dropped(self) -> int:
        return sum(ring.dropped() for ring in self._rings)


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("wb")
    except OSError as refused:
        raise _unwritable(path, refused) from refused


def _unwritable(path: Path, error: OSError) -> UsageError:
    why = (error.strerror or str(error)).lower()
    fix = "make room or choose another directory with -o"
    return UsageError("the packets cannot be written", str(path), why, fix)


class PacketCapture:
    """Capture `nodes` of `network` into `directory`/h<node>.pcap, from `with` to its end.

    `paths` are the files. Raises `MachineError` where the kernel does not capture, `UsageError`
    where a file cannot be written, at the end if it was the disk that became full.
    """

    def __init__(self, network: EmulatedFabric, nodes: Sequence[int], directory: Path) -> None:
        self._network = network
        self._nodes = nodes
        self.paths = [directory / f"h{node}.pcap" for node in nodes]
        self._open = contextlib.ExitStack()
        self._hosts: list[_HostCapture] = []
        self._dropped: list[int] = []
        self._over = threading.Event()
        self._failed: OSError | None = None
        self._offset_ns = 0
        self._thread = threading.Thread(target=self._run, name="pcap", daemon=True)

    def __enter__(self) -> Self:
        wanted = set(self._nodes)
        interfaces = sum(link.node in wanted for link in self._network.links)
        blocks = _ALL_RINGS_BYTES // (BLOCK_BYTES * max(interfaces, 1))
        blocks = max(_LEAST_BLOCKS, min(_MOST_BLOCKS, blocks))
        with contextlib.ExitStack() as building:
            for node, path in zip(self._nodes, self.paths, strict=True):
                stream = building.enter_context(_open(path))
                rings = self._rings_of(node, blocks, building)
                self._hosts.append(_HostCapture(node, rings, stream))
            self._open = building.pop_all()
        self._offset_ns = time.clock_gettime_ns(time.CLOCK_REALTIME) - time.monotonic_ns()
        self._thread.start()
        return self

    def _rings_of(self, node: int, blocks: int, building: contextlib.ExitStack) -> list[PacketRing]:
        rings = []
        with in_netns(self._network.host_pid(node)):
            for link in self._network.links:
                if link.node == node:
                    rings.append(PacketRing(link.host_end, blocks))
                    building.callback(rings[-1].close)
        return rings

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        self._dropped = [host.dropped() for host in self._hosts]
        try:
            self._open.close()
        except OSError as failed:
            self._failed = self._failed or failed
        if self._failed is not None and error is None:
            raise _unwritable(self.paths[0].parent, self._failed)

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[:-1] or cores)  # the engine has the last one
        try:
            while not self._over.wait(_LOOK_S):
                self._collect()
            time.sleep(_SETTLE_NS / 1e9)  # for the last blocks to be handed over
            self._collect(over=True)
        except OSError as failed:  # a full disk: told when the execution is over
            self._failed = failed

    def _collect(self, *, over: bool = False) -> None:
        for host in self._hosts:
            host.collect(over=over)

    def zero(self, timeline: Timeline) -> dict[str, int]:
        """Return what a frame's time is counted from: time zero of `timeline` on CLOCK_REALTIME.

        The stamp less this, divided by the dilation, is virtual time.
        """
        zero_ns = timeline.measures["zero_monotonic_ns"]
        assert zero_ns is not None
        return {"pcap_zero_ns": int(zero_ns) + self._offset_ns}

    def counts(self, timeline: Timeline) -> list[CaptureCount]:
        """Compare the files, complete by now, with the frames that the engine counted."""
        moved = timeline.transfers
        assert moved.frames_sent is not None, "only emulated executions have frames"
        assert moved.frames_received is not None
        return [
            CaptureCount(
                node=host.node,
                sent_frames=host.sent,
                received_frames=host.received,
                counted_sent_frames=int(moved.frames_sent[moved.from_node == host.node].sum()),
                counted_received_frames=int(
                    moved.frames_received[moved.to_node == host.node].sum()
                ),
                ring_full_frames=dropped,
            )
            for host, dropped in zip(self._hosts, self._dropped, strict=True)
        ]
