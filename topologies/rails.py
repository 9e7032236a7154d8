"""`rails`: every plane joins all nodes, one port each (the paper's fabric, arXiv 2609.25949)."""

from __future__ import annotations

from topologies.fabric import Fabric, Plane

__all__ = ["rails"]


def rails(
    *,
    nodes: int,
    planes: int = 2,
    rate_bps: int = 800 * 10**9,
    delay_ns: int = 100_000,
    duplex: bool = False,
    all_stop: bool = False,
    control_ns: int = 0,
    notify_ns: int = 0,
    latency_ns: int = 0,
) -> Fabric:
    """Every plane is an optical switch that joins all nodes; port i of each belongs to node i.

    >>> rails(nodes=8).node_of(1, 5)
    5
    """
    plane = Plane(
        node_of=tuple(range(nodes)),
        rate_bps=rate_bps,
        delay_ns=delay_ns,
        duplex=duplex,
        all_stop=all_stop,
    )
    return Fabric(
        nodes=nodes,
        planes=(plane,) * planes,
        control_ns=control_ns,
        notify_ns=notify_ns,
        latency_ns=latency_ns,
    )
