"""What a plan did not know: computations that last longer or shorter, and sizes that shift.

A perturbed graph is the same graph whose tasks last, and whose messages weigh, something else in
each iteration. The numbers follow from a seed alone: simulator, engine and check make the same.

>>> perturbation = Perturbation(stragglers=((3, 1.5),))
>>> str(perturbation)
'rank 3 takes 1.5 times as long'
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from scheduler.model.taskgraph import COMPUTE, MESSAGE
from topologies.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scheduler.model.taskgraph import Int64s, TaskGraph
    from scheduler.model.workload import Workload

__all__ = ["UNPERTURBED", "Perturbation", "Variation"]

_SHIFTING: Final = "all_to_all"
_JITTER, _SKEW = 0, 1  # streams of random numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Perturbation:
    """How an execution differs from what was planned.

    `jitter` is the standard deviation of the factor that multiplies the duration of a computation,
    drawn anew for every task and iteration: log-normal, mean 1. `stragglers` are (rank, factor):
    all computations of that rank last so many times as long. `skew` is the same measure as `jitter`
    of how popular a destination is in an all-to-all, drawn anew for each and every iteration (what
    experts of a mixture do): a source's bytes are shared out anew, their sum stays. `seed` decides
    what is drawn. Raises `UsageError` for numbers that cannot be.
    """

    jitter: float = 0.0
    seed: int = 0
    stragglers: tuple[tuple[int, float], ...] = ()
    skew: float = 0.0

    def __post_init__(self) -> None:
        for name in ("jitter", "skew"):
            if not 0 <= (value := getattr(self, name)) <= 10:  # noqa: PLR2004 (1000 %)
                why = "a spread lies between 0 and 10, 1000 %"
                raise UsageError(f"{name}={value}", "perturbation", why, f"write {name}=0.1")
        if self.seed < 0:
            why = "a seed is a whole number from 0 on"
            raise UsageError(f"seed={self.seed}", "perturbation", why, "write seed=0")
        for rank, factor in self.stragglers:
            if rank < 0 or not 0 < factor < math.inf:
                what = f"rank {rank} takes {factor} times as long"
                why = "ranks count from 0 and the factor is a positive number"
                raise UsageError(what, "perturbation", why, "write it as 3=1.5")

    def __bool__(self) -> bool:
        return bool(self.jitter or self.stragglers or self.skew)

    def __str__(self) -> str:
        parts = [f"rank {rank} takes {factor:g} times as long" for rank, factor in self.stragglers]
        parts += [
            f"{what} {spread:.4g}, seed {self.seed}"
            for what, spread in (("jitter", self.jitter), ("skew", self.skew))
            if spread
        ]
        return "; ".join(parts) or "none"

    def apply(self, graph: TaskGraph, workload: Workload) -> TaskGraph:
        """Return `graph`, an expansion of `workload`, perturbed; raises `UsageError`.

        There has to be something to perturb: the rank, or an all-to-all.
        """
        if not self:
            return graph
        for rank, _ in self.stragglers:
            if rank >= workload.world:
                what, why = f"there is no rank {rank}", f"the world has {workload.world} ranks"
                raise UsageError(what, "perturbation", why, "name one of them")
        kinds = {op.id: getattr(op, "kind", "") for op in workload.operations}
        shifts = [op for op, kind in kinds.items() if kind == _SHIFTING]
        skewed = (graph.kind == MESSAGE) & np.isin(graph.op, np.asarray(shifts, np.int64))
        if self.skew and not skewed.any():
            what, why = f"skew={self.skew:g}", "the workload has no all_to_all to skew"
            raise UsageError(what, "perturbation", why, "leave it out, or use one with experts")
        return dataclasses.replace(graph, variation=Variation(self, skewed))


@dataclass(frozen=True, slots=True)
class Variation:
    """A perturbation of one graph: `skewed`, (tasks,), says which of its messages shift.

    The graph's iteration i is iteration `first` + i of what is drawn.
    """

    perturbation: Perturbation
    skewed: NDArray[np.bool_]
    first: int = 0

    def durations_ns(self, graph: TaskGraph, iteration: int) -> Int64s:
        """Return how long each task lasts in an iteration, shape (tasks,)."""
        asked = self.perturbation
        factor = _factors(asked.jitter, [asked.seed, _JITTER, self.first + iteration], graph.tasks)
        for rank, slower in asked.stragglers:
            factor[graph.rank == rank] *= slower
        changed = np.rint(graph.dur_ns * factor).astype(np.int64)
        return np.where(graph.kind == COMPUTE, changed, graph.dur_ns).astype(np.int64)

    def sizes_bytes(self, graph: TaskGraph, iteration: int) -> Int64s:
        """Return the size of each message in an iteration, shape (tasks,)."""
        sizes, asked = graph.size_bytes.copy(), self.perturbation
        rows = np.flatnonzero(self.skewed)
        if not asked.skew or not len(rows):
            return sizes
        operations, op = np.unique(graph.op[rows], return_inverse=True)
        drawn = [asked.seed, _SKEW, self.first + iteration]
        popular = _factors(asked.skew, drawn, len(operations) * graph.nodes)
        weight = popular[op * graph.nodes + graph.dst[rows]]
        source = op * graph.nodes + graph.src[rows]
        total = np.bincount(source, sizes[rows])
        weighed = np.bincount(source, sizes[rows] * weight)
        shifted = sizes[rows] * weight * (total / np.maximum(weighed, 1e-300))[source]
        sizes[rows] = np.maximum(np.rint(shifted), 1).astype(np.int64)
        return sizes


def _factors(spread: float, seed: list[int], count: int) -> NDArray[np.float64]:
    """Draw log-normal factors of mean 1 and standard deviation `spread`."""
    if not spread:
        return np.ones(count)
    variance = math.log1p(spread * spread)
    drawn = np.random.default_rng(seed).standard_normal(count)
    return np.exp(math.sqrt(variance) * drawn - variance / 2)


UNPERTURBED: Final = Perturbation()
