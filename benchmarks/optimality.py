"""How good Flux is: against its lower bound, an exact solver, and the other schedulers.

    python benchmarks/optimality.py versus --workloads 200      # random training-like workloads
    python benchmarks/optimality.py exact --workloads 20        # tiny ones, against CP-SAT
    python benchmarks/optimality.py oracle --workloads 200      # the committed ones, `tests/oracle`

Everything is seeded: the same numbers come out on every machine that is fast enough.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import click

from scheduler.bounds import lower_bound_ns
from scheduler.dispatch.simulator import iteration_ends
from scheduler.model.problem import Problem
from scheduler.policies.registry import find
from topologies import FluxbedError, rails

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.scheduler.exact import optimal_period
from tests.scheduler.instances import random_dag, random_fabric, training
from tests.scheduler.oracle import KINDS, instance, load, period_ns

if TYPE_CHECKING:
    from collections.abc import Callable

DELAYS_NS = (1_000, 20_000, 100_000)
ROUNDING = 1e-5  # CP-SAT's values are floating
SKIP = 2
MEASURED = 48  # iterations: over few a rotor that starts out late can seem to beat the bound


def steady_ns(name: str, problem: Problem) -> float | None:
    """Plan and simulate; the steady iteration time, or None where the scheduler refuses."""
    scheduler = find(name)
    fabric = scheduler.fabric_for(problem.fabric)
    own = Problem(graph=problem.graph, fabric=fabric, seed=problem.seed, budget_s=problem.budget_s)
    try:
        ends = iteration_ends(own.graph, fabric, scheduler.plan(own), iterations=MEASURED)
    except FluxbedError:
        return None
    return float(ends[-1] - ends[SKIP - 1]) / (len(ends) - SKIP)


@click.group()
def main() -> None:
    """Measure Flux's plans."""


def _common(function: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--workloads", default=200, help="How many."),
        click.option("--first", default=0, help="The first seed."),
        click.option("--budget", default=1.0, help="Flux's budget, seconds."),
    ):
        function = option(function)
    return function


@main.command()
@_common
@click.option("--any-fabric", is_flag=True, help="Duplex, all-stop, uneven and packet planes too.")
def versus(workloads: int, first: int, budget: float, any_fabric: bool) -> None:  # noqa: FBT001 (a click flag)
    """Compare with the tuned rotor, the static assignment and the packet-switched ideal."""
    others = ("rotor-direct-tuned", "static", "packet-ideal")
    ratios: dict[str, list[float]] = {name: [] for name in (*others, "bound")}
    optimal = ideal = 0
    lost = []
    began = time.monotonic()
    for seed in range(first, first + workloads):
        graph = training(seed)
        fabric = random_fabric(seed, graph.nodes, plain=not any_fabric)
        problem = Problem(graph=graph, fabric=fabric, budget_s=budget)
        flux_ns = steady_ns("flux", problem)
        assert flux_ns is not None
        bound = lower_bound_ns(graph, fabric)
        optimal += bound.proves(flux_ns)
        ratios["bound"].append(flux_ns / bound.value_ns)
        for name in others:
            other_ns = steady_ns(name, problem)
            if other_ns is None:
                continue
            ratios[name].append(flux_ns / other_ns)
            if name != "packet-ideal" and flux_ns > other_ns:
                lost.append((seed, name, flux_ns / other_ns))
            ideal += name == "packet-ideal" and flux_ns <= other_ns
    print(f"{workloads} workloads, {time.monotonic() - began:.0f} s")
    print(f"proven optimal {optimal}, equal to packet-ideal {ideal}, lost {len(lost)}: {lost}")
    for name, values in ratios.items():
        if values:
            spread = f"least {min(values):.4f}, mean {fmean(values):.4f}, most {max(values):.4f}"
            print(f"flux / {name}: {spread} ({len(values)} workloads)")


@main.command()
@_common
@click.option("--tasks", default=16, help="Tasks of each workload, without its closing barrier.")
@click.option("--limit", default=10.0, help="CP-SAT's limit, seconds each.")
def exact(workloads: int, first: int, budget: float, tasks: int, limit: float) -> None:
    """Compare with CP-SAT's proven optima on random workloads without symmetry."""
    gaps, better = [], 0
    for seed in range(first, first + workloads):
        graph = random_dag(seed, nodes=4, tasks=tasks)
        delay_ns = DELAYS_NS[seed % len(DELAYS_NS)]
        fabric = rails(nodes=4, planes=1 + seed % 2, delay_ns=delay_ns, duplex=seed % 5 == 0)
        flux_ns = steady_ns("flux", Problem(graph=graph, fabric=fabric, budget_s=budget))
        best = optimal_period(graph, fabric, limit_s=limit)
        assert flux_ns is not None
        if best.proven:
            gaps.append(max(flux_ns / best.period_ns - 1, 0.0))
        better += not best.proven and flux_ns <= best.period_ns
    unproven = workloads - len(gaps)
    print(f"proven by CP-SAT: {len(gaps)} of {workloads}; Flux no worse on {better} of {unproven}")
    equal = sum(gap < ROUNDING for gap in gaps)
    print(f"equal {equal}, mean gap {fmean(gaps):.3%}, worst {max(gaps):.3%}")


@main.command()
@_common
def oracle(workloads: int, first: int, budget: float) -> None:
    """Compare with the best known of the committed instances, and with what is proven."""
    for kind in KINDS:
        rows = load(kind)[first : first + workloads]
        gaps: dict[bool, list[float]] = {True: [], False: []}
        for row in rows:
            graph, fabric = instance(kind, row["seed"])
            program = find("flux").plan(Problem(graph=graph, fabric=fabric, budget_s=budget))
            gap = period_ns(graph, fabric, program) / row["value_ns"] - 1
            gaps[row["proven"]].append(max(gap, 0.0))
        for proven, values in gaps.items():
            if values:
                equal = sum(gap < ROUNDING for gap in values)
                name = f"{kind}, {'proven' if proven else 'best known'}"
                print(f"{name}: {len(values)}, equal on {equal}", end=", ")
                print(f"mean gap {fmean(values):.3%}, worst {max(values):.3%}")


if __name__ == "__main__":
    main()
