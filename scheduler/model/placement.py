"""Which node each rank is on, and whether that agrees with where the workload was recorded."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from topologies.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scheduler.model.workload import Workload
    from topologies.fabric import Fabric

__all__ = ["place", "sharing_note"]


def place(
    workload: Workload, fabric: Fabric, rank_to_node: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Return the node of every rank: `rank_to_node` checked, or the nodes filled rank by rank.

    Raises `UsageError` where ranks have no node.
    """
    if rank_to_node is None:
        gpus = fabric.gpus_per_node
        if fabric.nodes * gpus < workload.world:
            raise UsageError(
                f"{fabric.nodes} nodes for {workload.world} ranks"
                + (f", {gpus} on each" if gpus > 1 else ""),
                fabric.name or "fabric",
                "every rank needs a node",
                f"use nodes={-(-workload.world // gpus)} or say which ranks share a node",
            )
        return tuple(rank // gpus for rank in range(workload.world))
    placement = tuple(int(node) for node in rank_to_node)
    if len(placement) != workload.world:
        raise UsageError(
            f"{len(placement)} ranks are placed",
            "rank_to_node",
            f"the workload has {workload.world}",
            "give one node per rank",
        )
    for rank, node in enumerate(placement):
        if not 0 <= node < fabric.nodes:
            raise UsageError(
                f"rank {rank} is placed on node {node}",
                "rank_to_node",
                f"the nodes are 0 to {fabric.nodes - 1}",
                "correct the placement",
            )
    return placement


def sharing_note(workload: Workload, fabric: Fabric) -> str | None:
    """Return a sentence for people when recorded ranks shared hosts and the fabric splits them.

    None where nothing contradicts: the placement is not known, no host was shared, or the ranks of
    every host are on one node.
    """
    hosts = workload.placement or {}
    if not hosts or fabric.nodes * fabric.gpus_per_node < workload.world:
        return None
    nodes = place(workload, fabric)
    pairs = {(host, nodes[rank]) for rank, host in hosts.items() if rank < workload.world}
    split = Counter(host for host, _ in pairs)
    if max(split.values(), default=0) < 2:  # noqa: PLR2004 (nodes that hold ranks of one host)
        return None
    most = max(Counter(hosts.values()).values())
    remedy = f": servers,gpus={most} keeps it off them" if most < workload.world else ""
    return (
        f"note: up to {most} ranks of the trace ran on one host, and this topology puts them on "
        f"several nodes, so what they exchanged inside it goes over the planes{remedy}"
    )
