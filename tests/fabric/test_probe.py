"""The probes find what is there, and nothing else; how exact it is, is for a benchmark to say."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from traffic import counts

from testbed.emulator.calibration import calibrate
from testbed.emulator.capabilities import deep_check
from testbed.emulator.network import EmulatedFabric
from testbed.emulator.probe import measure_dark_windows
from topologies import Fabric, Plane

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


def test_the_deep_check_measures_and_judges() -> None:
    found = deep_check()
    facts = json.loads(json.dumps(found.facts()))
    assert facts["ports"] == 8
    assert facts["frames_per_s"] > 0
    assert facts["link_bps"] > 0
    assert facts["windows"] == 100
    assert facts["windows_leaked"] == 0
    assert facts["sleep_late_p50_ns"] > 0
    assert found.verdict.startswith(("good", "fair", "poor"))


def test_a_fabric_with_nothing_to_probe_says_so() -> None:
    plane = Plane(node_of=(0, 1), rate_bps=10**9)
    with EmulatedFabric(Fabric(nodes=2, planes=(plane,)), "test-two-ports") as network:
        found = calibrate(network)
        assert found.windows is None
        assert "dark windows were not probed" in found.verdict
        assert calibrate(network) is found
