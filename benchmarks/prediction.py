"""Prediction against measurement: iteration time and NIC peak over workloads, tau and dilation.

Every case is measured on real packets and simulated with the same frames. Rows are kept in a file
and a second call goes on where the first one stopped. Run as root on a machine that does little
else:

    sudo .venv/bin/python benchmarks/prediction.py -o prediction.jsonl
    sudo .venv/bin/python benchmarks/prediction.py -o prediction.jsonl --table
    sudo .venv/bin/python benchmarks/prediction.py TRACE -o mine.jsonl --schedulers flux --taus 10us
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scheduler.dispatch.simulator import simulate
from scheduler.model.expansion import expand
from scheduler.model.nic import account_nics
from scheduler.model.options import ExpansionOptions
from scheduler.model.problem import Problem
from scheduler.model.program import TimedProgram
from scheduler.policies.registry import find
from testbed.emulator.capacity import measure_capacity
from testbed.emulator.dilation import choose
from testbed.emulator.engine import execute
from testbed.emulator.network import EmulatedFabric
from testbed.synth import synth
from testbed.traces import load_workload
from topologies import Fabric, build_fabric, rails
from topologies.errors import FluxbedError
from topologies.units import parse_duration_ns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scheduler.model.program import Program
    from scheduler.model.taskgraph import TaskGraph
    from scheduler.model.timeline import Timeline
    from testbed.emulator.dilation import Dilation
    from topologies import Fabric

ROOT: Final = Path(__file__).resolve().parents[1]
BUNDLED: Final = ROOT / "examples" / "traces" / "llama-tp4-dp2"
TRACES: Final = Path(os.environ.get("FLUXBED_TRACES", ROOT.parent / "shared" / "traces"))
DLRM: Final = TRACES / "kineto" / "dlrm8.kineto.tar.gz"
WORKLOADS: Final = ("bundled", "dlrm", "layer")
SCHEDULERS: Final = ("flux", "static", "greedy", "rotor-direct", "rotor-vlb", "bvn")
TAUS: Final = ("10us", "100us", "1ms")
RATIOS: Final = (1.0, 2.0, 0.5)
SKIP: Final = 1
GOAL: Final = 0.02
FINE: Final = 0.01  # of the peak: coarser frames say how many of them it was, and no ratio
LOSSES: Final = ("drops_dark", "drops_unconnected", "drops_conflict", "lost_bytes")


def graph_of(name: str, compute_scale: float | None) -> TaskGraph:
    """Expand the bundled trace, the DLRM capture, one layer of Llama-3-8B, or a file of one's own.

    The bundled trace's collectives are direct, as in the demonstration; the others' are the
    defaults (rings, and a direct all-to-all).
    """
    options = ExpansionOptions()
    if name == "bundled":
        meta = json.loads((BUNDLED / "meta.json").read_text())
        workload = load_workload([BUNDLED], compute_scale=meta["compute_scale"])
        kinds = ("all_gather", "reduce_scatter", "all_reduce")
        options = ExpansionOptions(collectives=dict.fromkeys(kinds, "direct"))
    elif name == "layer":
        workload = synth("llama3-8b", tp=4, dp=2, layers=1, seq=2048, mfu=0.5, embeddings="omitted")
    else:
        path = DLRM if name == "dlrm" else Path(name)
        workload = load_workload([path], compute_scale=compute_scale)
    return expand(workload, rails(nodes=workload.world), options).graph


class Case(NamedTuple):
    """One scheduler's program for one fabric, on one network."""

    graph: TaskGraph
    fabric: Fabric
    program: Program
    network: EmulatedFabric
    iterations: int

    def dilation(self, factor: float | None = None) -> Dilation:
        """Return the dilation of `factor`, or the one that suits."""
        return choose(
            self.graph,
            self.fabric,
            self.program,
            measure_capacity(self.network),
            factor=factor,
            iterations=self.iterations,
        )

    def predict(self, dilation: Dilation) -> Timeline:
        """Simulate with the frames and the guard of `dilation`."""
        return simulate(
            self.graph,
            self.fabric,
            self.program,
            iterations=self.iterations,
            quantum_bytes=dilation.quantum_bytes,
            guard_ns=dilation.guard_ns,
            gather_ns=dilation.gather_ns,
        )

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

    def nic_peak_bytes(self, timeline: Timeline) -> int:
        """Return the most that any NIC held, bytes taken in eagerly."""
        return int(account_nics(self.graph, self.fabric, timeline, "eager").peak_bytes.max())

    def row(self, dilation: Dilation, repeat: int) -> dict[str, Any]:
        """Measure `repeat` times; a row of numbers, times in virtual ns."""
        predicted = self.predict(dilation)
        began = time.monotonic()
        runs = [self.measure(dilation) for _ in range(repeat)]
        late_p99_us = statistics.median(run.measures["lateness_p99_us"] or 0.0 for run in runs)
        return {
            "dilation": dilation.factor,
            "bound_by": dilation.bound_by,
            "frame_bytes": dilation.quantum_bytes,
            "predicted_ns": predicted.iteration_ns(SKIP),
            "measured_ns": [run.iteration_ns(SKIP) for run in runs],
            "predicted_peak_bytes": self.nic_peak_bytes(predicted),
            "measured_peak_bytes": [self.nic_peak_bytes(run) for run in runs],
            "late_p99_ns": late_p99_us * 1e3 / dilation.factor,
            "missed_slot_ends": sum(int(run.measures["missed_slot_ends"] or 0) for run in runs),
            "lost": sum(int(run.measures[name] or 0) for run in runs for name in LOSSES),
            "wall_s": (time.monotonic() - began) / repeat,
        }


