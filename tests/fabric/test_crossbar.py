"""Frames through the real crossbar: each is forwarded or dropped, counted once, for its cause."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import pytest
from traffic import HEADERS_BYTES, counts, receive, send

from testbed.emulator._kernels_crossbar import put
from testbed.emulator.crossbar import COUNTERS, NEVER
from topologies import FluxbedError

if TYPE_CHECKING:
    from testbed.emulator.network import EmulatedFabric

FRAMES = 25


@pytest.mark.parametrize("size", [1, 100, 1400, 8900])
def test_a_circuit_delivers_every_frame_whole(idle: EmulatedFabric, size: int) -> None:
    idle.crossbar.set_circuit_at(0, 1)
    send(idle, 0, 1, FRAMES, size)
    assert [len(frame) for frame in receive(idle, 1)] == [size] * FRAMES
    totals = idle.crossbar.totals()
    assert counts(idle) == {"forwarded": FRAMES}
    assert totals["forwarded_bytes"] == FRAMES * (size + HEADERS_BYTES)
    assert idle.crossbar.counters[0].tolist() == list(totals.values())


def test_a_circuit_is_directed(idle: EmulatedFabric) -> None:
    idle.crossbar.set_circuit_at(0, 1)
    send(idle, 1, 0, FRAMES)
    assert receive(idle, 0) == []
    assert counts(idle) == {"unconnected": FRAMES}


def test_what_never_had_a_circuit_is_unconnected(idle: EmulatedFabric) -> None:
    idle.crossbar.set_circuit_at(0, 1)
    send(idle, 2, 3, FRAMES)
    assert counts(idle) == {"unconnected": FRAMES}
    assert idle.crossbar.counters[2, COUNTERS.index("unconnected_frames")] == FRAMES


def test_a_dark_input_drops_and_the_other_circuit_does_not(idle: EmulatedFabric) -> None:
    for src, dst in ((0, 1), (2, 3)):
        idle.crossbar.set_circuit_at(src, dst)
    idle.crossbar.set_dark_at(0)
    send(idle, 0, 1, FRAMES)
    send(idle, 2, 3, 2 * FRAMES)
    assert (len(receive(idle, 1)), len(receive(idle, 3))) == (0, 2 * FRAMES)
    assert counts(idle) == {"dark": FRAMES, "forwarded": 2 * FRAMES}


def test_a_dark_output_drops_as_dark(idle: EmulatedFabric) -> None:
    idle.crossbar.set_circuit_at(0, 1)
    put(idle.crossbar.owner, 1, 5, 0)
    send(idle, 0, 1, FRAMES)
    assert counts(idle) == {"dark": FRAMES}


def test_the_second_input_at_one_output_is_a_conflict(idle: EmulatedFabric) -> None:
    idle.crossbar.set_circuit_at(0, 1)
    put(idle.crossbar.table, 2, 5, int(idle.crossbar.ifindex[1]))
    send(idle, 0, 1, FRAMES)
    send(idle, 2, 1, 2 * FRAMES)
    assert len(receive(idle, 1)) == FRAMES
    assert counts(idle) == {"forwarded": FRAMES, "conflict": 2 * FRAMES}


def test_a_table_swapped_by_hand_lets_nothing_through(idle: EmulatedFabric) -> None:
    for src, dst in ((0, 1), (2, 3)):
        idle.crossbar.set_circuit_at(src, dst)
    idle.crossbar.table[[0, 2]] = idle.crossbar.table[[2, 0]]
    for src, dst in ((0, 1), (2, 3)):
        send(idle, src, dst, FRAMES)
    assert counts(idle) == {"conflict": 2 * FRAMES}


def test_an_output_nobody_owns_is_a_conflict(idle: EmulatedFabric) -> None:
    put(idle.crossbar.table, 0, 5, int(idle.crossbar.ifindex[1]))
    send(idle, 0, 1, FRAMES)
    assert counts(idle) == {"conflict": FRAMES}


@pytest.mark.parametrize("number", [1, 4000, 4096, 1 << 40, -5])
def test_an_interface_that_is_no_port_is_a_conflict(idle: EmulatedFabric, number: int) -> None:
    put(idle.crossbar.table, 0, 5, number)
    send(idle, 0, 1, FRAMES)
    assert counts(idle) == {"conflict": FRAMES}


def test_a_port_of_another_plane_cannot_be_reached(idle: EmulatedFabric) -> None:
    idle.crossbar.set_circuit_at(0, 5)  # port 1 of plane 1: same number, another switch
    send(idle, 0, 1, FRAMES)
    assert receive(idle, 5) == receive(idle, 1) == []
    assert counts(idle) == {"conflict": FRAMES}


def test_the_kernel_keeps_the_time(idle: EmulatedFabric) -> None:
    now_ns = time.monotonic_ns()
    far_ns = now_ns + 3600 * 10**9
    idle.crossbar.set_circuit_at(0, 1)
    idle.crossbar.set_circuit_at(0, 2, far_ns, dark_ns=far_ns - 1)
    send(idle, 0, 1, FRAMES)
    assert counts(idle) == {"forwarded": FRAMES}
    idle.crossbar.set_circuit_at(0, 2, far_ns, dark_ns=now_ns)
    send(idle, 0, 1, FRAMES)
    assert counts(idle) == {"forwarded": FRAMES, "dark": FRAMES}
    idle.crossbar.set_circuit_at(0, 2, now_ns)
    send(idle, 0, 2, FRAMES)
    assert counts(idle) == {"forwarded": 2 * FRAMES, "dark": FRAMES}
    assert len(receive(idle, 2)) == len(receive(idle, 1)) == FRAMES


def test_changes_ahead_of_time_never_drop_a_legal_frame(idle: EmulatedFabric) -> None:
    """Port 0 goes back and forth between 1 and 2, port 3 takes whichever is free; no dark time."""
    crossbar, sent = idle.crossbar, 0
    for turn in range(60):
        up_ns = time.monotonic_ns() + 300_000
        mine, other = (1, 2) if turn % 2 else (2, 1)
        crossbar.set_circuit_at(0, mine, up_ns if turn else 0)
        crossbar.set_circuit_at(3, other, up_ns if turn else 0)
        while time.monotonic_ns() < up_ns + 200_000:
            send(idle, 0, mine, 1)
            send(idle, 3, other, 1)
            sent += 2
    assert counts(idle) == {"forwarded": sent}


def test_more_changes_than_a_row_holds_are_refused(idle: EmulatedFabric) -> None:
    far_ns = time.monotonic_ns() + 3600 * 10**9
    for change in range(6):
        idle.crossbar.set_circuit_at(0, 1, far_ns + change)
    with pytest.raises(FluxbedError, match="6 changes ahead"):
        idle.crossbar.set_circuit_at(0, 1, far_ns + 6)
    assert np.count_nonzero(idle.crossbar.table[0, ::2] < NEVER) == 6


def test_a_port_that_does_not_exist_is_refused(idle: EmulatedFabric) -> None:
    for src, dst in ((8, 0), (0, 8), (-1, 0)):
        with pytest.raises(IndexError, match="there is no port"):
            idle.crossbar.set_circuit_at(src, dst)


def test_light_does_not_read_addresses(idle: EmulatedFabric) -> None:
    idle.crossbar.set_circuit_at(0, 1)
    send(idle, 0, 3, FRAMES)  # the frame says 3, the circuit leads to 1
    assert receive(idle, 1) == receive(idle, 3) == []
    assert counts(idle) == {"forwarded": FRAMES}
