"""Traffic without operations: packet captures and NIC marks."""

from __future__ import annotations

import ipaddress
import struct
from typing import TYPE_CHECKING

import pytest
from demand_maker import (
    ACK,
    FRAMES,
    SEND_FIRST,
    SEND_LAST,
    SEND_MIDDLE,
    SEND_ONLY,
    export,
    frame,
    mark,
    pcap,
    pcapng,
)  # fmt: skip

from scheduler.model.workload import Collective, Workload
from testbed.emulator.addresses import PortLink
from testbed.emulator.frames import Frame, data_bytes, opcode, pack
from testbed.traces import load_workload
from topologies.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path


def matrix(workload: Workload) -> list[tuple[int | None, int | None, int | None]]:
    return [
        (op.root, op.peer, op.ranks[op.root].in_bytes)
        for op in workload.operations
        if isinstance(op, Collective) and op.root is not None
    ]


@pytest.mark.parametrize("write", [pcap, pcapng])
def test_messages_of_a_packet_capture(tmp_path: Path, write: object) -> None:
    assert callable(write)
    workload = load_workload(write(tmp_path / "x.bin", FRAMES))
    assert sorted(matrix(workload)) == [(0, 1, 2034), (1, 0, 5), (2, 1, 519)]
    assert workload.placement == {0: "10.0.0.9", 1: "10.0.0.10", 2: "10.0.0.11"}
    counts = {loss.what: loss.count for loss in workload.losses}
    assert counts["messages that the capture cut off at one end"] == 2
    assert any(what.startswith("traffic without operations") for what in counts)


def ours(src: int, dst: int, plane: int, what: Frame) -> bytes:
    """A frame as the emulated fabric carries it."""
    payload = pack(what, data_bytes(what.length_bytes, 4.0))
    ends = [PortLink(plane=plane, port=port, node=port, position=plane) for port in (src, dst)]
    udp = struct.pack("!HHHH", 4791, 4791, 8 + len(payload), 0) + payload
    addresses = b"".join(ipaddress.ip_address(end.ip).packed for end in ends)
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0) + addresses
    macs = b"".join(bytes.fromhex(end.mac.replace(":", "")) for end in reversed(ends))
    return macs + b"\x08\x00" + ip + udp


def test_a_capture_on_the_emulated_fabric_gives_what_was_replayed(tmp_path: Path) -> None:
    sent = {(0, 1, 7): 1000, (0, 2, 8): 64, (2, 1, 9): 300}  # (node, node, message): bytes
    frames = []
    serial = 0
    for iteration in (0, 1):
        for (src, dst, message), size in sent.items():
            for offset in range(0, size, 128):
                length = min(128, size - offset)
                serial += 1
                what = Frame(
                    opcode=opcode(offset, length, size), destination_qp=2 + src, psn=serial,
                    iteration=iteration, message=message, offset_bytes=offset, length_bytes=length,
                    serial=serial,
                )  # fmt: skip
                frames += [ours(src, dst, message % 2, what)] * (1 + (serial == 5))  # once again
    whole = pcap(tmp_path / "x.pcap", frames)
    part = pcap(tmp_path / "y.pcap", frames[3:-2])  # the other end's, begun late and ended early
    for given in ([whole], [whole, part], [part, whole]):
        workload = load_workload(given)
        assert workload.iterations == (0, 1)
        for iteration in (0, 1):
            found = sorted(
                (op.root, op.peer, op.tag, op.ranks[op.root].in_bytes)
                for op in workload.operations
                if isinstance(op, Collective) and op.root is not None and op.iter == iteration
            )
            assert found == [(*ends, size) for ends, size in sorted(sent.items())]


