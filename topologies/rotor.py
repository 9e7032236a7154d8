"""`rotor`: switches that know a few matchings each, so that it takes several to join all nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topologies.errors import FabricError
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
    matchings join every pair once (for pairs of ports, `duplex`, an odd number takes `nodes`), so
    there are ceil of that / `matchings` planes, each `all_stop`: a rotor turns as a whole. Which
    matchings a plane turns through is for the schedulers `rotor-direct`, `rotor-vlb` and `rotorlb`
    to say, and they deal them to the planes in runs; to others the planes are rails that could make
    any matching, which such a switch could not.

    >>> len(rotor(nodes=64, matchings=16).planes)
    4
    """
    if matchings < 1:
        why = "a rotor switch has one matching at least"
        raise FabricError(f"matchings={matchings}", "rotor", why, "correct matchings")
    every = nodes - 1 + (nodes % 2 if duplex else 0)
    return rails(
        nodes=nodes,
        planes=-(-every // matchings),
        rate_bps=rate_bps,
        delay_ns=delay_ns,
        duplex=duplex,
        all_stop=True,
        control_ns=control_ns,
        notify_ns=notify_ns,
        latency_ns=latency_ns,
    )
