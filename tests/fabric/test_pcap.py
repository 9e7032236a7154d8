"""Packets of hosts captured during real executions: all of them, in order, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from scapy.utils import RawPcapReader

from testbed.emulator.capacity import _UNDILATED, _traffic
from testbed.emulator.engine import execute
from testbed.emulator.frames import unpack
from testbed.emulator.packets import PacketCapture
from testbed.traces import load_workload
from topologies import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from testbed.emulator.network import EmulatedFabric

HEADERS = 14 + 20 + 8
STEPS, FRAMES = 20, 4
FRAME_NS = 100_000


def test_every_frame_of_a_host_is_captured_once(idle: EmulatedFabric, tmp_path: Path) -> None:
    work = _traffic(idle.fabric, steps=STEPS, frames=FRAMES, frame_ns=FRAME_NS)
    with PacketCapture(idle, [0, 2], tmp_path) as capture:
        timeline = execute(*work, idle, iterations=1, dilation=_UNDILATED)
    ports = sum(plane.node_of.count(0) for plane in idle.fabric.planes)
    sent = STEPS * FRAMES * ports
    for count in capture.counts(timeline):
        assert count.lost_frames == count.ring_full_frames == 0
        assert count.counted_sent_frames >= sent
        assert count.sent_frames == count.counted_sent_frames
        assert count.received_frames >= count.counted_received_frames >= sent
    zero_ns = capture.zero(timeline)["pcap_zero_ns"]
    for node, path in zip((0, 2), capture.paths, strict=True):
        with RawPcapReader(str(path)) as reader:
            assert reader.nano
            seen = list(reader)
        times = np.array([meta.sec * 10**9 + meta.usec for _, meta in seen]) - zero_ns
        assert (np.diff(times) >= 0).all()
        assert times[0] > 0
        mine = {bytes.fromhex(k.mac.replace(":", "")) for k in idle.links if k.node == node}
        assert {head[6:12] in mine or head[:6] in mine for head, _ in seen} == {True}
        serials = [unpack(head[HEADERS:]).serial for head, _ in seen if head[6:12] in mine]
        assert len(set(serials)) == sent
        assert all(meta.caplen == 128 < meta.wirelen for _, meta in seen)


def test_the_file_can_be_imported(idle: EmulatedFabric, tmp_path: Path) -> None:
    work = _traffic(idle.fabric, steps=STEPS, frames=FRAMES, frame_ns=FRAME_NS)
    with PacketCapture(idle, range(4), tmp_path) as capture:
        execute(*work, idle, iterations=1, dilation=_UNDILATED)
    workload = load_workload([capture.paths[1]])
    assert workload.world >= 2


def test_nothing_sent_gives_an_empty_file(idle: EmulatedFabric, tmp_path: Path) -> None:
    with PacketCapture(idle, [1], tmp_path) as capture:
        pass
    with RawPcapReader(str(capture.paths[0])) as reader:
        assert list(reader) == []
    assert len(capture.paths[0].read_bytes()) == 24


def test_a_place_that_cannot_be_written_is_told(idle: EmulatedFabric, tmp_path: Path) -> None:
    (tmp_path / "h1.pcap").mkdir()
    with pytest.raises(UsageError) as refused, PacketCapture(idle, [0, 1], tmp_path):
        pass
    assert str(refused.value) == (
        f"{tmp_path}/h1.pcap: the packets cannot be written, because is a directory: "
        "make room or choose another directory with -o"
    )


def test_a_full_disk_is_told_when_the_execution_is_over(
    idle: EmulatedFabric, tmp_path: Path
) -> None:
    (tmp_path / "h0.pcap").symlink_to("/dev/full")
    work = _traffic(idle.fabric, steps=STEPS, frames=FRAMES, frame_ns=FRAME_NS)
    with (
        pytest.raises(UsageError, match="no space left on device"),
        PacketCapture(idle, [0], tmp_path),
    ):
        execute(*work, idle, iterations=1, dilation=_UNDILATED)
