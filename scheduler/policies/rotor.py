"""RotorNet and its routings: planes that rotate through fixed matchings, whatever the demand.

Parameters of Mellette et al., "RotorNet: A Scalable, Low-complexity, Optical Datacenter Network",
SIGCOMM 2017: a slot of ten reconfiguration delays, so that light is on for 90 % of the time. The
matchings (circulant shifts; on duplex planes tournament rounds) are dealt to the planes' ports in
runs, in order; where they do not fill the last run, the deal starts again with the first ones, so
that no slot is spare: with 8 nodes on 2 planes the shifts are 1 2 3 4 and 5 6 7 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, Literal

from scheduler.model.program import Slot, TimedProgram
from scheduler.policies.base import Planner
from scheduler.policies.matchings import node_matchings, port_matching, ports_by_rank
from topologies.errors import UsageError

if TYPE_CHECKING:
    from scheduler.model.problem import Problem
    from topologies.fabric import Fabric

__all__ = ["RotorDirect", "RotorLb", "RotorVlb"]

_DELAYS_PER_SLOT: Final = 10
_SLOT_WITHOUT_DELAY_NS: Final = 10_000  # tau = 0 gives no scale: as for tau = 1 us


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
        optical = [k for k, plane in enumerate(fabric.planes) if plane.kind == "ocs"]
        if not optical:
            why = "every plane is a packet switch"
            raise UsageError("nothing rotates", self.name, why, "add an ocs plane")
        delay_ns = max(fabric.planes[k].delay_ns for k in optical)
        slot_ns = self.slot_ns or _DELAYS_PER_SLOT * delay_ns or _SLOT_WITHOUT_DELAY_NS
        if slot_ns <= delay_ns:
            why = f"a plane is dark for the first {delay_ns} ns of each slot"
            raise UsageError(f"a slot of {slot_ns} ns", self.name, why, "choose a longer slot")
        rotations = _rotations(fabric, optical)
        length = max(len(rows) for rows in rotations.values())
        slots = tuple(
            tuple(Slot(k * slot_ns, row) for k, row in enumerate(rotations.get(plane, ())))
            for plane in range(len(fabric.planes))
        )
        return TimedProgram(
            period_ns=length * slot_ns,
            phase_ns=self.phase_ns % (length * slot_ns),
            planes=slots,
            routing=self.routing,
        )


class RotorVlb(RotorDirect):
    """RotorNet with Valiant load balancing: data without a circuit goes through a random relay."""

    name: ClassVar[str] = "rotor-vlb"
    routing: ClassVar[Literal["direct", "vlb", "rotorlb"]] = "vlb"


class RotorLb(RotorDirect):
    """RotorNet with RotorLB: relays accept only what they can deliver in time."""

    name: ClassVar[str] = "rotorlb"
    routing: ClassVar[Literal["direct", "vlb", "rotorlb"]] = "rotorlb"


def _rotations(fabric: Fabric, optical: list[int]) -> dict[int, list[tuple[int, ...]]]:
    """Return each optical plane's matchings of ports, equally many for planes that join alike."""
    alike: dict[tuple[tuple[int, ...], bool], list[int]] = {}
    for k in optical:
        plane = fabric.planes[k]
        alike.setdefault((tuple(sorted(set(plane.node_of))), plane.duplex), []).append(k)
    rotations: dict[int, list[tuple[int, ...]]] = {}
    for (members, duplex), planes in alike.items():
        every = node_matchings(len(members), duplex=duplex)
        columns = {k: ports_by_rank(fabric.planes[k], f"plane {k}") for k in planes}
        length = -(-len(every) // sum(len(c) for c in columns.values()))
        dealt = 0
        for k in planes:
            runs = []
            for _ in columns[k]:
                runs.append([every[(dealt + i) % len(every)] for i in range(length)])
                dealt += length
            rotations[k] = [
                port_matching(fabric.planes[k], columns[k], [run[i] for run in runs])
                for i in range(length)
            ]
    longest = max(len(rows) for rows in rotations.values())
    # Planes of different lengths share one period: a shorter rotation goes on until it is over.
    return {k: [rows[i % len(rows)] for i in range(longest)] for k, rows in rotations.items()}