def rows_of(
    key: tuple[str, str, str], case: Case, repeat: int, known: set[tuple[Any, ...]]
) -> Iterator[dict[str, Any]]:
    """Measure a case at the dilation that suits, twice and half of it."""
    if {(*key, ratio) for ratio in RATIOS} <= known:
        return
    auto = case.dilation()
    for ratio in RATIOS:
        if (*key, ratio) not in known:
            dilation = auto if ratio == 1 else case.dilation(auto.factor * ratio)
            yield named(key) | {"ratio": ratio} | case.row(dilation, repeat)


def named(key: tuple[str, str, str]) -> dict[str, Any]:
    """Return the columns that name a case."""
    return dict(zip(("workload", "scheduler", "tau"), key, strict=True))


def slowed(fabric: Fabric, delay_ns: int) -> Fabric:
    """Return the fabric with another delay of its optical planes."""
    planes = tuple(
        dataclasses.replace(plane, delay_ns=delay_ns) if plane.kind == "ocs" else plane
        for plane in fabric.planes
    )
    return dataclasses.replace(fabric, planes=planes)


def measure_all(options: argparse.Namespace, known: set[tuple[Any, ...]]) -> None:
    """Measure what is not known yet and append it to the file."""
    run_id = f"prediction-{os.getpid()}"
    for name in options.workloads:
        graph = graph_of(name, options.compute_scale)
        plainest = build_fabric(options.topology, graph.nodes)
        with EmulatedFabric(plainest, run_id) as network:
            for tau, chosen in itertools.product(options.taus, options.schedulers):
                key = (name, chosen, tau)
                delay_ns = parse_duration_ns(tau)
                scheduler = find(chosen)
                fabric = scheduler.fabric_for(slowed(plainest, delay_ns))
                written: Iterator[dict[str, Any]]
                try:
                    program = scheduler.plan(Problem(graph=graph, fabric=fabric))
                except FluxbedError as error:
                    rows = [
                        named(key) | {"ratio": ratio, "refused": str(error)} for ratio in RATIOS
                    ]
                    written = iter(row for row in rows if (*key, row["ratio"]) not in known)
                else:
                    timed = isinstance(program, TimedProgram)  # their iterations last long
                    iterations = 2 if timed else options.iterations
                    case = Case(graph, fabric, program, network, iterations)
                    written = rows_of(key, case, options.repeat, known)
                for row in written:
                    with options.output.open("a") as out:
                        out.write(json.dumps(row) + "\n")
                    print(line_of(row), flush=True)


def peak_text(row: dict[str, Any]) -> str:
    """Write how the measured NIC peak compares, where frames are fine enough to say."""
    measured, frame = statistics.median(row["measured_peak_bytes"]), row["frame_bytes"]
    predicted = row["predicted_peak_bytes"]
    if predicted and frame <= FINE * predicted:
        return f"{100 * (measured / predicted - 1):+.2f} %"
    return f"<= {-(-max(measured, predicted) // max(frame, 1)):.0f} frames"


def error_of(row: dict[str, Any]) -> float:
    """Return the median error of the iteration time, a fraction."""
    return float(statistics.median(row["measured_ns"]) / row["predicted_ns"] - 1)


def line_of(row: dict[str, Any]) -> str:
    """Write a row of the table, in Markdown."""
    head = f"| {row['workload']} | {row['scheduler']} | {row['tau']} | {row['ratio']:g} "
    if "refused" in row:
        return head + "| - | - | - | - | - | - | - |"
    late = 100 * row["late_p99_ns"] / parse_duration_ns(row["tau"])
    return (
        f"{head}| {row['dilation']:g} | {row['predicted_ns'] / 1e6:.3f} ms "
        f"| {statistics.median(row['measured_ns']) / 1e6:.3f} ms | {100 * error_of(row):+.2f} % "
        f"| {peak_text(row)} | {late:.1f} % | {row['lost']} |"
    )


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print every row and what they amount to."""
    print(
        "| workload | scheduler | tau | D / auto | D | predicted | measured | difference "
        "| NIC peak | late p99 / tau | lost |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        print(line_of(row))
    errors = [abs(error_of(row)) for row in rows if "refused" not in row]
    within = sum(error <= GOAL for error in errors)
    largest = 100 * max(errors, default=0)
    print(f"\n{within} of {len(errors)} within {100 * GOAL:g} %; the largest {largest:.2f} %")


def main() -> None:
    """Measure, or print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", default=WORKLOADS, help=" ".join(WORKLOADS))
    parser.add_argument("-o", "--output", type=Path, required=True, help="rows, as JSON lines")
    parser.add_argument("--table", action="store_true", help="print the table of the file")
    parser.add_argument("--compute-scale", type=float)
    parser.add_argument("--topology", default="rails,planes=2", help="the delay comes from --taus")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument("--taus", nargs="*", default=TAUS)
    parser.add_argument("--schedulers", nargs="*", default=SCHEDULERS)
    options = parser.parse_args()
    rows = []
    if options.output.exists():
        rows = [json.loads(text) for text in options.output.read_text().splitlines()]
    if options.table:
        print_table(rows)
        return
    names = ("workload", "scheduler", "tau", "ratio")
    measure_all(options, {tuple(row[name] for name in names) for row in rows})


if __name__ == "__main__":
    main()
