"""Prediction against measurement: one training step under Flux and RotorNet, over tau and dilation.

Run as root on a machine that does little else; prints one line per case, the median of the repeats:

    sudo .venv/bin/python benchmarks/prediction.py --repeat 5
    sudo .venv/bin/python benchmarks/prediction.py TRACE --compute-scale 0.0002 --direct --repeat 5
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "scheduler"))

from instances import Builder, direct, ring  # (its path was just added)

from scheduler.dispatch.simulator import simulate
from scheduler.model.expansion import expand
from scheduler.model.options import ExpansionOptions
from scheduler.model.problem import Problem
from scheduler.policies.registry import find
from testbed.emulator.capacity import measure_capacity
from testbed.emulator.dilation import choose
from testbed.emulator.engine import execute
from testbed.emulator.network import EmulatedFabric
from testbed.traces import load_workload
from topologies import rails
from topologies.units import parse_duration_ns

if TYPE_CHECKING:
    from scheduler.model.program import Program
    from scheduler.model.taskgraph import TaskGraph
    from scheduler.model.timeline import Timeline
    from testbed.emulator.dilation import Dilation
    from topologies import Fabric

RATIOS = (1.0, 2.0, 0.5)
SKIP = 1
COUNTED = (
    "missed_slot_ends",
    "drops_dark",
    "drops_unconnected",
    "drops_conflict",
    "lost_bytes",
)


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


def graph_of(options: argparse.Namespace) -> TaskGraph:
    """Expand the workload that was asked for, or build the step of this file."""
    if options.workload is None:
        return training_step()
    workload = load_workload([options.workload], compute_scale=options.compute_scale)
    collectives = dict.fromkeys(
        ("all_gather", "reduce_scatter", "all_reduce"), "direct" if options.direct else "ring"
    )
    fabric = rails(nodes=workload.world)
    return expand(workload, fabric, ExpansionOptions(collectives=collectives)).graph


class Case(NamedTuple):
    """One scheduler's program for one fabric, on one network."""

    graph: TaskGraph
    fabric: Fabric
    program: Program
    network: EmulatedFabric
    iterations: int

    def dilation(self, factor: float | None = None) -> Dilation:
        """Return the dilation of `factor`, or the one that suits."""
        capacity = measure_capacity(self.network)
        return choose(
            self.graph,
            self.fabric,
            self.program,
            capacity,
            factor=factor,
            iterations=self.iterations,
        )

    def predict_ns(self, dilation: Dilation) -> float:
        """Simulate with the frames and the guard of `dilation`."""
        value = simulate(
            self.graph,
            self.fabric,
            self.program,
            iterations=self.iterations,
            quantum_bytes=dilation.quantum_bytes,
            guard_ns=dilation.guard_ns,
        ).iteration_ns(SKIP)
        assert value
        return value

    def measure(self, dilation: Dilation) -> Timeline:
        """Execute once."""
        return execute(
            self.graph,
            self.fabric,
            self.program,
            self.network,
            iterations=self.iterations,
            dilation=dilation,
        )


def row_of(case: Case, dilation: Dilation, repeat: int) -> str:
    """Measure `repeat` times and write the numbers of a row."""
    predicted_ns = case.predict_ns(dilation)
    runs = [case.measure(dilation) for _ in range(repeat)]
    measured_ns = [run.iteration_ns(SKIP) or 0.0 for run in runs]
    errors = [value / predicted_ns - 1 for value in measured_ns]
    totals = {name: sum(int(run.measures[name] or 0) for run in runs) for name in COUNTED}
    drops = sum(totals[name] for name in COUNTED if name.startswith("drops"))
    last = runs[-1].measures
    return (
        f"{dilation.factor:6g} {dilation.quantum_bytes / 1e3:5.0f}kB "
        f"{predicted_ns / 1e3:9.1f}us {statistics.median(measured_ns) / 1e3:9.1f}us "
        f"{100 * statistics.median(errors):+8.3f}% {100 * max(errors, key=abs):+7.3f}% "
        f"{last['hop_p50_us']:7.1f} /{last['hop_p99_us']:6.1f} "
        f"{100 * (last['cpu_share'] or 0):4.0f}% {totals['missed_slot_ends']:5d} "
        f"{drops:5d} {totals['lost_bytes']:4d} {last['wall_s']:6.2f}"
    )


def main() -> None:
    """Measure every case and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", nargs="?", type=Path, help="a trace or workload file")
    parser.add_argument("--compute-scale", type=float)
    parser.add_argument("--direct", action="store_true", help="direct collectives, not rings")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument("--taus", nargs="*", default=["10us", "100us", "1ms"])
    parser.add_argument("--schedulers", nargs="*", default=["flux", "rotor-direct"])
    options = parser.parse_args()
    graph = graph_of(options)
    print(
        "scheduler           tau      bound by               D    frame   predicted   measured"
        "     error    worst   hop p50/p99 us  cpu  missed drops lost  wall s"
    )
    plain = rails(nodes=graph.nodes, planes=2)
    with EmulatedFabric(plain, "prediction") as network:
        capacity = measure_capacity(network)
        print(
            f"# {capacity.frames_per_s / 1e3:.0f} kframes/s; us per hop: "
            f"mean {capacity.hop_mean_ns / 1e3:.1f}, p50 {capacity.hop_p50_ns / 1e3:.1f}, "
            f"p99 {capacity.hop_p99_ns / 1e3:.1f}, drift {capacity.drift_ns / 1e3:.1f}"
        )
        for tau in options.taus:
            for name in options.schedulers:
                scheduler = find(name)
                delay_ns = parse_duration_ns(tau)
                fabric = rails(nodes=graph.nodes, planes=2, delay_ns=delay_ns)
                fabric = scheduler.fabric_for(fabric)
                program = scheduler.plan(Problem(graph=graph, fabric=fabric))
                case = Case(graph, fabric, program, network, options.iterations)
                auto = case.dilation()
                for ratio in RATIOS:
                    dilation = auto if ratio == 1 else case.dilation(auto.factor * ratio)
                    said = auto.bound_by if ratio == 1 else f"x {ratio:g}"
                    row = row_of(case, dilation, options.repeat)
                    print(f"{name:19s} {tau:8s} {said:21s} {row}", flush=True)


if __name__ == "__main__":
    main()
