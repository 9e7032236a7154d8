"""What a packet network would do: the reference every optical schedule is held against."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar

from scheduler.policies.flux import Flux

if TYPE_CHECKING:
    from topologies.fabric import Fabric

__all__ = ["PacketIdeal"]


class PacketIdeal(Flux):
    """Reference: Flux on the same fabric if circuits changed in no time, messages still atomic."""

    name: ClassVar[str] = "packet-ideal"
    reference: ClassVar[bool] = True

    def fabric_for(self, fabric: Fabric) -> Fabric:
        """Return `fabric` without reconfiguration delay, command travel or notification delay."""
        planes = tuple(
            dataclasses.replace(plane, delay_ns=0, matchings=None) for plane in fabric.planes
        )
        return dataclasses.replace(fabric, planes=planes, control_ns=0, notify_ns=0)
