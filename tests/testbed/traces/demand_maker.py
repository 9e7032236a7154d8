"""Captures of traffic alone: RoCEv2 packets in pcap and pcapng, and nsys exports."""

from __future__ import annotations

import sqlite3
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SEND_FIRST, SEND_MIDDLE, SEND_LAST, SEND_ONLY = 0, 1, 2, 4
WRITE_FIRST, WRITE_LAST_IMM, ACK = 6, 9, 17
EXTENSIONS = {WRITE_FIRST: 16, WRITE_LAST_IMM: 4, ACK: 4}


def frame(src: int, dst: int, opcode: int, psn: int, size: int, *, vlan: bool = False) -> bytes:
    """An Ethernet frame with `size` bytes of data padded to 4."""
    pad = -size % 4
    bth = struct.pack("!BBHII", opcode, pad << 4, 0xFFFF, 2 + src, psn)
    data = bth + bytes(EXTENSIONS.get(opcode, 0)) + bytes(size + pad) + bytes(4)
    udp = struct.pack("!HHHH", 0xC000, 4791, 8 + len(data), 0) + data
    addresses = bytes([10, 0, 0, 9 + src, 10, 0, 0, 9 + dst])
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0) + addresses
    tag = bytes.fromhex("81000005") if vlan else b""
    return bytes(12) + tag + b"\x08\x00" + ip + udp


def pcap(path: Path, frames: Iterable[bytes]) -> Path:
    head = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)
    records = [
        struct.pack("<IIII", 5, n, len(data), len(data)) + data for n, data in enumerate(frames)
    ]
    path.write_bytes(head + b"".join(records))
    return path


def pcapng(path: Path, frames: Iterable[bytes]) -> Path:
    def block(kind: int, body: bytes) -> bytes:
        body += bytes(-len(body) % 4)
        size = struct.pack("<I", 12 + len(body))
        return struct.pack("<I", kind) + size + body + size

    blocks = [
        block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1)),
        block(1, struct.pack("<HHI", 1, 0, 65535)),
    ]
    for n, data in enumerate(frames):
        blocks.append(block(6, struct.pack("<IIIII", 0, 0, n, len(data), len(data)) + data))
    path.write_bytes(b"".join(blocks))
    return path


FRAMES = [
    frame(0, 1, SEND_FIRST, 7, 1000),
    frame(0, 1, SEND_MIDDLE, 8, 1000),
    frame(1, 0, SEND_ONLY, 3, 5),
    frame(0, 1, SEND_MIDDLE, 8, 1000),  # sent again
    frame(0, 1, SEND_LAST, 9, 34),
    frame(1, 0, ACK, 9, 0),
    frame(2, 1, WRITE_FIRST, 0, 512, vlan=True),
    frame(2, 1, WRITE_LAST_IMM, 1, 7),
    frame(0, 1, SEND_LAST, 20, 8),  # its first packet was before the capture
    frame(0, 2, SEND_FIRST, 0, 8),  # its last one after it
    b"\x00" * 60,
]


def export(path: Path, marks: Iterable[str]) -> Path:
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE NVTX_EVENTS (start INTEGER, text TEXT)")
    database.executemany("INSERT INTO NVTX_EVENTS VALUES (?, ?)", enumerate(marks))
    database.commit()
    database.close()
    return path


def mark(size: int, src: int, dst: int, sequence: int = 0) -> str:
    return (
        f"ncclNetIsend(): Data_Size: {size}, Sender_Rank: {src}, Receiver_Rank: {dst}, "
        f"Channel_ID: 1, Sequence: {sequence}"
    )