def test_captures_of_both_ends_count_a_message_once(tmp_path: Path) -> None:
    """Three hosts: 0 and 1 saw what they exchanged, 1 and 2 too; each numbers from its lowest."""
    between = {
        (0, 1): [frame(0, 1, SEND_FIRST, 7, 1000), frame(0, 1, SEND_LAST, 8, 500)],
        (1, 0): [frame(1, 0, SEND_ONLY, 3, 5), frame(1, 0, SEND_ONLY, 4, 5)],
        (2, 1): [frame(2, 1, SEND_ONLY, 1, 64)],
    }
    paths = []
    for host in range(3):
        frames = [f for ends, listed in between.items() if host in ends for f in listed]
        paths.append(pcap(tmp_path / f"h{host}.pcap", frames))
    for given in (paths, paths[::-1], paths[1:]):  # the middle one saw everything
        workload = load_workload(given)
        assert sorted(matrix(workload)) == [(0, 1, 1500), (1, 0, 5), (1, 0, 5), (2, 1, 64)]
        assert workload.placement == {0: "10.0.0.9", 1: "10.0.0.10", 2: "10.0.0.11"}
    apart = load_workload([paths[0], paths[2]])
    assert sorted(matrix(apart)) == [(0, 1, 1500), (1, 0, 5), (1, 0, 5), (2, 1, 64)]
    counts = {loss.what: loss.count for loss in load_workload(paths).losses}
    assert counts["messages that several captures saw: counted once"] == 2 * 4
    assert not any("several captures" in loss.what for loss in apart.losses)


def test_sequence_numbers_that_come_again_are_other_messages(tmp_path: Path) -> None:
    """A queue pair reset in between: both captures saw the same message twice."""
    twice = [frame(0, 1, SEND_ONLY, 9, 64), frame(0, 1, SEND_ONLY, 2**23 + 9, 8)]
    twice += [frame(0, 1, SEND_ONLY, 2**24 - 1, 8), frame(0, 1, SEND_ONLY, 9, 64)]
    paths = [pcap(tmp_path / f"{n}.pcap", twice) for n in (0, 1)]
    wanted = [(0, 1, 8), (0, 1, 8), (0, 1, 64), (0, 1, 64)]
    assert sorted(matrix(load_workload(paths))) == sorted(matrix(load_workload(paths[0]))) == wanted


def test_sequence_numbers_wrap(tmp_path: Path) -> None:
    frames = [
        frame(0, 1, SEND_FIRST, 2**24 - 1, 64), frame(0, 1, SEND_MIDDLE, 0, 64),
        frame(0, 1, SEND_LAST, 1, 64),
    ]  # fmt: skip
    assert matrix(load_workload(pcap(tmp_path / "x.pcap", frames))) == [(0, 1, 192)]


def test_captures_without_rocev2_are_refused(tmp_path: Path) -> None:
    path = pcap(tmp_path / "x.pcap", [b"\x00" * 60, frame(0, 1, ACK, 0, 0)])
    with pytest.raises(InputError) as caught:
        load_workload(path)
    assert str(caught.value) == (
        f"{path}: no RoCEv2 data is in the capture, because no packet to UDP port 4791 carries "
        "any: capture with a filter of udp port 4791 and a snapshot length of 128 or more"
    )
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(InputError, match="the packet capture is damaged"):
        load_workload(path)


def test_sends_marked_in_an_nsys_export(tmp_path: Path) -> None:
    one = export(
        tmp_path / "one.sqlite", [mark(10, 0, 1), "other", mark(20, 0, 1, 1), "ncclNetIsend(): ?"]
    )
    two = export(tmp_path / "two.sqlite", [mark(30, 1, 0)])
    workload = load_workload([one, two])
    assert sorted(matrix(workload)) == [(0, 1, 10), (0, 1, 20), (1, 0, 30)]
    assert {loss.what for loss in workload.losses} >= {"marks that cannot be read"}
    bare = export(tmp_path / "bare.sqlite", ["nothing"])
    with pytest.raises(InputError, match="no network send is marked"):
        load_workload(bare)
    bare.write_bytes(bare.read_bytes()[:3000])
    with pytest.raises(InputError, match="this is no nsys export"):
        load_workload(bare)
