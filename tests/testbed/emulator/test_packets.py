"""Packet files and what a view or a verdict makes of tables: on made-up input, no root needed."""

from __future__ import annotations

import dataclasses
import io
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from scapy.utils import RawPcapReader

from scheduler.model.taskgraph import COMPUTE, MESSAGE
from scheduler.model.timeline import Circuits, Timeline, Transfers
from testbed.emulator import _kernels_engine_columns as e
from testbed.emulator.crossbar import DEPTH, NEVER, CrossbarTables
from testbed.emulator.dilation import Dilation
from testbed.emulator.observe import queued_bytes, standing_circuits
from testbed.emulator.pace import overload
from testbed.emulator.packet_ring import RETIRE_NS, CapturedFrame
from testbed.emulator.packets import CaptureCount, _HostCapture, pcap_header, pcap_record
from topologies import rails

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NOW = 1_796_124_106_705_480_246


def frame(time_ns: int, *, sent: bool = True, head: bytes = b"\x02\xfb\x00" * 10) -> CapturedFrame:
    return CapturedFrame(time_ns, 4154, sent, head)


class Ring:
    """Hands over what it is told, a batch per reading."""

    def __init__(self, *batches: Sequence[CapturedFrame]) -> None:
        self._batches = list(batches)

    def read(self) -> Iterator[CapturedFrame]:
        yield from self._batches.pop(0) if self._batches else ()

    def dropped(self) -> int:
        return 3


def test_a_file_is_a_nanosecond_pcap() -> None:
    data = pcap_header() + pcap_record(frame(NOW)) + pcap_record(frame(NOW + 1, head=b"abcd"))
    reader = RawPcapReader(io.BytesIO(data))
    assert data[:4] == bytes.fromhex("4d3cb2a1")
    assert reader.nano
    (first, meta), (second, later) = list(reader)
    assert (first, second) == (b"\x02\xfb\x00" * 10, b"abcd")
    assert meta.sec * 10**9 + meta.usec == NOW
    assert later.sec * 10**9 + later.usec == NOW + 1
    assert (meta.wirelen, later.caplen) == (4154, 4)


def test_frames_of_several_rings_are_in_order_however_they_come() -> None:
    late = [NOW + k * RETIRE_NS for k in range(6)]
    rings: Any = [
        Ring([frame(late[0]), frame(late[2])], [frame(late[5])]),
        Ring([], [frame(late[1], sent=False), frame(late[3])], [frame(late[4])]),
    ]
    stream = io.BytesIO()
    host = _HostCapture(0, rings, stream)
    for _ in range(3):
        host.collect()
    written = stream.getvalue().count(b"\x02\xfb\x00" * 10)
    assert 0 < written < 6  # the newest may still be overtaken
    host.collect(over=True)
    stream.seek(0)
    times = [meta.sec * 10**9 + meta.usec for _, meta in RawPcapReader(stream)]
    assert times == late
    assert (host.sent, host.received, host.dropped()) == (5, 1, 6)


def test_what_the_engine_counted_and_the_file_lacks_is_lost() -> None:
    count = CaptureCount(
        node=2,
        sent_frames=10,
        received_frames=9,
        counted_sent_frames=12,
        counted_received_frames=8,  # sent again and received twice: not a loss of the other kind
        ring_full_frames=2,
    )
    assert count.lost_frames == 2
    assert count.measures() == {
        "pcap_h2_sent_frames": 10,
        "pcap_h2_received_frames": 9,
        "pcap_h2_lost_frames": 2,
    }
    assert str(count) == (
        "h2.pcap: 10 frames sent and 9 received, 2 lost of the 12 and 8 that were counted"
    )


# --- circuits and queues


def crossbar_tables(ports: int) -> CrossbarTables:
    rows = np.zeros((2, ports, 2 * DEPTH), np.int64)
    rows[:, :, 0::2] = NEVER
    ifindex = np.array([7, 9, 7, 9][:ports])  # interface numbers begin again in each switch
    return CrossbarTables(rows[0], rows[1], ifindex)


