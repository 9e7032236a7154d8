"""The simulator held against a replay: every task's times, to the nanosecond."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scheduler.dispatch.simulator import simulate
from topologies import StalledError

if TYPE_CHECKING:
    from scheduler.model.program import Program
    from scheduler.model.taskgraph import TaskGraph
    from scheduler.model.timeline import Timeline
    from tests.scheduler.replay_parts import Replay
    from topologies import Fabric

__all__ = ["simulated_like", "times"]


def times(timeline: Timeline) -> list[list[int]]:
    return [timeline.ready_ns.tolist(), timeline.start_ns.tolist(), timeline.end_ns.tolist()]


def simulated_like(
    other: Replay,
    graph: TaskGraph,
    fabric: Fabric,
    program: Program,
    *,
    iterations: int,
    **options: int,
) -> Timeline | None:
    """Simulate what was replayed, and compare; None where the replay, and so this, stalled."""
    total = range(iterations * graph.tasks)
    if len(other.end) < len(total):
        with pytest.raises(StalledError):
            simulate(graph, fabric, program, iterations=iterations, **options)
        return None
    timeline = simulate(graph, fabric, program, iterations=iterations, **options)
    assert times(timeline) == [
        [found[t] for t in total] for found in (other.ready, other.start, other.end)
    ]
    return timeline
