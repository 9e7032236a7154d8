"""How expansion grows from 64 to 4,096 GPUs: `python benchmarks/expansion_scale.py`.

Llama-3-8B, TP8 x PP8 x DP the rest. Prints processor time and messages, and the exponent of time
in messages; the exit code is 3 where it is above 1.2.
"""

from __future__ import annotations

import math
import resource
import sys
import time
from typing import NamedTuple

from scheduler.model.expansion import expand
from testbed.synth import synth
from topologies import rails

GPUS = (64, 256, 1024, 4096)
TARGET = 1.2


class Row(NamedTuple):
    """One measurement; times are of the processor."""

    gpus: int
    operations: int
    messages: int
    tasks: int
    synth_s: float
    expand_s: float
    peak_mb: int


def measure(gpus: int) -> Row:
    """Make and expand one step."""
    start = time.process_time()
    workload = synth("llama3-8b", tp=8, pp=8, dp=gpus // 64, layers=8, micro_batches=8, mfu=0.4)
    made = time.process_time()
    graph = expand(workload, rails(nodes=gpus)).graph
    done = time.process_time()
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    operations = len(workload.operations)
    messages = len(graph.messages)
    return Row(gpus, operations, messages, graph.tasks, made - start, done - made, peak_mb)


def main() -> int:
    """Measure, print a table, and say with the exit code whether the target was met."""
    measure(GPUS[0])  # loads the compiled code
    rows = [measure(gpus) for gpus in GPUS]
    print("  GPUs  operations   messages      tasks   synth s  expand s  peak MB")
    for row in rows:
        print(
            f"{row.gpus:6} {row.operations:11} {row.messages:10} {row.tasks:10} "
            f"{row.synth_s:9.2f} {row.expand_s:9.2f} {row.peak_mb:8}"
        )
    first, last = rows[0], rows[-1]
    growth = math.log(last.expand_s / first.expand_s) / math.log(last.messages / first.messages)
    print(f"expansion grows with messages to the power {growth:.2f} (target: at most {TARGET})")
    return 0 if growth <= TARGET else 3


if __name__ == "__main__":
    sys.exit(main())
