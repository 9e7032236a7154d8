"""Sunflow: every flow gets one circuit, once, for as long as it lasts.

Huang, Sun and Ng, "Sunflow: Efficient Optical Circuit Scheduling for Coflows", CoNEXT 2016: the
switch is not all-stop, circuits are not preempted, and a flow's circuit is made at the earliest
time at which both its ports are free; that takes at most twice as long as the best for one coflow.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, ClassVar

from scheduler.policies.base import Planner
from scheduler.policies.coflows import PacketPlanes, Sequence, flows, phases, switches

if TYPE_CHECKING:
    from scheduler.model.problem import Problem
    from scheduler.model.program import OrderedProgram
    from scheduler.policies.coflows import Pair, Switch

__all__ = ["Sunflow"]


class Sunflow(Planner):
    """Sunflow: one circuit per flow of a phase, never preempted, as early as its ports are free.

    Coflows are the workload's phases and follow each other as it needs them, so the program is
    ordered: when a phase begins is known only when it does. A flow is all a phase sends from one
    node to another. Flows are placed longest first, each on the plane where it ends first; where
    its circuit stands already it costs no delay. Computation is not looked at.
    """

    name: ClassVar[str] = "sunflow"

    def plan(self, problem: Problem) -> OrderedProgram:
        """Place every flow; raises `UsageError` where a message has no way."""
        graph, fabric = problem.graph, problem.fabric
        sequence, optical = Sequence(fabric), switches(fabric)
        electric = PacketPlanes(fabric)
        standing: list[dict[tuple[str, int], Pair]] = [{} for _ in optical]
        for messages in phases(graph):
            sequence.next_phase()
            found = flows(graph, messages)
            size = {pair: int(graph.size_bytes[listed].sum()) for pair, listed in found.items()}
            free: list[defaultdict[tuple[str, int], float]] = [defaultdict(float) for _ in optical]
            for pair in sorted(found, key=lambda pair: -size[pair]):
                choices = [
                    (_end_ns(switch, pair, size[pair], free[k], standing[k]), k)
                    for k, switch in enumerate(optical)
                    if switch.joins(pair)
                ]
                if not choices:
                    sequence.add(*electric.route(pair, self.name), found[pair])
                    continue
                end_ns, k = min(choices)
                for half in _halves(optical[k], pair):
                    free[k][half] = end_ns
                    standing[k][half] = pair
                sequence.add(*optical[k].circuit(pair), found[pair])
        return sequence.program()


def _halves(switch: Switch, pair: Pair) -> list[tuple[str, int]]:
    """Return what a circuit holds: outputs and inputs of nodes, on duplex planes both of both."""
    one_way = [("out", pair[0]), ("in", pair[1])]
    return [*one_way, ("out", pair[1]), ("in", pair[0])] if switch.duplex else one_way


def _end_ns(
    switch: Switch,
    pair: Pair,
    size_bytes: int,
    free: defaultdict[tuple[str, int], float],
    standing: dict[tuple[str, int], Pair],
) -> float:
    """Return when the flow would end, ns after the phase began."""
    halves = _halves(switch, pair)
    begin = max(free[half] for half in halves)
    same = {pair, pair[::-1]} if switch.duplex else {pair}
    stands = all(standing.get(half) in same for half in halves)
    return begin + (0 if stands else switch.delay_ns) + size_bytes * 8e9 / switch.rate_bps
