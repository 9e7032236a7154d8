"""Did any frame pass a dark or a foreign port? The receivers' stamps, held against the plan.

What was received, where and when comes from packet captures, that is from the kernel; what may be
received from the plan's slots alone, or, for programs that events drive, from the circuits the run
recorded. Neither comes from the crossbar.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from scheduler.model.timeline import NONE
from testbed.emulator.addresses import port_base, port_links
from testbed.emulator.packets import PCAP_HEADER, PCAP_RECORD

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scheduler.model.program import TimedProgram
    from scheduler.model.taskgraph import Int64s
    from scheduler.model.timeline import Circuits
    from topologies.fabric import Fabric

__all__ = [
    "Arrivals",
    "Light",
    "Misplaced",
    "light_of_circuits",
    "light_of_slots",
    "misplaced",
    "read_arrivals",
]

_MAC: Final = slice(6, 12)  # of the sender
_FOREVER: Final = 1 << 62


class Arrivals(NamedTuple):
    """Frames received: stamp (virtual ns from time zero), sending port over all planes, node."""

    time_ns: Int64s
    port: Int64s
    node: Int64s


class Light(NamedTuple):
    """When light went where: output port over all planes, from and until (ns), node it reached."""

    port: Int64s
    up_ns: Int64s
    down_ns: Int64s
    node: Int64s


@dataclass(frozen=True, slots=True, kw_only=True)
class Misplaced:
    """How many of `frames` received had no light, or were not where the light went."""

    frames: int
    dark: int
    foreign: int


def read_arrivals(
    paths: Sequence[Path], nodes: Sequence[int], fabric: Fabric, *, zero_ns: int, factor: float
) -> Arrivals:
    """Read what `nodes` received from their captures; `zero_ns` is time zero on CLOCK_REALTIME."""
    links = port_links(fabric)
    port_of = {bytes.fromhex(link.mac.replace(":", "")): k for k, link in enumerate(links)}
    owner = [link.node for link in links]
    rows: list[tuple[int, int, int]] = []
    for path, node in zip(paths, nodes, strict=True):
        data = path.read_bytes()
        at = PCAP_HEADER.size
        while at + PCAP_RECORD.size <= len(data):
            seconds, ns, kept, _ = PCAP_RECORD.unpack_from(data, at)
            at += PCAP_RECORD.size
            port = port_of.get(data[at + _MAC.start : at + _MAC.stop], NONE)
            at += kept
            if port != NONE and owner[port] != node:
                rows.append((seconds * 1_000_000_000 + ns - zero_ns, port, node))
    table = np.array(rows, np.int64).reshape(len(rows), 3)
    return Arrivals(np.rint(table[:, 0] / factor).astype(np.int64), table[:, 1], table[:, 2])


def light_of_slots(program: TimedProgram, fabric: Fabric, until_ns: int) -> Light:
    """Return where the plan sends light until `until_ns`, from its slots alone."""
    bases, rows = port_base(fabric), []
    for plane, slots in enumerate(program.planes):
        delay_ns = fabric.planes[plane].delay_ns
        begins = [
            (program.phase_ns + cycle * program.period_ns + slot.offset_ns, slot.dst_ports)
            for cycle in range(-1, until_ns // program.period_ns + 2)
            for slot in slots
        ]
        for (begin_ns, peers), (end_ns, _) in itertools.pairwise(begins):
            for src, dst in enumerate(peers):
                if dst >= 0 and end_ns > 0:
                    node = fabric.node_of(plane, dst)
                    rows.append((bases[plane] + src, begin_ns + delay_ns, end_ns, node))
    return _light(rows)


def light_of_circuits(circuits: Circuits, fabric: Fabric) -> Light:
    """Return where the circuits that a run recorded sent light, both ways on duplex planes."""
    bases, rows = port_base(fabric), []
    columns = (circuits.plane, circuits.src_port, circuits.dst_port, circuits.up_ns)
    down = np.where(circuits.down_ns == NONE, _FOREVER, circuits.down_ns).tolist()
    listed = zip(*(column.tolist() for column in columns), down, strict=True)
    for plane, src, dst, up_ns, down_ns in listed:
        ways = [(src, dst), (dst, src)] if fabric.planes[plane].duplex else [(src, dst)]
        for near, far in ways:
            rows.append((bases[plane] + near, up_ns, down_ns, fabric.node_of(plane, far)))
    return _light(rows)


def _light(rows: list[tuple[int, int, int, int]]) -> Light:
    table = np.array(sorted(rows), np.int64).reshape(len(rows), 4)
    return Light(*table.T)


def misplaced(arrivals: Arrivals, light: Light, *, slack_ns: int) -> Misplaced:
    """Count the frames that arrived `slack_ns` or more before or after the light they need.

    Frames within `slack_ns` (virtual) of a change may belong to what stood on either side of it.
    """
    dark = foreign = 0
    for port in np.unique(arrivals.port).tolist():
        mine, own = arrivals.port == port, light.port == port
        time_ns, node = arrivals.time_ns[mine], arrivals.node[mine]
        up, down, lit = light.up_ns[own], light.down_ns[own], light.node[own]
        latest = np.searchsorted(up, time_ns + slack_ns, side="right") - 1
        seen = np.zeros(len(time_ns), bool)
        right = np.zeros(len(time_ns), bool)
        for place in (latest, latest - 1):
            there = place >= 0
            row = np.where(there, place, 0)
            if len(up):
                there &= time_ns - slack_ns < down[row]
                right |= there & (lit[row] == node)
            seen |= there
        dark += int(np.count_nonzero(~seen))
        foreign += int(np.count_nonzero(seen & ~right))
    return Misplaced(frames=len(arrivals.port), dark=dark, foreign=foreign)
