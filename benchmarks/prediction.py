"""Prediction against measurement: one training step under Flux and RotorNet, over tau and dilation.

Run as root on a machine that does little else; prints one line per case, the median of the repeats:

    sudo .venv/bin/python benchmarks/prediction.py --repeat 5
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "scheduler"))

from instances import Builder, direct, ring  # (its path was just added)

from scheduler.dispatch.simulator import simulate
from scheduler.model.problem import Problem
from scheduler.policies.registry import find
from testbed.emulator.capacity import measure_capacity
from testbed.emulator.dilation import choose
from testbed.emulator.engine import execute
from testbed.emulator.network import EmulatedFabric
from topologies import rails
from topologies.units import format_duration

if TYPE_CHECKING:
    from scheduler.model.taskgraph import TaskGraph

TAUS_NS = (10_000, 100_000, 1_000_000)
RATIOS = (1.0, 2.0, 0.5)
SKIP = 1


def training_step(
    layers: int = 3, compute_ns: int = 60_000, size_bytes: int = 2_000_000
) -> TaskGraph:
    """Build TP4 x DP2 on 8 nodes: two ring collectives per layer and gradients between replicas."""
    build = Builder(8)
    tensor = [[0, 1, 2, 3], [4, 5, 6, 7]]
    for layer in range(2 * layers):
        for rank in range(8):
            build.compute(rank, compute_ns + 1_000 * ((5 * rank + 3 * layer) % 8))
        for _ in range(2):
            for members in tensor:
                build.collective(members, ring(members, size_bytes // 4, 1), 0)
        if layer >= layers:
            for rank in range(4):
                pair = [rank, rank + 4]
                after = {member: build.last[member, 0] for member in pair}
                build.collective(pair, direct(pair, size_bytes), 1, after)
    for rank in range(8):
        step = build.compute(rank, compute_ns // 4)
        build.arc(build.last[rank, 1], step)
    return build.graph()


def main() -> None:
    """Measure every case and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument("--schedulers", nargs="*", default=["flux", "rotor-direct"])
    options = parser.parse_args()
    graph = training_step()
    print(
        "scheduler     tau      bound by               D    frame  predicted  measured     error"
        "    worst   hop p50/p99 us  cpu  missed drops lost  wall s"
    )
    for tau_ns in TAUS_NS:
        fabric = rails(nodes=8, planes=2, delay_ns=tau_ns)
        programs = {
            n: find(n).plan(Problem(graph=graph, fabric=fabric)) for n in options.schedulers
        }
        with EmulatedFabric(fabric, "prediction") as network:
            capacity = measure_capacity(network)
            print(
                f"# {capacity.frames_per_s / 1e3:.0f} kframes/s; us per hop: "
                f"mean {capacity.hop_mean_ns / 1e3:.1f}, p50 {capacity.hop_p50_ns / 1e3:.1f}, "
                f"p99 {capacity.hop_p99_ns / 1e3:.1f}, drift {capacity.drift_ns / 1e3:.1f}"
            )
            for name, program in programs.items():
                auto = choose(graph, fabric, program, capacity, iterations=options.iterations)
                for ratio in RATIOS:
                    dilation = choose(
                        graph,
                        fabric,
                        program,
                        capacity,
                        factor=auto.factor * ratio,
                        iterations=options.iterations,
                    )
                    predicted = simulate(
                        graph,
                        fabric,
                        program,
                        iterations=options.iterations,
                        quantum_bytes=dilation.quantum_bytes,
                        guard_ns=dilation.guard_ns,
                    ).iteration_ns(SKIP)
                    runs = [
                        execute(
                            graph,
                            fabric,
                            program,
                            network,
                            iterations=options.iterations,
                            dilation=dilation,
                        )
                        for _ in range(options.repeat)
                    ]
                    assert predicted
                    measured = [run.iteration_ns(SKIP) or 0.0 for run in runs]
                    errors = sorted((value / predicted - 1 for value in measured), key=abs)
                    middle = statistics.median(errors)
                    last = runs[-1].measures
                    totals = {
                        key: sum(int(run.measures[key] or 0) for run in runs)
                        for key in (
                            "missed_slot_ends",
                            "drops_dark",
                            "drops_unconnected",
                            "drops_conflict",
                            "lost_bytes",
                        )
                    }
                    drops = sum(totals[key] for key in totals if key.startswith("drops"))
                    print(
                        f"{name:13s} {format_duration(tau_ns):8s} "
                        f"{auto.bound_by if ratio == 1 else f'x {ratio:g}':21s} "
                        f"{dilation.factor:6g} {dilation.quantum_bytes / 1e3:5.0f}kB "
                        f"{predicted / 1e3:8.1f}us {statistics.median(measured) / 1e3:8.1f}us "
                        f"{100 * middle:+8.3f}% {100 * errors[-1]:+7.3f}% "
                        f"{last['hop_p50_us']:7.1f} /{last['hop_p99_us']:6.1f} "
                        f"{100 * (last['cpu_share'] or 0):4.0f}% {totals['missed_slot_ends']:5d} "
                        f"{drops:5d} {totals['lost_bytes']:4d} {last['wall_s']:6.2f}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
