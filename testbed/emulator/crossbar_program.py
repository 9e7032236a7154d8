"""The crossbar's eBPF program: one per OCS port, at tc ingress, about a hundred instructions.

Per frame: find what this port's row says now; check that the output it names belongs to this port
now; count; hand the frame to the interface at the far end of that output (bpf_redirect_peer,
kernel >= 5.10). No loops, no map lookups by key: every row is at a constant address.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from testbed.emulator.assembler import Assembler

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["DEPTH", "HIGHEST_IFINDEX", "ROW_BYTES", "MapPlaces", "crossbar_program"]

DEPTH: Final = 8
"""Entries {t_ns, value} in a row."""
ROW_BYTES: Final = DEPTH * 16
HIGHEST_IFINDEX: Final = 4095
"""Interface numbers above it are not used; a fresh namespace counts from 1."""
COUNTER_BYTES: Final = 64

_R0, _R1, _R2, _R3, _R4, _R5, _CONTEXT, _OUT, _NOW, _COUNTERS = range(10)
_KTIME_GET_NS, _SKB_CHANGE_TYPE, _REDIRECT_PEER = 5, 32, 155
_SKB_LEN, _SKB_PKT_TYPE = 0, 4
_PACKET_HOST: Final = 0
_TC_ACT_SHOT: Final = 2
_NOTHING: Final = -1


class MapPlaces(NamedTuple):
    """File descriptors of the maps and what a port's program finds where in them."""

    rows_fd: int
    counters_fd: int
    port_of_fd: int
    switch: int


def _newest(program: Assembler, row: int, value: int, labels: Iterator[int]) -> None:
    """Set `value` to that of the newest entry whose time has come, or to `_NOTHING`."""
    program.move(_R2, 0)
    program.move(value, _NOTHING)
    for entry in range(DEPTH):
        following = f"entry {next(labels)}"
        program.load(_R1, row, 16 * entry)
        program.jump_if_register(_R1, ">", _NOW, following)
        program.jump_if_register(_R1, "<", _R2, following)
        program.copy(_R2, _R1)
        program.load(value, row, 16 * entry + 8)
        program.label(following)


def _count(program: Assembler) -> None:
    program.move(_R5, 1)
    program.load(_R4, _CONTEXT, _SKB_LEN, size=4)
    program.atomic_add(_COUNTERS, 0, _R5)
    program.atomic_add(_COUNTERS, 8, _R4)


def crossbar_program(places: MapPlaces, port: int, ports: int) -> bytes:
    """Assemble the program of input `port`, one of `ports` over all switches.

    The rows are `ports` of inputs, then `ports` of outputs. The counters of a port are four pairs
    (frames, bytes): forwarded, dark, unconnected, conflict.
    """
    program = Assembler()
    labels = iter(range(2 * DEPTH))
    program.copy(_CONTEXT, _R1)
    program.call(_KTIME_GET_NS)
    program.copy(_NOW, _R0)
    program.load_map_value(_COUNTERS, places.counters_fd, port * COUNTER_BYTES)

    program.load_map_value(_R4, places.rows_fd, port * ROW_BYTES)
    _newest(program, _R4, _OUT, labels)
    program.jump_if(_OUT, "==", _NOTHING, "unconnected")
    program.jump_if(_OUT, "==", 0, "dark")

    program.jump_if(_OUT, ">", HIGHEST_IFINDEX, "conflict")
    program.copy(_R1, _OUT)
    program.shift_left(_R1, 2)
    port_of = places.switch * 4 * (HIGHEST_IFINDEX + 1)
    program.load_map_value(_R5, places.port_of_fd, port_of)
    program.add(_R5, _R1)
    program.load(_R5, _R5, 0, size=4)
    program.jump_if(_R5, ">=", ports, "conflict")
    program.multiply(_R5, ROW_BYTES)
    program.load_map_value(_R4, places.rows_fd, ports * ROW_BYTES)
    program.add(_R4, _R5)
    _newest(program, _R4, _R3, labels)
    program.jump_if(_R3, "==", 0, "dark")
    program.jump_if(_R3, "!=", port + 1, "conflict")

    _count(program)
    program.load(_R1, _CONTEXT, _SKB_PKT_TYPE, size=4)
    program.jump_if(_R1, "==", _PACKET_HOST, "redirect")
    program.copy(_R1, _CONTEXT)
    program.move(_R2, _PACKET_HOST)
    program.call(_SKB_CHANGE_TYPE)  # marked as somebody else's: not by the switch's address
    program.label("redirect")
    program.copy(_R1, _OUT)
    program.move(_R2, 0)
    program.call(_REDIRECT_PEER)
    program.exit()

    for cause in ("conflict", "unconnected", "dark"):  # each falls through to the next pair
        program.label(cause)
        program.add_immediate(_COUNTERS, 16)
    _count(program)
    program.move(_R0, _TC_ACT_SHOT)
    program.exit()
    return program.assemble()