def test_a_circuit_stands_when_both_ends_say_so() -> None:
    tables = crossbar_tables(4)
    tables.table[0, :4] = 100, 9, 200, 0  # to port 1 from 100 on, dark from 200 on
    tables.owner[1, :2] = 150, 1
    tables.table[3, :2] = 100, 7  # to port 2, plane 1's first
    tables.owner[2, :2] = 100, 4
    tables.table[2, :2] = 100, 9  # to port 3, which belongs to nobody
    for now_ns, expected in (
        (99, [-1, -1, -1, -1]),
        (149, [-1, -1, -1, 2]),
        (150, [1, -1, -1, 2]),
        (199, [1, -1, -1, 2]),
        (200, [-1, -1, -1, 2]),
    ):
        assert standing_circuits(tables, (0, 2, 4), now_ns).tolist() == expected


def test_a_message_is_in_its_card_from_ready_to_sent() -> None:
    tasks = np.zeros((5, e.TASK_COLUMNS), np.int64)
    tasks[:, e.KIND] = MESSAGE
    tasks[:, e.SIZE] = 100
    tasks[:, e.SRC] = [0, 1, 1, 2, 0]
    tasks[:, e.SENT] = [40, 0, 100, 0, 0]
    tasks[3, e.MISSING] = 1  # not ready yet
    tasks[4, e.KIND] = COMPUTE
    engine: Any = type("Engine", (), {"tasks": tasks})
    assert queued_bytes(engine, 4).tolist() == [60, 100, 0, 0]


# --- keeping pace

FABRIC = rails(nodes=2, planes=1, delay_ns=10_000)
DILATION = Dilation(
    factor=10.0,
    bytes_per_wall_byte=1.0,
    wall_bps=10**9,
    frame_bytes=4096,
    quantum_bytes=4096,
    guard_ns=0,
    bound_by="given",
)


def timeline(end_ns: int, **measures: float) -> Timeline:
    none = np.zeros(0, np.int64)
    return Timeline(
        iterations=1,
        ready_ns=np.zeros(1, np.int64),
        start_ns=np.zeros(1, np.int64),
        end_ns=np.array([end_ns]),
        transfers=Transfers(**dict.fromkeys(
            ("task", "hop", "from_node", "to_node", "plane", "circuit", "size_bytes", "start_ns",
             "end_ns"), none)),
        circuits=Circuits(**{field.name: none for field in dataclasses.fields(Circuits)}),
        measures={"frames_sent": 1000, "missed_slot_ends": 0, **measures},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("end_ns", "measures", "sentences"),
    [
        (104, {"lateness_p99_us": 50.0, "hop_p99_us": 50.0}, []),
        (
            106,
            {"missed_slot_ends": 11},
            [
                "11 of 1000 frames were too late for their slot",
                "the iterations took 6.0% longer than predicted",
            ],
        ),
        (
            100,
            {"lateness_p99_us": 20.0, "hop_p99_us": 51.0},
            [
                (
                    "frames are 51 us late at their 99th percentile, and a reconfiguration takes "
                    "100 us on the wall"
                )
            ],
        ),
        (100, {"drops_dark": 3, "lateness_max_us": 0.0}, []),  # something else darkened them
        (
            100,
            {"drops_dark": 3, "lateness_max_us": 9_000.0},
            ["3 frames were so late that their circuit was gone, and were sent again"],
        ),
        (
            100,
            {"frames_resent": 1},
            ["1 frames were lost inside this machine, and were sent again"],
        ),
        (-1, {"missed_slot_ends": 10}, []),  # it did not finish, which is told elsewhere
    ],
)
def test_a_machine_that_does_not_keep_up_shows(
    end_ns: int, measures: dict[str, float], sentences: list[str]
) -> None:
    assert overload(timeline(end_ns, **measures), timeline(100), FABRIC, DILATION) == sentences
