"""The probes find what is there, and nothing else; how exact it is, is for a benchmark to say."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import pytest
from traffic import counts, send

from testbed.emulator.capabilities import deep_check
from testbed.emulator.network import EmulatedFabric
from testbed.emulator.probe import measure_dark_windows, measure_exchange
from topologies import Fabric, FluxbedError, Plane

if TYPE_CHECKING:
    from testbed.emulator.probe import DarkWindows

DELAY_NS = 300_000


def check_windows(found: DarkWindows, windows: int) -> None:
    assert found.windows == windows
    assert found.last_old_ns.samples == found.first_new_ns.samples <= windows - found.missed
    assert found.error_ns.samples == 2 * found.last_old_ns.samples


def test_windows_written_ahead(idle: EmulatedFabric) -> None:
    found = measure_dark_windows(idle, 50)
    check_windows(found, 50)
    assert found.leaked == 0
    assert found.last_old_ns.samples > 25
    assert found.missed == found.event_to_dark_ns.samples == 0
    assert counts(idle) == {}  # the crossbar is as it was lent


def test_windows_requested_by_an_event(idle: EmulatedFabric) -> None:
    found = measure_dark_windows(idle, 50, ahead=False)
    check_windows(found, 50)
    assert found.answer_ns.samples == found.event_to_dark_ns.samples == found.last_old_ns.samples
    if found.answer_ns.least is not None:
        assert found.answer_ns.least > 0  # an answer before the question would be a wrong clock


def test_every_exchanged_frame_arrives(idle: EmulatedFabric) -> None:
    frames_per_s, hop = measure_exchange(idle, frames=800, frame_bytes=1400)
    assert frames_per_s > 0
    assert hop.samples == 800
    paced, _ = measure_exchange(idle, frames=400, frames_per_s=1000)
    assert paced < 1100


def test_a_lost_frame_is_told(idle: EmulatedFabric, monkeypatch: pytest.MonkeyPatch) -> None:
    lit = idle.crossbar.set_circuit_at

    def all_but_one(src: int, dst: int) -> None:
        if src != 3:
            lit(src, dst)

    monkeypatch.setattr(idle.crossbar, "set_circuit_at", all_but_one)
    with pytest.raises(FluxbedError, match=r"100 of 800 probe frames were lost.*unconnected"):
        measure_exchange(idle, frames=800)


def test_nodes_with_several_ports_exchange_with_others_only() -> None:
    plane = Plane(node_of=(0, 0, 1, 1), rate_bps=10**9)
    with EmulatedFabric(Fabric(nodes=2, planes=(plane,)), "test-ring") as network:
        _, hop = measure_exchange(network, frames=400)
        assert hop.samples == 400
        send(network, 0, 2, 1)
        assert counts(network) == {"unconnected": 1}
    lopsided = Plane(node_of=(0, 0, 1), rate_bps=10**9)
    with (
        EmulatedFabric(Fabric(nodes=2, planes=(lopsided,)), "test-lopsided") as network,
        pytest.raises(FluxbedError, match="no ring joins"),
    ):
        measure_exchange(network)


def test_the_deep_check_is_json() -> None:
    found = json.loads(json.dumps(dataclasses.asdict(deep_check())))
    assert found["ports"] == 8
    assert found["frames_per_s"] > 0
    assert found["dark_windows"]["windows"] == 200
