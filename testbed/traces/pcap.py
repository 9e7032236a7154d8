"""Packet captures of RoCEv2 (pcap or pcapng): messages by their first and last packets.

UDP port 4791, then a 12-byte base transport header: opcode, pad, queue pair, sequence number. A
payload is what UDP holds less headers, pad and checksum. A message runs from a First to a Last
packet, or is an Only; packets sent again are counted once. A rank is an IP address, in order.

Frames of our own emulated fabric are known by their MAC addresses (02:fb:00, plane, port). Their
payload begins with iteration, message, offset and length of the virtual bytes they stand for: those
are counted, and a rank is the node of a fabric with one port per node and plane.

Captures of several hosts may be given together: what both ends of a link saw counts once.
"""

from __future__ import annotations

import io
import ipaddress
import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from testbed.traces.demand import Message, address_order, recordings_of
from topologies.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testbed.traces.capture import Recording
    from testbed.traces.sources import Blob

__all__ = ["Pcap"]

_MAGICS: Final = (
    b"\xd4\xc3\xb2\xa1", b"\xa1\xb2\xc3\xd4", b"\x4d\x3c\xb2\xa1", b"\xa1\xb2\x3c\x4d",
    b"\x0a\x0d\x0d\x0a",
)  # fmt: skip
_ROCE_PORT: Final = 4791
_UDP: Final = 17
_BTH: Final = struct.Struct("!BBHII")  # opcode, flags with pad, partition, queue pair, sequence
_UDP_HEADER: Final = 8
_CHECKSUM: Final = 4
_RETH, _IMMEDIATE, _AETH = 16, 4, 4
_FIRST: Final = frozenset({0, 6, 13})
_MIDDLE: Final = frozenset({1, 7, 14})
_LAST: Final = frozenset({2, 3, 8, 9, 15})
_EXTENSION: Final = {  # bytes between the base header and the payload
    3: _IMMEDIATE, 5: _IMMEDIATE, 6: _RETH, 9: _IMMEDIATE, 10: _RETH, 11: _RETH + _IMMEDIATE,
    13: _AETH, 15: _AETH, 16: _AETH,
}  # fmt: skip
_CARRYING: Final = frozenset({*range(12), *range(13, 17)})
_RELIABLE: Final = 0  # the upper three bits of the opcode: reliable connection
_ETHERNET, _RAW_IP, _LINUX_SLL = 1, 101, 113
_VLAN: Final = frozenset({0x8100, 0x88A8})
_SEQUENCES: Final = 2**24
_OUR_MAC: Final = b"\x02\xfb\x00"
_VIRTUAL: Final = struct.Struct("!IIQQ")


class _Packet(NamedTuple):
    """A RoCEv2 packet that carries data."""

    time_ns: int
    src: str
    dst: str
    opcode: int
    queue: int
    sequence: int
    size_bytes: int
    virtual: _Virtual | None


class _Virtual(NamedTuple):
    """What a frame of the emulated fabric stands for."""

    src: int
    dst: int
    iteration: int
    message: int
    offset: int
    length: int


class Pcap:
    """The importer of packet captures: one file is all that was seen at one place."""

    name: Final = "pcap"

    def sniff(self, head: bytes) -> bool:
        """Tell by its beginning whether a file is pcap or pcapng."""
        return head.startswith(_MAGICS)

    def read(self, blob: Blob) -> list[Recording]:
        """Read the messages; `InputError` when the capture is damaged or has no RoCEv2."""
        packets = sorted(_packets(blob.load(), blob.path))
        if not packets:
            raise InputError(
                "no RoCEv2 data is in the capture",
                blob.path,
                f"no packet to UDP port {_ROCE_PORT} carries any",
                "capture with a filter of udp port 4791 and a snapshot length of 128 or more",
            )
        if all(packet.virtual is not None for packet in packets):
            return recordings_of(_virtual_messages(packets), blob.path, self.name)
        addresses = sorted({a for p in packets for a in (p.src, p.dst)}, key=address_order)
        rank = {address: place for place, address in enumerate(addresses)}
        messages, partial = _messages(packets, rank)
        recordings = recordings_of(
            messages, blob.path, self.name, {place: a for a, place in rank.items()}
        )
        if recordings:
            what = "messages that the capture cut off at one end"
            recordings[0].losses.add(what, blob.path, partial)
        return recordings


def _packets(data: bytes, path: str) -> Iterator[_Packet]:
    from scapy.error import Scapy_Exception
    from scapy.utils import RawPcapReader

    try:
        with RawPcapReader(io.BytesIO(data)) as reader:
            for frame, meta in reader:
                if (
                    packet := _decode(frame, _time_ns(meta, reader), _link(meta, reader))
                ) is not None:
                    yield packet
    except (Scapy_Exception, EOFError, struct.error) as error:
        text = str(error) or "it ends early"
        raise InputError(
            "the packet capture is damaged", path, text[:1].lower() + text[1:], "capture again"
        ) from error


def _time_ns(meta: Any, reader: Any) -> int:  # noqa: ANN401 (scapy's)
    """Return a packet's time: seconds and fractions (pcap), or two halves of a count (pcapng)."""
    if hasattr(meta, "tshigh"):
        ticks = (int(meta.tshigh or 0) << 32) | int(meta.tslow or 0)
        return ticks * 1_000_000_000 // int(meta.tsresol or 1_000_000)
    fraction = int(meta.usec) if getattr(reader, "nano", False) else int(meta.usec) * 1000
    return int(meta.sec) * 1_000_000_000 + fraction


