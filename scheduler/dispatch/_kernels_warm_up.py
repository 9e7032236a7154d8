"""Compiling every kernel of the dispatcher and the simulator ahead of time: no kernel here."""

from __future__ import annotations

import numpy as np

from scheduler.kernel import register_warm_up
from scheduler.model.program import Entry, OrderedProgram, Slot, TimedProgram
from scheduler.model.taskgraph import MESSAGE, Arcs, TaskGraph
from topologies import Fabric, Plane, rails

__all__ = ["warm_up_dispatch"]


@register_warm_up
def warm_up_dispatch() -> None:
    """Simulate one message in every way."""
    from scheduler.dispatch.simulator import simulate

    nothing, zero, one = np.zeros(0, np.int64), np.zeros(1, np.int64), np.ones(1, np.int64)
    graph = TaskGraph(
        nodes=2,
        kind=np.full(1, MESSAGE),
        op=zero,
        rank=-one,
        stream=-one,
        position=-one,
        src=zero,
        dst=one,
        size_bytes=one,
        dur_ns=zero,
        group=zero,
        step=zero,
        arcs=Arcs(before=nothing, after=nothing, distance=nothing, origin=nothing),
    )
    fabric = rails(nodes=2, planes=1)
    simulate(graph, fabric, OrderedProgram.from_entries([[Entry(0, 1, (0,))]]), iterations=1)
    slots = ((Slot(0, (1, 0)),),)
    simulate(graph, fabric, TimedProgram(period_ns=10**6, planes=slots), iterations=1)
    two_hops = TimedProgram(period_ns=10**6, planes=slots, routing="vlb")
    simulate(graph, fabric, two_hops, iterations=1)
    simulate(graph, fabric, two_hops, iterations=1, quantum_bytes=1)
    packets = Fabric(nodes=2, planes=(Plane(node_of=(0, 1), rate_bps=10**9, kind="eps"),))
    simulate(graph, packets, TimedProgram(period_ns=10**6, planes=((),)), iterations=1)
