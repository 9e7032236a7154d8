"""Prefetch against greedy: where asking for the next circuits ahead pays, and where it costs.

    python benchmarks/prefetch.py

60 training-like workloads on one and two planes of 800 Gb/s; the ratio of steady iterations, and
what both do where prefetch is worst.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scheduler.dispatch.simulator import simulate
from scheduler.model.problem import Problem
from scheduler.policies.registry import find
from tests.scheduler.instances import training
from topologies import rails

SKIP, ITERATIONS = 2, 12


def measure(name: str, seed: int, delay_ns: int, planes: int) -> tuple[float, float]:
    """Return a steady iteration, ms, and how many circuits it asks for."""
    graph = training(seed)
    fabric = rails(nodes=graph.nodes, planes=planes, rate_bps=800 * 10**9, delay_ns=delay_ns)
    program = find(name).plan(Problem(graph=graph, fabric=fabric))
    timeline = simulate(graph, fabric, program, iterations=ITERATIONS)
    changes = int((timeline.circuits.request_ns > timeline.iteration_ends_ns[0]).sum())
    return (timeline.iteration_ns(SKIP) or 0.0) / 1e6, changes / (ITERATIONS - 1)


@click.command()
@click.option("--count", default=60, help="How many workloads.")
def main(count: int) -> None:
    """Print one table."""
    print("    tau  planes  shorter  equal  longer    mean     least      most  worst: changes, ms")
    for delay_ns in (1_000, 10_000, 100_000, 1_000_000):
        for planes in (1, 2):
            found = [
                [measure(name, seed, delay_ns, planes) for name in ("greedy", "prefetch")]
                for seed in range(count)
            ]
            ratio = np.array([ahead[0] / demand[0] for demand, ahead in found])
            same = np.abs(ratio - 1) < 1e-9  # noqa: PLR2004 (rounding)
            worst = int(ratio.argmax())
            (demand_ms, demand), (ahead_ms, ahead) = found[worst]
            print(
                f"{delay_ns // 1000:4d} us {planes:7} {(~same & (ratio < 1)).sum():8} "
                f"{same.sum():6} {(~same & (ratio > 1)).sum():7} "
                f"{np.exp(np.log(ratio).mean()):7.3f} {ratio.min():9.3f} {ratio.max():9.3f}  "
                f"seed {worst}: {demand:.1f} to {ahead:.1f}, {demand_ms:.2f} to {ahead_ms:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