def _link(meta: Any, reader: Any) -> int:  # noqa: ANN401 (scapy's)
    found = getattr(meta, "linktype", None)
    return int(found if found is not None else getattr(reader, "linktype", _ETHERNET))


def _decode(frame: bytes, time_ns: int, link: int) -> _Packet | None:
    """Return the RoCEv2 packet in a frame, if it is one that carries data."""
    at, kind = _network(frame, link)
    found = _addresses(frame, at, kind)
    if found is None:
        return None
    src, dst, at = found
    if len(frame) < at + _UDP_HEADER + _BTH.size:
        return None
    _, port, length, _ = struct.unpack_from("!HHHH", frame, at)
    if port != _ROCE_PORT:
        return None
    opcode, flags, _, queue, sequence = _BTH.unpack_from(frame, at + _UDP_HEADER)
    operation = opcode & 0x1F
    if opcode >> 5 != _RELIABLE or operation not in _CARRYING:
        return None
    pad = flags >> 4 & 3
    size = length - _UDP_HEADER - _BTH.size - _EXTENSION.get(operation, 0) - pad - _CHECKSUM
    if size < 0:
        return None
    virtual = _virtual(frame, at + _UDP_HEADER + _BTH.size)
    return _Packet(
        time_ns, src, dst, operation, queue & 0xFFFFFF, sequence & 0xFFFFFF, size, virtual
    )


def _virtual(frame: bytes, at: int) -> _Virtual | None:
    """Return what a frame stands for if both its MAC addresses are ours."""
    ours = frame.startswith(_OUR_MAC) and frame[6:9] == _OUR_MAC
    if not ours or len(frame) < at + _VIRTUAL.size:
        return None
    dst, src = (int.from_bytes(frame[i : i + 2], "big") for i in (4, 10))
    return _Virtual(src, dst, *_VIRTUAL.unpack_from(frame, at))


def _virtual_messages(packets: list[_Packet]) -> list[Message]:
    """Add up each message's virtual bytes, every part once; it is dated by its last part."""
    parts: dict[tuple[int, int, int, int], set[tuple[int, int]]] = {}
    dated: dict[tuple[int, int, int, int], int] = {}
    for packet in packets:
        assert packet.virtual is not None
        src, dst, iteration, message, offset, length = packet.virtual
        key = src, dst, iteration, message
        parts.setdefault(key, set()).add((offset, length))
        dated[key] = packet.time_ns
    return [
        Message(dated[key], key[0], key[1], sum(n for _, n in seen), key[3], key[2], sequence=0)
        for key, seen in parts.items()
    ]


def _network(frame: bytes, link: int) -> tuple[int, int]:
    """Return where the network header begins and its EtherType (0: none)."""
    if link == _RAW_IP:
        return 0, 0x0800 if frame[:1] and frame[0] >> 4 == 4 else 0x86DD  # noqa: PLR2004 (version)
    at = 14 if link == _LINUX_SLL else 12
    while len(frame) >= at + 2:
        kind = int.from_bytes(frame[at : at + 2], "big")
        if kind not in _VLAN:
            return at + 2, kind
        at += 4
    return at, 0


def _addresses(frame: bytes, at: int, kind: int) -> tuple[str, str, int] | None:
    """Return source, destination and where UDP begins; None for anything but UDP over IP."""
    if kind == 0x0800 and len(frame) >= at + 20 and frame[at + 9] == _UDP:  # noqa: PLR2004 (IPv4)
        src, dst = frame[at + 12 : at + 16], frame[at + 16 : at + 20]
        after = at + 4 * (frame[at] & 0x0F)
    elif kind == 0x86DD and len(frame) >= at + 40 and frame[at + 6] == _UDP:  # noqa: PLR2004 (IPv6)
        src, dst = frame[at + 8 : at + 24], frame[at + 24 : at + 40]
        after = at + 40
    else:
        return None
    return str(ipaddress.ip_address(src)), str(ipaddress.ip_address(dst)), after


def _messages(packets: list[_Packet], rank: dict[str, int]) -> tuple[list[Message], int]:
    """Assemble messages per queue pair; return them and how many lack their first or last."""
    messages: list[Message] = []
    open_bytes: dict[tuple[str, str, int], int] = {}
    expected: dict[tuple[str, str, int], int] = {}
    partial = 0
    for packet in packets:
        queue = packet.src, packet.dst, packet.queue
        ahead = (packet.sequence - expected.get(queue, packet.sequence)) % _SEQUENCES
        if ahead > _SEQUENCES // 2:
            continue  # sent again: its bytes were counted
        expected[queue] = (packet.sequence + 1) % _SEQUENCES
        size = packet.size_bytes
        if packet.opcode in _FIRST:
            partial += queue in open_bytes
            open_bytes[queue] = size
            continue
        if packet.opcode in _MIDDLE or packet.opcode in _LAST:
            if queue not in open_bytes:
                partial += packet.opcode in _LAST
                continue
            open_bytes[queue] += size
            if packet.opcode in _MIDDLE:
                continue
            size = open_bytes.pop(queue)
        if size:
            ends = rank[packet.src], rank[packet.dst]
            last = packet.sequence
            messages.append(Message(packet.time_ns, *ends, size, packet.queue, sequence=last))
    return messages, partial + len(open_bytes)
