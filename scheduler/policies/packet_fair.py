"""What packet switches of the same ports would do: every port shared fairly, nothing reordered."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar, Final

from scheduler.model.program import TimedProgram
from scheduler.policies.base import Planner

if TYPE_CHECKING:
    from scheduler.model.problem import Problem
    from topologies.fabric import Fabric

__all__ = ["PacketFair"]

_PERIOD_NS: Final = 10**9  # of nothing: a program is looked at once a period


class PacketFair(Planner):
    """Reference: packet switches in place of the optical ones, ports shared max-min fairly.

    Between two nodes messages are first in, first out, and spread over all planes: the fluid limit
    of fair congestion control with ideal packet spraying. A timed program without a slot says that:
    on packet planes its queues are served at any time.
    """

    name: ClassVar[str] = "packet-fair"
    reference: ClassVar[bool] = True

    def fabric_for(self, fabric: Fabric) -> Fabric:
        """Return `fabric` with packet switches for planes, and no controller to wait for."""
        planes = tuple(
            dataclasses.replace(
                plane, kind="eps", delay_ns=0, duplex=False, all_stop=False, matchings=None
            )
            for plane in fabric.planes
        )
        return dataclasses.replace(fabric, planes=planes, control_ns=0, notify_ns=0)

    def plan(self, problem: Problem) -> TimedProgram:
        """Return the program that plans nothing."""
        return TimedProgram(period_ns=_PERIOD_NS, planes=((),) * len(problem.fabric.planes))
