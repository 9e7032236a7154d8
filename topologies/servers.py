"""`servers`: a node is a server of several GPUs behind a scale-up link, with a rail for each."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from topologies.rails import rails

if TYPE_CHECKING:
    from topologies.fabric import Fabric

__all__ = ["servers"]


def servers(
    *,
    nodes: int,
    gpus: int = 8,
    planes: int | None = None,
    rate_bps: int = 800 * 10**9,
    scale_up_bps: int = 3600 * 10**9,
    delay_ns: int = 100_000,
    duplex: bool = False,
    all_stop: bool = False,
    control_ns: int = 0,
    notify_ns: int = 0,
    latency_ns: int = 0,
) -> Fabric:
    """Every node is a server of several GPUs behind a scale-up link, with a rail for each GPU.

    Ranks fill servers in order: rank r is GPU r % gpus of node r // gpus. Between ranks of one
    server data take the scale-up link, at 3600 Gbps unless told otherwise (NVLink 4: 18 links of
    25 GB/s each way), any number of them side by side. To other servers they take any rail, one
    optical switch each (`planes`, as many as GPUs): the detour of a GPU to another's rail over the
    scale-up link, NCCL's PXN, is not charged. A NIC account is its server's.

    >>> fabric = servers(nodes=4, gpus=8)
    >>> len(fabric.planes), fabric.gpus_per_node
    (8, 8)
    """
    joined = rails(
        nodes=nodes,
        planes=gpus if planes is None else planes,
        rate_bps=rate_bps,
        delay_ns=delay_ns,
        duplex=duplex,
        all_stop=all_stop,
        control_ns=control_ns,
        notify_ns=notify_ns,
        latency_ns=latency_ns,
    )
    return dataclasses.replace(joined, gpus_per_node=gpus, scale_up_bps=scale_up_bps)
