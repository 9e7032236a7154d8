"""`hybrid`: optical planes for what is heavy, and a packet plane for the rest."""

from __future__ import annotations

import dataclasses

from topologies.fabric import Fabric, Plane
from topologies.rails import rails

__all__ = ["hybrid"]


def hybrid(
    *,
    nodes: int,
    planes: int = 2,
    rate_bps: int = 800 * 10**9,
    packet_rate_bps: int = 100 * 10**9,
    delay_ns: int = 100_000,
    duplex: bool = False,
    all_stop: bool = False,
    control_ns: int = 0,
    notify_ns: int = 0,
    latency_ns: int = 0,
) -> Fabric:
    """Optical planes join all nodes, and a slower packet plane does too, without any circuit.

    After Helios (Farrington et al., SIGCOMM 2010) and c-Through (Wang et al., SIGCOMM 2010). The
    packet plane is the last one; `planes` counts the optical ones.

    >>> [plane.kind for plane in hybrid(nodes=8).planes]
    ['ocs', 'ocs', 'eps']
    """
    optical = rails(
        nodes=nodes,
        planes=planes,
        rate_bps=rate_bps,
        delay_ns=delay_ns,
        duplex=duplex,
        all_stop=all_stop,
        control_ns=control_ns,
        notify_ns=notify_ns,
        latency_ns=latency_ns,
    )
    packet = Plane(node_of=tuple(range(nodes)), rate_bps=packet_rate_bps, kind="eps")
    return dataclasses.replace(optical, planes=(*optical.planes, packet))
