"""A topology of one's own: pods of nodes on an optical switch each, and one that joins the pods.

    fluxbed topologies show docs/my_fabric.py:pods,nodes=8,pod_nodes=4
    fluxbed simulate TRACE -t docs/my_fabric.py:pods,pod_nodes=4,delay=20us -s flux

The command line turns the keyword parameters into options: `rate_bps` is written `rate=800Gbps` and
`delay_ns` `delay=20us`. `nodes` may be left out where a workload says how many ranks there are.
"""

from __future__ import annotations

import fluxbed


def pods(
    *,
    nodes: int,
    pod_nodes: int = 4,
    rate_bps: int = 800 * 10**9,
    delay_ns: int = 10_000,
    spine_delay_ns: int = 100_000,
) -> fluxbed.Fabric:
    """Switches of `pod_nodes` nodes each, and a slower spine with one port for every node."""
    inside = [
        fluxbed.Plane(
            node_of=tuple(range(first, min(first + pod_nodes, nodes))),
            rate_bps=rate_bps,
            delay_ns=delay_ns,
        )
        for first in range(0, nodes, pod_nodes)
    ]
    spine = fluxbed.Plane(node_of=tuple(range(nodes)), rate_bps=rate_bps, delay_ns=spine_delay_ns)
    return fluxbed.Fabric(nodes=nodes, planes=(*inside, spine))
