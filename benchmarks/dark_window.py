"""How exact dark windows are, seen by frames: `sudo python benchmarks/dark_window.py`.

Two ways of changing a circuit, 2,000 windows each, probed by a frame every 3.5 us (286 kpps) and
dated by the kernel's receive stamps: written ahead of time, and requested when a frame arrives.
Beside them, measured in the same run, how exact this machine is without us: what a real-time
sleep, a frame's way through the fabric and the probe itself do.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import sys
from typing import TYPE_CHECKING

from testbed.emulator.network import EmulatedFabric
from testbed.emulator.probe import Distribution, measure_dark_windows, measure_sleep
from topologies import FluxbedError, rails

if TYPE_CHECKING:
    from testbed.emulator.probe import DarkWindows

TARGET_NS = 20_000
COLUMNS = ("least", "p1", "p50", "p99", "most")


def main() -> int:
    """Measure, print a table, and say with the exit code whether the target was met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--windows", type=int, default=2000)
    parser.add_argument("--delay-us", type=int, default=300)
    parser.add_argument("--json", action="store_true", help="everything, for other programs")
    options = parser.parse_args()
    try:
        with EmulatedFabric(rails(nodes=3, planes=2), f"dark-window-{os.getpid()}") as network:
            sleep = measure_sleep()
            ahead, event = (
                measure_dark_windows(
                    network, options.windows, ahead=ahead, delay_ns=options.delay_us * 1000
                )
                for ahead in (True, False)
            )
    except FluxbedError as refused:
        sys.stderr.write(f"dark_window: {refused}\n")
        return refused.exit_code
    met = ahead.error_ns.p99 is not None and ahead.error_ns.p99 <= TARGET_NS
    if options.json:
        windows = {"ahead": dataclasses.asdict(ahead), "event": dataclasses.asdict(event)}
        print(json.dumps({**windows, "sleep_late_ns": dataclasses.asdict(sleep), "met": met}))
    else:
        print_table(sleep, ahead, event)
        verdict = "met" if met else "NOT MET"
        print(f"target: written ahead, |error| p99 <= {TARGET_NS // 1000} us: {verdict}")
    return 0 if met else 3


def print_table(sleep: Distribution, ahead: DarkWindows, event: DarkWindows) -> None:
    """Print every distribution in us, signed: late is positive."""
    print(f"{platform.release()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}")
    print(f"{'us':44}{'samples':>9}" + "".join(f"{name:>10}" for name in COLUMNS))
    for title, windows in (("written ahead of time", ahead), ("requested by an event", event)):
        print(f"{title}: {windows.windows} windows of {windows.delay_ns / 1000:g} us")
        row("  last frame on the old circuit - dark", windows.last_old_ns)
        row("  first frame on the new circuit - up", windows.first_new_ns)
        row("  |error| of both", windows.error_ns)
        if not windows.ahead:
            row("  event arrived -> request", windows.answer_ns)
            row("  event arrived -> last frame passed", windows.event_to_dark_ns)
        row("  probe: time between frames", windows.probe_gap_ns)
        row("  probe: send -> into the switch", windows.latency_ns)
        print(
            f"  edges without a frame near: {windows.unseen}, frames through the dark: "
            f"{windows.leaked}, triggers missed: {windows.missed}"
        )
    row("reference: a real-time sleep ends late by", sleep)


def row(name: str, found: Distribution) -> None:
    """Print one line; a missing sample is a dash."""
    cells = (getattr(found, column) for column in COLUMNS)
    shown = "".join("         -" if v is None else f"{v / 1000:10.2f}" for v in cells)
    print(f"{name:44}{found.samples:9}{shown}")


if __name__ == "__main__":
    raise SystemExit(main())
