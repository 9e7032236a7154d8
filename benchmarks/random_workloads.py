"""Random workloads through every scheduler: sound plans, all bytes moved, no bound beaten.

    python benchmarks/random_workloads.py --count 1000

Two of three are like training (TP, DP, PP, EP in random proportions), the others DAGs without
symmetry, on random fabrics: directed, duplex, all-stop, several ports per node, packet planes,
uneven rates, control and notification delays. What is wrong is printed with its seed.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.scheduler.soundness import SCHEDULERS, complaints, workload
from topologies import FluxbedError


@click.command()
@click.option("--count", default=1000, help="How many workloads.")
@click.option("--first", default=0, help="The first seed.")
@click.option("--seconds", default=float("inf"), help="Begin no workload after so many seconds.")
def main(count: int, first: int, seconds: float) -> None:
    """Print what is wrong, and how many plans were looked at."""
    wrong: Counter[str] = Counter()
    began, seen = time.monotonic(), 0
    for seed in range(first, first + count):
        if time.monotonic() - began > seconds:
            break
        graph, fabric = workload(seed)
        for name in SCHEDULERS:
            try:
                found = complaints(name, graph, fabric)
            except FluxbedError as error:
                found = [str(error)]
            if found:
                wrong[name] += 1
                print(f"seed {seed}, {name}: {found[0]}", flush=True)
        seen += 1
    print(f"{seen} workloads, {len(SCHEDULERS)} schedulers each: {wrong.total()} plans are wrong")
    for name, times in wrong.most_common():
        print(f"{times:5d}  {name}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
