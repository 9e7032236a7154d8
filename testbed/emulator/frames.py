"""The frames on the emulated fabric: RoCEv2 sends whose payload says which virtual bytes they are.

A UDP datagram to port 4791 holds a base transport header (BTH), our 32-byte message header, filler
up to the frame's size, and an invariant CRC. One frame stands for `length` virtual bytes of a
message, from `offset`; the data it really carries is that divided by the run's bytes per wall byte,
at least the message header. The CRC field is there but 0: what it would protect is filler.

Layout, all big-endian:

    0   BTH: opcode u8 | flags u8 | partition key u16 | reserved u8 | destination QP u24
             | reserved u8 | PSN u24
    12  iteration u32 | message u32 | offset u64 | length u64 | serial u64
    44  filler, to a multiple of 4 bytes
    -4  invariant CRC u32

`message` is the base task id, which plans list. The destination QP is the sending port's number
plus `FIRST_QP`, because every receiving port keeps one queue pair for each possible sender; PSNs
count along it. `serial` is unique to a frame within a run; sent again, a frame keeps its serial and
takes a new PSN.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from topologies.errors import InputError

__all__ = [
    "BTH_BYTES",
    "CRC_BYTES",
    "FIRST_QP",
    "HEADER_BYTES",
    "LEAST_DATA_BYTES",
    "MOST_DATA_BYTES",
    "PSN_MODULUS",
    "SEND_FIRST",
    "SEND_LAST",
    "SEND_MIDDLE",
    "SEND_ONLY",
    "Frame",
    "data_bytes",
    "opcode",
    "pack",
    "unpack",
]

BTH_BYTES: Final = 12
CRC_BYTES: Final = 4
HEADER_BYTES: Final = 32
LEAST_DATA_BYTES: Final = HEADER_BYTES
MOST_DATA_BYTES: Final = 9140
"""What fits a 9216-byte MTU beside IPv4, UDP, BTH and CRC, rounded down to a multiple of 4."""
FIRST_QP: Final = 2
"""Queue pairs 0 and 1 are reserved by InfiniBand."""
PSN_MODULUS: Final = 1 << 24

SEND_FIRST: Final = 0x00
SEND_MIDDLE: Final = 0x01
SEND_LAST: Final = 0x02
SEND_ONLY: Final = 0x04

_PARTITION_KEY: Final = 0xFFFF
_LAYOUT: Final = struct.Struct(">BBHIIIIQQQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What the headers of one frame say."""

    opcode: int
    destination_qp: int
    psn: int
    iteration: int
    message: int
    offset_bytes: int
    length_bytes: int
    serial: int


def opcode(offset_bytes: int, length_bytes: int, message_bytes: int) -> int:
    """Return the send opcode for virtual bytes [offset, offset + length) of a message.

    >>> opcode(0, 100, 100) == SEND_ONLY, opcode(60, 40, 100) == SEND_LAST
    (True, True)
    """
    last = offset_bytes + length_bytes == message_bytes
    if offset_bytes == 0:
        return SEND_ONLY if last else SEND_FIRST
    return SEND_LAST if last else SEND_MIDDLE


def data_bytes(length_bytes: int, bytes_per_wall_byte: float) -> int:
    """Return how much data a frame of `length_bytes` virtual bytes carries, header included.

    A multiple of 4, so that the BTH needs no padding, and never less than the message header.

    >>> data_bytes(4096, 1.0), data_bytes(1, 1000.0)
    (4096, 32)
    """
    exact = -(-length_bytes // bytes_per_wall_byte)
    return max(LEAST_DATA_BYTES, int(exact + 3) // 4 * 4)


def pack(frame: Frame, size_bytes: int) -> bytes:
    """Build the UDP payload of `frame` with `size_bytes` of data (a multiple of 4, at least 32)."""
    head = _LAYOUT.pack(
        frame.opcode,
        0,
        _PARTITION_KEY,
        frame.destination_qp,
        frame.psn % PSN_MODULUS,
        frame.iteration,
        frame.message,
        frame.offset_bytes,
        frame.length_bytes,
        frame.serial,
    )
    return head + bytes(size_bytes - HEADER_BYTES + CRC_BYTES)


def unpack(datagram: bytes) -> Frame:
    """Read the headers of a UDP payload. Raises `InputError` where it is not one of our frames."""
    least = BTH_BYTES + HEADER_BYTES + CRC_BYTES
    if len(datagram) < least:
        what = f"a datagram of {len(datagram)} bytes is no frame"
        raise InputError(what, "frame", f"the headers take {least} bytes", "check the capture")
    code, flags, key, qp, psn, iteration, message, offset, length, serial = _LAYOUT.unpack_from(
        datagram
    )
    if (
        code not in (SEND_FIRST, SEND_MIDDLE, SEND_LAST, SEND_ONLY)
        or flags
        or key != _PARTITION_KEY
    ):
        what = f"opcode {code:#04x} with partition key {key:#06x} is no frame of ours"
        raise InputError(what, "frame", "we send with opcodes 0, 1, 2 and 4", "check the capture")
    return Frame(
        opcode=code,
        destination_qp=qp,
        psn=psn,
        iteration=iteration,
        message=message,
        offset_bytes=offset,
        length_bytes=length,
        serial=serial,
    )
