"""What each part of Flux is worth: reuse, early requests, plane choice, search, cyclic closure.

    python benchmarks/ablation.py --workloads 20

Each is left out in turn. *planned* is the time by the rules left, *executed* what the dispatcher
makes of the plan: it still reuses circuits and requests early where the plan allows, so *planned*
says what these two are worth. Both are mean and most over the workloads, against Flux whole;
*planned* of one iteration alone (cyclic=no) is not a steady time and not comparable.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import fmean

import click

from scheduler.model.problem import Problem
from scheduler.policies.flux import Search
from scheduler.policies.workbench import ALL, Rules

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.scheduler.oracle import KINDS, instance, load, period_ns

PARTS = ("reuse", "early", "planes", "search", "cyclic")


@click.command()
@click.option("--workloads", default=20, help="How many of each kind, of `tests/oracle`.")
@click.option("--budget", default=1.0, help="Flux's budget, seconds.")
def main(workloads: int, budget: float) -> None:
    """Print one table."""
    print(f"{'kind':9} {'without':8} {'planned':>8} {'most':>8} {'executed':>9} {'most':>8}")
    for kind in KINDS:
        rows = load(kind)[:: max(len(load(kind)) // workloads, 1)][:workloads]
        whole: dict[int, float] = {}
        for part in (None, *PARTS):
            planned, executed = [], []
            for row in rows:
                graph, fabric = instance(kind, row["seed"])
                rules = Rules(**{part: False}) if part else ALL
                search = Search(Problem(graph=graph, fabric=fabric, budget_s=budget), rules=rules)
                search.seed()
                search.anneal()
                bench = search.bench
                took_ns = period_ns(graph, fabric, bench.best())
                whole.setdefault(row["seed"], took_ns)
                planned.append(bench.ranked[0].value_ns / whole[row["seed"]])
                executed.append(took_ns / whole[row["seed"]])
            cells = f"{fmean(planned):8.4f} {max(planned):8.4f}"
            if part == "cyclic":
                cells = f"{'-':>8} {'-':>8}"
            cells += f" {fmean(executed):9.4f} {max(executed):8.4f}"
            print(f"{kind:9} {part or 'nothing':8} {cells}", flush=True)


if __name__ == "__main__":
    main()
