"""What a scheduler is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scheduler.model.taskgraph import TaskGraph
    from topologies.fabric import Fabric

__all__ = ["Problem"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One iteration of a workload, expanded for a fabric, and how hard to think about it.

    The same `seed` gives the same plan. `budget_s` bounds the planner's wall time; a planner that
    is done earlier returns earlier. `lookahead_ns` is how much before a predicted end a circuit may
    be requested.
    """

    graph: TaskGraph
    fabric: Fabric
    seed: int = 0
    budget_s: float = 1.0
    lookahead_ns: int = 0
