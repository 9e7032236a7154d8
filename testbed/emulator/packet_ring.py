"""One interface's frames as the kernel leaves them in a ring of memory (AF_PACKET, TPACKET_V3).

The kernel stamps each frame as it passes and copies its beginning into a block; a block is handed
over when it is full or two turns of a 20 ms timer old. Nothing is asked per frame, so a reader that
is late loses nothing until the whole ring is full; what did not fit is counted.
"""

from __future__ import annotations

import ctypes
import mmap
import socket
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from topologies.errors import MachineError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["BLOCK_BYTES", "RETIRE_NS", "SNAPSHOT_BYTES", "CapturedFrame", "PacketRing"]

SNAPSHOT_BYTES: Final = 128
"""What is kept of a frame: all headers and the 32 bytes that say what it stands for."""
BLOCK_BYTES: Final = 1 << 18
RETIRE_NS: Final = 20_000_000
"""A frame is handed over after at most twice this, and what the timer is late by."""

_ETH_P_ALL: Final = 3
_SOL_PACKET: Final = 263
_PACKET_RX_RING, _PACKET_STATISTICS, _PACKET_VERSION = 5, 6, 10
_TPACKET_V3: Final = 2
_SO_ATTACH_FILTER: Final = 26
_FRAME_BYTES: Final = 2048  # the kernel wants a number; version 3 packs frames closely
_USER: Final = 1  # TP_STATUS_USER: the block is ours
_OUTGOING: Final = 4  # PACKET_OUTGOING

_REQUEST: Final = struct.Struct("=7I")
_BLOCK: Final = struct.Struct("=8xIII")  # status, frames, where the first one is
_FRAME: Final = struct.Struct("=5I4xH")  # next, seconds, ns, bytes kept, bytes, link header
_TYPE_AT: Final = 48 + 10  # sockaddr_ll follows the frame's header; sll_pkttype in it
_STATISTICS: Final = struct.Struct("=3I")
_INSTRUCTION: Final = struct.Struct("=HBBI")

# IPv4, UDP, to port 4791: keep the beginning; anything else is no frame of ours
_FILTER: Final = (
    (0x28, 0, 0, 12),
    (0x15, 0, 5, 0x0800),
    (0x30, 0, 0, 23),
    (0x15, 0, 3, 17),
    (0x28, 0, 0, 36),
    (0x15, 0, 1, 4791),
    (0x06, 0, 0, SNAPSHOT_BYTES),
    (0x06, 0, 0, 0),
)


class CapturedFrame(NamedTuple):
    """A frame's time on CLOCK_REALTIME, whole length, direction and beginning."""

    time_ns: int
    size_bytes: int
    sent: bool
    head: bytes


class PacketRing:
    """The frames that pass `interface`, both ways, from construction on.

    Made by a thread inside the interface's namespace, read from anywhere. Raises `MachineError`
    where the kernel refuses.
    """

    def __init__(self, interface: str, blocks: int) -> None:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        try:
            self._memory = self._prepare(interface, blocks)
        except OSError as refused:
            self._socket.close()
            why = f"the kernel says {refused.strerror!r}"
            fix = "use a kernel with AF_PACKET (CONFIG_PACKET), or do not capture"
            raise MachineError("no packets can be captured", interface, why, fix) from refused
        self._blocks = blocks
        self._next = 0
        self._dropped = 0

    def _prepare(self, interface: str, blocks: int) -> mmap.mmap:
        code = b"".join(_INSTRUCTION.pack(*instruction) for instruction in _FILTER)
        held = ctypes.create_string_buffer(code)
        program = struct.pack("@HP", len(_FILTER), ctypes.addressof(held))
        size = BLOCK_BYTES * blocks
        request = _REQUEST.pack(
            BLOCK_BYTES, blocks, _FRAME_BYTES, size // _FRAME_BYTES, RETIRE_NS // 10**6, 0, 0
        )
        self._socket.setsockopt(_SOL_PACKET, _PACKET_VERSION, _TPACKET_V3)
        self._socket.setsockopt(_SOL_PACKET, _PACKET_RX_RING, request)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
        memory = mmap.mmap(self._socket.fileno(), size)
        self._socket.bind((interface, _ETH_P_ALL))  # the filter is in place: nothing else enters
        return memory

    def read(self) -> Iterator[CapturedFrame]:
        """Yield what has been handed over, in order, and give its blocks back."""
        memory = self._memory
        for _ in range(self._blocks):
            base = self._next * BLOCK_BYTES
            status, frames, first = _BLOCK.unpack_from(memory, base)
            if not status & _USER:
                return
            at = base + first
            for _ in range(frames):
                step, seconds, ns, kept, size, link = _FRAME.unpack_from(memory, at)
                begin = at + link
                yield CapturedFrame(
                    seconds * 1_000_000_000 + ns,
                    size,
                    memory[at + _TYPE_AT] == _OUTGOING,
                    memory[begin : begin + kept],
                )
                at += step
            struct.pack_into("=I", memory, base + 8, 0)
            self._next = (self._next + 1) % self._blocks

    def dropped(self) -> int:
        """Return how many frames found the ring full so far."""
        state = self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, _STATISTICS.size)
        self._dropped += _STATISTICS.unpack(state)[1]  # the kernel starts again at 0
        return self._dropped

    def close(self) -> None:
        """Stop capturing."""
        self._memory.close()
        self._socket.close()
