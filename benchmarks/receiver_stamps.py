"""Does any frame pass a dark or foreign port? `sudo python benchmarks/receiver_stamps.py`.

An exchange among four hosts on two planes under RotorNet, a million frames and more. Every host's
packets are captured; the kernel's stamp of each frame received, its sender and its receiver are
held against the slots of the plan, which know nothing of the crossbar. Frames that the capture
lost are not judged: their number is printed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "scheduler"))

from instances import Builder, direct  # (its path was just added)

from scheduler.model.problem import Problem
from scheduler.model.program import TimedProgram
from scheduler.policies.registry import find
from testbed.emulator.capacity import measure_capacity
from testbed.emulator.dilation import choose
from testbed.emulator.engine import attempt
from testbed.emulator.network import EmulatedFabric
from testbed.emulator.packets import PacketCapture
from testbed.emulator.stamps import light_of_slots, misplaced, read_arrivals
from topologies import rails

NODES, FACTOR = 4, 50.0
FABRIC = rails(nodes=NODES, planes=2, rate_bps=800 * 10**9, delay_ns=20_000)
SLACK_WALL_NS = 100_000
PAIRS = NODES * (NODES - 1)


def main() -> int:
    """Run, judge, print; the exit code says whether any frame was out of place."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--frames", type=int, default=1_200_000)
    options = parser.parse_args()
    frames_each = options.frames // PAIRS
    with (
        EmulatedFabric(FABRIC, f"stamps-{os.getpid()}") as network,
        tempfile.TemporaryDirectory() as place,
    ):
        capacity = measure_capacity(network)
        everyone = list(range(NODES))
        build = Builder(NODES)
        for rank in everyone:
            build.compute(rank, 20_000)
        frame_bytes = round(2 * NODES * 2 * 800e9 / 8 / capacity.frames_per_s / FACTOR)
        build.collective(everyone, direct(everyone, frames_each * frame_bytes), 0)
        graph = build.graph()
        program = find("rotor-direct").plan(Problem(graph=graph, fabric=FABRIC, budget_s=1.0))
        assert isinstance(program, TimedProgram)
        dilation = choose(graph, FABRIC, program, capacity, factor=FACTOR, iterations=1)
        capture = PacketCapture(network, everyone, Path(place))
        with capture:
            execution = attempt(graph, FABRIC, program, network, dilation=dilation, iterations=1)
        timeline = execution.timeline
        zero_ns = capture.zero(timeline)["pcap_zero_ns"]
        arrivals = read_arrivals(capture.paths, everyone, FABRIC, zero_ns=zero_ns, factor=FACTOR)
    light = light_of_slots(program, FABRIC, int(timeline.end_ns.max()))
    found = misplaced(arrivals, light, slack_ns=int(SLACK_WALL_NS / FACTOR))
    measures = timeline.measures
    print(
        f"{measures['frames_received']} frames received in {measures['wall_s']:.0f} s, "
        f"{found.frames} of them captured: {found.dark} without light, {found.foreign} where the "
        f"light did not go; the crossbar dropped {measures['drops_dark']} in the dark"
    )
    return int(found.dark + found.foreign > 0)


if __name__ == "__main__":
    sys.exit(main())
