"""`single`: one large optical switch, several ports per node."""

from __future__ import annotations

from topologies.fabric import Fabric, Plane

__all__ = ["single"]


def single(
    *,
    nodes: int,
    ports: int = 2,
    rate_bps: int = 800 * 10**9,
    delay_ns: int = 100_000,
    duplex: bool = False,
    all_stop: bool = False,
    control_ns: int = 0,
    notify_ns: int = 0,
    latency_ns: int = 0,
) -> Fabric:
    """One large optical switch joins all nodes, with several ports each.

    Port p belongs to node p % nodes, so the first `nodes` ports are numbered as the nodes are. A
    node may talk to as many others at once as it has ports, or to one over all of them. What a
    large switch costs shows with `all_stop`: then every change darkens all ports of all nodes.

    >>> single(nodes=8, ports=4).ports_of(0, 5)
    (5, 13, 21, 29)
    """
    plane = Plane(
        node_of=tuple(range(nodes)) * ports,
        rate_bps=rate_bps,
        delay_ns=delay_ns,
        duplex=duplex,
        all_stop=all_stop,
    )
    return Fabric(
        nodes=nodes,
        planes=(plane,),
        control_ns=control_ns,
        notify_ns=notify_ns,
        latency_ns=latency_ns,
    )
