"""`rotor`: switches that know a few matchings each, so that it takes several to join all nodes."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from topologies.errors import FabricError
from topologies.matchings import deal_runs, node_matchings
from topologies.rails import rails

if TYPE_CHECKING:
    from topologies.fabric import Fabric

__all__ = ["rotor"]


def rotor(
    *,
    nodes: int,
    matchings: int = 4,
    rate_bps: int = 800 * 10**9,
    delay_ns: int = 20_000,
    duplex: bool = False,
    control_ns: int = 0,
    notify_ns: int = 0,
    latency_ns: int = 0,
) -> Fabric:
    """As many rotor switches as it takes for a few fixed matchings each to join every pair.

    After RotorNet (Mellette et al., SIGCOMM 2017), whose switches turn in 20 us. `nodes` - 1
    matchings join every pair once (circulant shifts; for pairs of ports, `duplex`, the rounds of a
    tournament, `nodes` of them for an odd number), so there are ceil of that / `matchings` planes,
    each `all_stop`: a rotor turns as a whole. They are dealt to the planes in runs, as evenly as
    can be, the first ones once more where they do not fill the last run. A plane holds its own
    matchings (`Plane.matchings`) and nothing else.

    >>> fabric = rotor(nodes=4, matchings=2)
    >>> [plane.matchings for plane in fabric.planes]
    [((1, 2, 3, 0), (2, 3, 0, 1)), ((3, 0, 1, 2), (1, 2, 3, 0))]
    """
    if matchings < 1:
        why = "a rotor switch has one matching at least"
        raise FabricError(f"matchings={matchings}", "rotor", why, "correct matchings")
    every = node_matchings(nodes, duplex=duplex)
    planes = -(-len(every) // matchings)
    alike = rails(
        nodes=nodes,
        planes=planes,
        rate_bps=rate_bps,
        delay_ns=delay_ns,
        duplex=duplex,
        all_stop=True,
        control_ns=control_ns,
        notify_ns=notify_ns,
        latency_ns=latency_ns,
    )
    return dataclasses.replace(
        alike,
        planes=tuple(
            dataclasses.replace(plane, matchings=tuple(every[number] for number in run))
            for plane, run in zip(alike.planes, deal_runs(len(every), planes), strict=True)
        ),
    )
