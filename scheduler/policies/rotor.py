"""RotorNet and its routings: planes that rotate through fixed matchings, whatever the demand.

Parameters of Mellette et al., "RotorNet: A Scalable, Low-complexity, Optical Datacenter Network",
SIGCOMM 2017: a slot of ten reconfiguration delays, so that light is on for 90 % of the time. The
matchings (circulant shifts; on duplex planes tournament rounds) are dealt to the planes' ports in
runs, in order; where they do not fill the last run, the deal starts again with the first ones, so
that no slot is spare: with 8 nodes on 2 planes the shifts are 1 2 3 4 and 5 6 7 1. Planes whose
switches know a few matchings only (topology `rotor`) turn through these, in their order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from scheduler.policies.base import Planner
from scheduler.policies.cycles import equal_slots, slot_length
from scheduler.policies.matchings import alike, deal, in_step
from topologies.matchings import node_matchings

if TYPE_CHECKING:
    from scheduler.model.problem import Problem
    from scheduler.model.program import TimedProgram

__all__ = ["RotorDirect", "RotorLb", "RotorVlb"]


class RotorDirect(Planner):
    """RotorNet, direct: planes rotate through fixed matchings and data waits for its circuit."""

    name: ClassVar[str] = "rotor-direct"
    routing: ClassVar[Literal["direct", "vlb", "rotorlb"]] = "direct"

    def __init__(self, slot_ns: int | None = None, phase_ns: int = 0) -> None:
        self.slot_ns = slot_ns
        self.phase_ns = phase_ns

    def plan(self, problem: Problem) -> TimedProgram:
        """Deal the matchings to the planes; raises `UsageError` where they cannot rotate."""
        fabric = problem.fabric
        free = {
            key: [k for k in planes if fabric.planes[k].matchings is None]
            for key, planes in alike(fabric, self.name).items()
        }
        slot_ns = slot_length(fabric, self.slot_ns, self.name)

        def every(members: tuple[int, ...], duplex: bool) -> list[tuple[int, ...]]:  # noqa: FBT001 (of the planes)
            return node_matchings(len(members), duplex=duplex)

        fixed = {k: list(p.matchings) for k, p in enumerate(fabric.planes) if p.matchings}
        rotations = in_step(
            deal(fabric, {key: planes for key, planes in free.items() if planes}, every) | fixed
        )
        return equal_slots(fabric, rotations, slot_ns, self.phase_ns, self.routing)


class RotorVlb(RotorDirect):
    """RotorNet with Valiant load balancing: data without a circuit goes through a random relay."""

    name: ClassVar[str] = "rotor-vlb"
    routing: ClassVar[Literal["direct", "vlb", "rotorlb"]] = "vlb"


class RotorLb(RotorDirect):
    """RotorNet with RotorLB: relays accept only what they can deliver in time."""

    name: ClassVar[str] = "rotorlb"
    routing: ClassVar[Literal["direct", "vlb", "rotorlb"]] = "rotorlb"
