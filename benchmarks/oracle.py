"""Make the instances that Flux is tested against: `tests/oracle/*.json`.

    python benchmarks/oracle.py training --limit 0    # resumes; --again: the open ones
    python benchmarks/oracle.py training --limit 0 --work 100   # more for the phases, 10^6 steps
    python benchmarks/oracle.py random --limit 10

*training*: steps of 4 to 8 ranks (TP, DP, PP, EP mixes) of up to 3 layers on 1 to 3 planes, tau
1 us to 1 ms, with 60 to 160 messages, a node with more peers than planes, and a first decode at
least 1 % above the best value known: the first seeds that are so, in order, proven or not. (Seven
experts at once make more messages than that.) In one of six what ranks compute and experts get
differs by 10 %. *random*: graphs of up to 60 messages without symmetry, closed by a barrier. A file
holds the seeds the instances are made from again, the best value known and the best bound, with
what found it: `proven` where they meet. Bounds are those of Flux, then those of its phase program
with more memory and work (`--work`), then those of CP-SAT (`--limit`).
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import sys
import time
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from scheduler.bounds import lower_bound_ns
from scheduler.model.problem import Problem
from scheduler.phases import PhaseProgram
from scheduler.policies.exact import FluxExact
from scheduler.policies.flux import Flux
from scheduler.policies.folding import fold
from scheduler.policies.lifting import BOTH, SENT, classes_of, slices
from scheduler.policies.lowering import lower
from scheduler.policies.workbench import Workbench

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.scheduler.oracle import FORMAT, KINDS, VERSION, instance, load, path_of, period_ns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scheduler.model.taskgraph import TaskGraph
    from topologies import Fabric

LEAST_MESSAGES = 60
MOST_MESSAGES = 160
LEAST_GAP = 0.01
LABELS = 40_000  # of a layer of the phase program; Flux has a few thousand


def fits(kind: str, graph: TaskGraph, fabric: Fabric) -> bool:
    """Say whether an instance is hard enough to be one of its kind."""
    messages = graph.messages
    if kind == "random":
        return 0 < len(messages) <= LEAST_MESSAGES
    pairs = np.unique(np.stack([graph.src[messages], graph.dst[messages]]), axis=1)
    peers = max(np.bincount(end).max() for end in pairs)
    if not LEAST_MESSAGES <= len(messages) <= MOST_MESSAGES or peers <= len(fabric.planes):
        return False
    return first_ns(graph, fabric) >= (1 + LEAST_GAP) * lower_bound_ns(graph, fabric).value_ns


def first_ns(graph: TaskGraph, fabric: Fabric) -> float:
    """Return the period of the first program that Flux decodes."""
    return Workbench(Problem(graph=graph, fabric=fabric)).found[0].value_ns


def candidates(kind: str, after: int) -> Iterator[int]:
    """Yield the seeds from `after` on whose instances fit, as far as that is known unsolved."""
    return (seed for seed in count(after) if fits(kind, *instance(kind, seed)))


def by_phases(problem: Problem, least_ns: float, most_ns: float, work: int) -> float:
    """Bound the period by nodes of every kind, in `work` steps: all that send together, then alone.

    Then with what they receive. Where ranks do not do alike, each slice of them in turn.
    """
    graph, fabric = problem.graph, problem.fabric
    duplex = any(plane.duplex for plane in fabric.planes)
    classes, exact = classes_of(graph, duplex=duplex), fold(graph, duplex=duplex)
    own = list(slices(graph, classes))
    if np.array_equal(classes, exact):  # any slice is like any other
        own = own[:1]
    ways = SENT if duplex else BOTH
    tries = [(nodes, SENT) for nodes in own]
    tries += [([node], ways) for nodes in own for node in nodes] + [(nodes, ways) for nodes in own]
    instance_ = lower(problem)
    change_ns = (instance_.delay_ns + instance_.known_ns).tolist()
    left = work
    for done, (nodes, way) in enumerate(tries):
        if left <= 0 or least_ns >= most_ns:
            break
        program = PhaseProgram(graph, fabric, nodes, change_ns=change_ns, ways=way, labels=LABELS)
        if program.covers:
            share = max(left // (len(tries) - done), work // 10)
            found = program.shortest(least_ns, math.ceil(most_ns), work=min(left, share))
            least_ns = max(least_ns, float(found.least_ns))
            left -= found.spent
    return min(least_ns, most_ns)


def solve(kind: str, seed: int, limit_s: float, budget_s: float, work: int) -> dict[str, Any]:
    """Solve one instance: by Flux, whose bounds may prove it, then by its phases, then CP-SAT."""
    graph, fabric = instance(kind, seed)
    problem = Problem(graph=graph, fabric=fabric, budget_s=budget_s)
    began = time.monotonic()
    program = Flux().plan(problem)
    value_ns, bound_ns = period_ns(graph, fabric, program), lower_bound_ns(graph, fabric).value_ns
    solver = "bounds"
    if program.proof is not None:
        bound_ns, solver = program.proof.lower_bound_ns, "phases"
    if value_ns > bound_ns and work > 0:
        more_ns = by_phases(problem, bound_ns, value_ns, work)
        if more_ns > bound_ns:
            bound_ns, solver = more_ns, "phases"
    if value_ns > bound_ns and limit_s > 0:
        program = FluxExact(time_ns=round(limit_s * 1e9)).plan(problem)
        assert program.proof is not None
        value_ns = min(value_ns, period_ns(graph, fabric, program))
        bound_ns = max(bound_ns, program.proof.lower_bound_ns)
        solver = f"OR-tools {importlib.metadata.version('ortools')}"
    return {
        "seed": seed,
        "messages": len(graph.messages),
        "planes": len(fabric.planes),
        "delay_ns": fabric.planes[0].delay_ns,
        "first_ns": first_ns(graph, fabric),
        "value_ns": value_ns,
        "bound_ns": bound_ns,
        "proven": value_ns <= bound_ns,
        "solver": solver,
        "wall_s": round(time.monotonic() - began, 1),
    }


def save(kind: str, rows: list[dict[str, Any]]) -> None:
    """Write the file, a line for each instance."""
    lines = ",\n".join("  " + json.dumps(row) for row in sorted(rows, key=lambda r: r["seed"]))
    head = {
        "format": FORMAT,
        "version": VERSION,
        "kind": kind,
        "fluxbed": importlib.metadata.version("fluxbed"),
    }
    text = json.dumps(head)[:-1] + f', "instances": [\n{lines}\n]}}\n'
    path_of(kind).write_text(text, encoding="utf-8")


@click.command()
@click.argument("kind", type=click.Choice(KINDS))
@click.option("--instances", default=200, help="How many.")
@click.option("--limit", default=10.0, help="Seconds for each.")
@click.option("--budget", default=1.0, help="Of them for Flux, which begins.")
@click.option("--work", default=12.0, help="For the phases alone, in 10^6 steps.")
@click.option("--again", is_flag=True, help="Solve those again that are not proven.")
@click.option("--for", "for_s", default=1e9, help="Stop after so many seconds.")
def main(  # noqa: PLR0917 (click's)
    kind: str,
    instances: int,
    limit: float,
    budget: float,
    work: float,
    again: bool,  # noqa: FBT001 (click's)
    for_s: float,
) -> None:
    """Solve instances and save them, one by one."""
    began = time.monotonic()
    rows = {row["seed"]: row for row in load(kind)} if path_of(kind).exists() else {}
    begin = max(rows, default=-1) + 1
    stale = [seed for seed, row in sorted(rows.items()) if again and not row["proven"]]
    for seed in chain(stale, candidates(kind, begin)):
        if (len(rows) >= instances and seed not in rows) or time.monotonic() - began > for_s:
            break
        row, old = solve(kind, seed, limit, budget, int(1e6 * work)), rows.get(seed)
        if kind == "training" and row["first_ns"] < (1 + LEAST_GAP) * row["value_ns"]:
            continue
        if old:
            row["value_ns"] = min(old["value_ns"], row["value_ns"])
            row["bound_ns"] = max(old["bound_ns"], row["bound_ns"])
            row["proven"] = row["value_ns"] <= row["bound_ns"]
        rows[seed] = row
        save(kind, list(rows.values()))
    gaps = [row["value_ns"] / row["bound_ns"] - 1 for row in rows.values()]
    proven = sum(row["proven"] for row in rows.values())
    print(f"{kind}: {len(rows)} instances, {proven} proven, gap of the best known to the bound:")
    print(f"mean {np.mean(gaps):.3%}, worst {max(gaps):.3%}")


if __name__ == "__main__":
    main()
