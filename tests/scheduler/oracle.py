"""The committed instances with their optima, `tests/oracle/*.json`, and how they are made again."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scheduler.dispatch.simulator import iteration_ends
from tests.scheduler.instances import random_dag, random_fabric, training
from topologies import rails

if TYPE_CHECKING:
    from scheduler.model.program import Program
    from scheduler.model.taskgraph import TaskGraph
    from topologies import Fabric

__all__ = ["FORMAT", "KINDS", "VERSION", "instance", "load", "path_of", "period_ns"]

FORMAT: Final = "fluxbed-oracle"
VERSION: Final = 1
KINDS: Final = ("training", "random")
_APART: Final = 1_000_000  # so that a workload's draws and its fabric's are not the same
_ITERATIONS: Final = 600
_SKIP: Final = 500  # the period counts, not how it is reached


def path_of(kind: str) -> Path:
    """Return the file of the instances of `kind`."""
    return Path(__file__).resolve().parent.parent / "oracle" / f"{kind}.json"


def load(kind: str) -> list[dict[str, Any]]:
    """Read the instances of `kind`: seed, value_ns, bound_ns, proven and more."""
    found = json.loads(path_of(kind).read_text(encoding="utf-8"))
    assert (found["format"], found["version"], found["kind"]) == (FORMAT, VERSION, kind)
    rows: list[dict[str, Any]] = found["instances"]
    return rows


def instance(kind: str, seed: int) -> tuple[TaskGraph, Fabric]:
    """Make an instance again from its seed."""
    if kind == "training":
        graph = training(seed, layers=3, uneven=(0.0,) * 5 + (0.1,))
        return graph, random_fabric(_APART + seed, graph.nodes, plain=True)
    rng = random.Random(seed)  # noqa: S311 (a workload, not a secret)
    nodes, tasks = rng.randint(3, 6), rng.randint(12, 90)
    delay_ns = rng.choice([1_000, 10_000, 100_000, 1_000_000])
    duplex = rng.random() < 0.2
    fabric = rails(nodes=nodes, planes=rng.randint(1, 3), delay_ns=delay_ns, duplex=duplex)
    return random_dag(seed, nodes=nodes, tasks=tasks), fabric


def period_ns(graph: TaskGraph, fabric: Fabric, program: Program) -> float:
    """Execute `program` and return the time an iteration takes in the long run."""
    ends = iteration_ends(graph, fabric, program, iterations=_ITERATIONS)
    return float(ends[-1] - ends[_SKIP - 1]) / (_ITERATIONS - _SKIP)
