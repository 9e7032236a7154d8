"""How planning grows from 64 to 4,096 GPUs: time, memory and quality.

    python benchmarks/scale.py                       # one step of eight micro-batches
    python benchmarks/scale.py --gpus 1024 --channels 4

Llama-3-8B, TP8 in a server, PP8 and DP the rest between servers of eight rails. *first* is
expansion, the first decode and the bound together; *plan* is the whole of Flux in its default
budget. Times are of the processor, on one core. The exit code is 3 where the first grows with the
messages to a power above 1.2, or the last gap is more than two points above the first.
"""

from __future__ import annotations

import math
import resource
import sys
import time
from itertools import pairwise
from typing import NamedTuple

import click

from scheduler.bounds import lower_bound_ns
from scheduler.model.expansion import expand
from scheduler.model.options import ExpansionOptions
from scheduler.model.problem import Problem
from scheduler.policies._kernels_warm_up import compile_kernels
from scheduler.policies.flux import Search
from scheduler.policies.workbench import Workbench
from testbed.synth import synth
from topologies.servers import servers

STEEPEST = 1.2
MOST_WORSE = 0.02
PER_SERVER = 8
PER_REPLICA = 64  # TP8 x PP8


class Row(NamedTuple):
    """One measurement; times are of the processor."""

    gpus: int
    messages: int
    tasks: int
    expand_s: float
    bound_s: float
    decode_s: float
    plan_s: float
    gap: float
    peak_mb: int

    @property
    def first_s(self) -> float:
        """Expansion, bound and first decode."""
        return self.expand_s + self.bound_s + self.decode_s


def measure(gpus: int, micro_batches: int, channels: int) -> Row:
    """Make one step, expand it, and plan it twice: the first decode, and all of Flux."""
    replicas = gpus // PER_REPLICA
    workload = synth(
        "llama3-8b", tp=8, pp=8, dp=replicas, layers=8, micro_batches=micro_batches, mfu=0.4
    )
    fabric = servers(nodes=gpus // PER_SERVER)
    clock = [time.process_time()]
    graph = expand(workload, fabric, ExpansionOptions(channels=channels)).graph
    clock.append(time.process_time())
    bound = lower_bound_ns(graph, fabric)
    clock.append(time.process_time())
    problem = Problem(graph=graph, fabric=fabric)
    Workbench(problem)
    clock.append(time.process_time())
    search = Search(problem)
    search.seed()
    search.anneal()
    search.bench.best()
    clock.append(time.process_time())
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    expand_s, bound_s, decode_s, plan_s = (b - a for a, b in pairwise(clock))
    gap = search.bench.ranked[0].value_ns / bound.value_ns - 1
    counts = gpus, len(graph.messages), graph.tasks
    return Row(*counts, expand_s, bound_s, decode_s, plan_s, gap, peak_mb)


@click.command()
@click.option("--gpus", default="64,256,1024,4096", help="How many, with commas between.")
@click.option("--micro-batches", default=8, help="Of each step.")
@click.option("--channels", default=1, help="Of each collective.")
def main(gpus: str, micro_batches: int, channels: int) -> None:
    """Measure, print a table, and say with the exit code whether the targets were met."""
    compile_kernels()
    measure(PER_REPLICA, 1, 1)  # loads what is compiled
    print("  GPUs   messages      tasks  expand s  bound s  decode s  plan s     gap  peak MB")
    rows = []
    for count in gpus.split(","):
        row = measure(int(count), micro_batches, channels)
        rows.append(row)
        print(
            f"{row.gpus:6} {row.messages:10} {row.tasks:10} {row.expand_s:9.2f} {row.bound_s:8.2f} "
            f"{row.decode_s:9.2f} {row.plan_s:7.2f} {row.gap:7.2%} {row.peak_mb:8}",
            flush=True,
        )
    first, last = rows[0], rows[-1]
    if first is last:
        return
    # The exponent of a straight line through all points, least squares in logarithms.
    xs = [math.log(row.messages) for row in rows]
    ys = [math.log(row.first_s) for row in rows]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    growth = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    print(f"messages grow {last.messages / first.messages:.0f} times; expansion, bound and decode")
    print(f"grow with them to the power {growth:.2f} (target: at most {STEEPEST})")
    print(f"the last gap is {100 * (last.gap - first.gap):.2f} points above the first")
    if growth > STEEPEST or last.gap - first.gap > MOST_WORSE:
        sys.exit(3)


if __name__ == "__main__":
    main()
