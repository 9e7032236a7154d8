"""Random workloads through every scheduler: sound plans, all bytes moved, no bound beaten.

    python benchmarks/random_workloads.py --count 1000 --log random.jsonl

Two of three are like training (TP, DP, PP, EP in random proportions), the others DAGs without
symmetry, on random fabrics: directed, duplex, all-stop, several ports per node, packet planes,
uneven rates, control and notification delays. Each goes through every scheduler, and every fourth
through one of the tuned ones, which take as long as all others together. A line of the log is one
workload: the same command goes on after an interruption. What is wrong is printed with its seed.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.scheduler.soundness import SCHEDULERS, TUNED, Verdict, judge, workload
from topologies import FluxbedError

EVERY = 4
COLUMNS = ("plans", "refused", "replayed", "wrong")


def judged(seed: int) -> dict[str, Any]:
    """Return one line of the log."""
    graph, fabric = workload(seed)
    found: dict[str, Any] = {}
    tuned = TUNED[seed // EVERY % len(TUNED)]
    for name in (*SCHEDULERS, tuned) if seed % EVERY == 0 else SCHEDULERS:
        try:
            found[name] = judge(name, graph, fabric)._asdict()
        except FluxbedError as error:
            found[name] = Verdict([str(error)])._asdict()
        for complaint in found[name]["complaints"][:1]:
            print(f"seed {seed}, {name}: {complaint}", flush=True)
    return {"seed": seed, "messages": len(graph.messages), "found": found}


@click.command()
@click.option("--count", default=1000, help="How many workloads.")
@click.option("--first", default=0, help="The first seed.")
@click.option("--seconds", default=float("inf"), help="Begin no workload after so many seconds.")
@click.option("--log", type=click.Path(path_type=Path), help="Keeps what is done.")
def main(count: int, first: int, seconds: float, log: Path | None) -> None:
    """Print what is wrong, and per scheduler how many plans were looked at."""
    seeds = range(first, first + count)
    lines = log.read_text().splitlines() if log and log.exists() else []
    done = {line["seed"]: line for line in map(json.loads, lines) if line["seed"] in seeds}
    began = time.monotonic()
    for seed in seeds:
        if time.monotonic() - began > seconds:
            break
        if seed in done:
            continue
        done[seed] = judged(seed)
        if log:
            with log.open("a") as file:
                file.write(json.dumps(done[seed]) + "\n")
    counts: dict[str, Counter[str]] = {}
    for line in done.values():
        for name, verdict in line["found"].items():
            kind = counts.setdefault("any -tuned" if name in TUNED else name, Counter())
            kind["refused" if verdict["refused"] else "plans"] += 1
            kind["replayed"] += verdict["replayed"]
            kind["wrong"] += bool(verdict["complaints"])
    sizes = [line["messages"] for line in done.values()]
    print(f"{len(done)} workloads of {min(sizes)} to {max(sizes)} messages")
    print(f"{'scheduler':20}" + "".join(f"{column:>10}" for column in COLUMNS))
    for name, kind in counts.items():
        print(f"{name:20}" + "".join(f"{kind[column]:10}" for column in COLUMNS))
    sys.exit(any(kind["wrong"] for kind in counts.values()))


if __name__ == "__main__":
    main()
