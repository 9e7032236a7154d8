"""How plans hold when computations do not take what was planned: jitter and a straggler.

    python benchmarks/robustness.py --seeds 5

Llama-3-8B, TP4 x DP2, direct collectives, two planes of 800 Gb/s. Every cell is the mean time of an
iteration over the seeds, as a part of what clairvoyant Flux needs. The same seed draws the same
durations for all.

*flux* is the order of Flux's nominal plan, kept by the dispatcher; *clairvoyant* Flux planned anew
for each seed, all iterations at once and their true durations known (or the nominal order, where
the search finds nothing better); *by the clock* replays the times of the nominal plan; *replanned*
plans again where a rank's computing drifts by more than --replan, its --budget of planning time and
the drained circuits included; greedy and prefetch react. The fewest of each row is marked.
"""

from __future__ import annotations

import dataclasses
from statistics import fmean
from typing import Any

import click
import numpy as np

from scheduler.dispatch.replanning import simulate_replanned
from scheduler.dispatch.simulator import iteration_ends
from scheduler.model.expansion import expand
from scheduler.model.options import ExpansionOptions
from scheduler.model.perturbation import Perturbation
from scheduler.model.problem import Problem
from scheduler.model.taskgraph import Arcs, TaskGraph
from scheduler.policies.registry import find
from testbed.synth import synth
from topologies import rails

DIRECT = dict.fromkeys(("all_gather", "reduce_scatter", "all_reduce"), "direct")
OTHERS = ("flux", "flux-timestamped", "greedy", "prefetch")
COLUMNS = ("clairvoyant", *OTHERS, "replanned")


def at_once(graph: TaskGraph, iterations: int) -> TaskGraph:
    """Return all iterations as one, with their true durations and sizes."""
    before, after, origin = graph.unrolled_arcs(iterations)
    many = {
        name: np.tile(getattr(graph, name), iterations)
        for name in ("kind", "op", "rank", "stream", "position", "src", "dst", "step")
    }
    shift = np.repeat(np.arange(iterations) * (graph.group.max() + 1), graph.tasks)
    return TaskGraph(
        nodes=graph.nodes,
        size_bytes=graph.sizes_bytes(iterations),
        dur_ns=graph.durations_ns(iterations),
        group=np.where(many["kind"] == 1, np.tile(graph.group, iterations) + shift, -1),
        arcs=Arcs(before=before, after=after, distance=np.zeros_like(before), origin=origin),
        **many,
    )


@click.command()
@click.option("--seeds", default=5, help="How many draws of each jitter.")
@click.option("--iterations", default=6, help="Executed, from idle circuits on.")
@click.option("--layers", default=2, help="Of the model.")
@click.option("--budget", default=1.0, help="Of every plan, seconds; clairvoyant: per iteration.")
@click.option("--replan", default=0.1, help="Plan again where a rank drifts by this part.")
@click.option("--planning", default=1e-3, help="What planning again takes of the run, seconds.")
def main(**chosen: Any) -> None:  # noqa: ANN401 (options)
    """Print one table."""
    seeds, iterations, layers = chosen["seeds"], chosen["iterations"], chosen["layers"]
    budget = chosen["budget"]
    workload = synth("llama3-8b", tp=4, dp=2, layers=layers, seq=2048, mfu=0.5)
    cases = [(f"jitter {part:.0%}", {"jitter": part}) for part in (0.0, 0.05, 0.1, 0.3)]
    cases.append(("rank 3 x 1.5", {"stragglers": ((3, 1.5),)}))
    widths = "  ".join(f"{name:>16}" for name in COLUMNS)
    print(f"{'tau':>6}  {'case':12}  {widths}  replans")
    for delay_ns in (10_000, 100_000, 1_000_000):
        fabric = rails(nodes=8, planes=2, rate_bps=800 * 10**9, delay_ns=delay_ns)
        expansion = expand(workload, fabric, ExpansionOptions(collectives=DIRECT))
        nominal = expansion.graph
        problem = Problem(graph=nominal, fabric=fabric, budget_s=budget)
        programs = {name: find(name).plan(problem) for name in OTHERS}
        for label, asked in cases:
            times: dict[str, list[float]] = {name: [] for name in COLUMNS}
            replans = 0
            for seed in range(seeds if "jitter" in label and asked["jitter"] else 1):
                graph = Perturbation(seed=seed, **asked).apply(nominal, workload)
                for name, program in programs.items():
                    ends = iteration_ends(graph, fabric, program, iterations=iterations)
                    times[name].append(int(ends[-1]))
                again = simulate_replanned(
                    graph,
                    fabric,
                    lambda each: find("flux").plan(dataclasses.replace(each, budget_s=budget)),
                    threshold=chosen["replan"],
                    planning_ns=round(chosen["planning"] * 1e9),
                    iterations=iterations,
                    first=programs["flux"],
                )
                times["replanned"].append(int(again.ends_ns[-1]))
                replans += len(again.takeovers)
                whole = at_once(graph, iterations)
                known = Problem(graph=whole, fabric=fabric, budget_s=budget * iterations)
                program = find("flux,cyclic=no").plan(known)
                found = int(iteration_ends(whole, fabric, program, iterations=1)[-1])
                times["clairvoyant"].append(min(found, times["flux"][-1]))
            means = {name: fmean(values) for name, values in times.items()}
            best = min(means[name] for name in COLUMNS[1:])
            cells = [f"{means['clairvoyant'] / iterations / 1e6:13.3f} ms"] + [
                f"{means[name] / means['clairvoyant']:.3f}{'*' if means[name] == best else ' '}"
                for name in COLUMNS[1:]
            ]
            row = "  ".join(f"{cell:>16}" for cell in cells)
            print(f"{delay_ns // 1000:4d}us  {label:12}  {row}  {replans}", flush=True)


if __name__ == "__main__":
    main()
