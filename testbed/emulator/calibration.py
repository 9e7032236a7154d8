"""Calibration: what this machine carries and how exact it is, measured on a built fabric.

The same for `doctor --deep`, which builds two hosts, and before every run, on the run's own hosts.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from testbed.emulator.capacity import Capacity, measure_capacity, measure_link_bps
from testbed.emulator.dilation import HOPS_PER_DELAY
from testbed.emulator.probe import Distribution, measure_dark_windows, measure_sleep
from topologies.units import format_duration, format_rate

if TYPE_CHECKING:
    from testbed.emulator.network import EmulatedFabric
    from testbed.emulator.probe import DarkWindows

__all__ = ["Calibration", "calibrate"]

_SLEEPS: Final = 200
_WINDOWS: Final = 100
_LEAST_PORTS: Final = 3  # of the plane whose dark windows are probed
_GOOD_HOP_NS: Final = 150_000
_POOR_HOP_NS: Final = 1_000_000
_GOOD_WINDOW_NS: Final = 20_000
_EXAMPLE_DELAY_NS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What was measured, on the wall.

    `sleep_late_ns`: how late a real-time sleep ends. `capacity`: frames a second of all ports, and
    how late they are known. `link_bps`: what one link alone carries. `windows`: how exact dark
    windows are, None where the fabric has no plane of three ports to probe.
    """

    ports: int
    sleep_late_ns: Distribution
    capacity: Capacity
    link_bps: float
    windows: DarkWindows | None

    @property
    def verdict(self) -> str:
        """Say in words what this machine is good for."""
        hop_ns = self.capacity.hop_p99_ns
        error_ns = self.windows.error_ns.p99 if self.windows is not None else None
        grade = "good" if hop_ns <= _GOOD_HOP_NS else "fair"
        if error_ns is not None and error_ns > _GOOD_WINDOW_NS:
            grade = "fair"
        if hop_ns > _POOR_HOP_NS:
            grade = "poor, something else is at work on this machine"
        dilation = HOPS_PER_DELAY * hop_ns / _EXAMPLE_DELAY_NS
        windows = "dark windows were not probed"
        if error_ns is not None:
            windows = f"dark windows are exact within {format_duration(error_ns)} (p99)"
        return (
            f"{grade}: {self.capacity.frames_per_s:,.0f} frames/s over {self.ports} ports, known "
            f"within {format_duration(hop_ns)} (p99), so that a delay of "
            f"{format_duration(_EXAMPLE_DELAY_NS)} needs a dilation of {dilation:.0f}; {windows}; "
            f"one link alone carries {format_rate(self.link_bps)}"
        )

    def facts(self) -> dict[str, Any]:
        """Return the numbers by name, flat, for the manifest; unknown is None."""
        facts: dict[str, Any] = {
            "ports": self.ports,
            **dataclasses.asdict(self.capacity),
            "link_bps": self.link_bps,
        }
        spreads = {"sleep_late": self.sleep_late_ns}
        if self.windows is not None:
            facts |= {"windows": self.windows.windows, "windows_leaked": self.windows.leaked}
            spreads |= {
                "window_last_old": self.windows.last_old_ns,
                "window_first_new": self.windows.first_new_ns,
                "window_error": self.windows.error_ns,
                "latency": self.windows.latency_ns,
            }
        for name, spread in spreads.items():
            facts |= {
                f"{name}_p50_ns": spread.p50,
                f"{name}_p99_ns": spread.p99,
                f"{name}_most_ns": spread.most,
            }
        return facts


_measured: Final[WeakKeyDictionary[EmulatedFabric, Calibration]] = WeakKeyDictionary()


def calibrate(network: EmulatedFabric) -> Calibration:
    """Measure for one or two seconds, once per network, which must be idle; circuits are reset.

    Raises what `measure_capacity` raises.
    """
    if network not in _measured:
        plane = network.fabric.planes[0]
        probed = plane.kind == "ocs" and plane.ports >= _LEAST_PORTS
        _measured[network] = Calibration(
            ports=len(network.links),
            sleep_late_ns=measure_sleep(_SLEEPS),
            capacity=measure_capacity(network),
            link_bps=measure_link_bps(network),
            windows=measure_dark_windows(network, _WINDOWS) if probed else None,
        )
    return _measured[network]
