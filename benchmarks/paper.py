"""Flux and every other scheduler on the instance of arXiv 2609.25949, with the best bound.

    python benchmarks/paper.py --layers 8 --seq 8192 --algorithm direct --delay 1000
    python benchmarks/paper.py --others ""                      # Flux and its bound alone

8 GPUs, Llama-3-8B, TP4 x DP2, two planes of 800 Gb/s, A100 compute at half its peak, no
embeddings. Every option repeats; by default the whole grid is run, which takes hours with the tuned
schedulers. *gap* is Flux's time over the best bound, *best other* the fastest of the others. The
exit code is 3 where another scheduler is faster than Flux.
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path

import click

from scheduler.bounds import lower_bound_ns
from scheduler.model.expansion import expand
from scheduler.model.options import ExpansionOptions
from scheduler.model.problem import Problem
from testbed.synth import synth
from topologies import rails

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.optimality import steady_ns
from scheduler.policies.flux import Flux
from tests.scheduler.oracle import period_ns

COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce")
OTHERS = (
    "greedy,prefetch,static,spectra,sunflow,rotor-direct,bvn,vermilion,solstice,rotor-vlb,rotorlb"
)


@click.command()
@click.option("--layers", type=int, multiple=True, default=(8, 16))
@click.option("--seq", type=int, multiple=True, default=(2048, 8192))
@click.option("--algorithm", multiple=True, default=("ring", "direct"))
@click.option("--duplex", type=bool, multiple=True, default=(False, True))
@click.option("--delay", type=int, multiple=True, default=(1, 10, 100, 1000), help="us")
@click.option("--others", default=OTHERS, help="Separated by commas.")
@click.option("--budget", default=1.0, help="Flux's budget, seconds.")
def main(  # noqa: PLR0917 (click's)
    layers: tuple[int, ...],
    seq: tuple[int, ...],
    algorithm: tuple[str, ...],
    duplex: tuple[bool, ...],
    delay: tuple[int, ...],
    others: str,
    budget: float,
) -> None:
    """Print a line for each point."""
    lost = False
    print("layers seq algorithm circuits tau_us flux_ms bound_ms gap best_other_ms best_other")
    for depth, tokens, name, both, tau_us in product(layers, seq, algorithm, duplex, delay):
        workload = synth(
            "llama3-8b", tp=4, dp=2, layers=depth, seq=tokens, mfu=0.5, embeddings="omitted"
        )
        fabric = rails(nodes=8, planes=2, delay_ns=1000 * tau_us, duplex=both)
        graph = expand(
            workload, fabric, ExpansionOptions(collectives=dict.fromkeys(COLLECTIVES, name))
        ).graph
        problem = Problem(graph=graph, fabric=fabric, budget_s=budget)
        program = Flux().plan(problem)
        flux_ns = period_ns(graph, fabric, program)
        bound_ns = lower_bound_ns(graph, fabric).value_ns
        if program.proof is not None:
            bound_ns = max(bound_ns, program.proof.lower_bound_ns)
        times = {other: steady_ns(other, problem) for other in others.split(",") if other}
        known = {other: time_ns for other, time_ns in times.items() if time_ns is not None}
        best = min(known, key=lambda other: known[other], default="-")
        lost |= best != "-" and known[best] < flux_ns
        other_ms = f"{known[best] / 1e6:.3f}" if known else "-"
        way = "duplex" if both else "directed"
        print(
            f"{depth} {tokens} {name} {way} {tau_us} {flux_ns / 1e6:.3f} {bound_ns / 1e6:.3f} "
            f"{flux_ns / bound_ns - 1:.3%} {other_ms} {best}",
            flush=True,
        )
    sys.exit(3 if lost else 0)


if __name__ == "__main__":
    main()
