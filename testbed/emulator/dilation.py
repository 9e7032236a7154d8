"""Dilation: how much slower than the fabric the emulation runs, and how coarse its frames are.

wall = virtual * factor. The rate at which frames go over a link on the wall is what this machine
can carry and does not depend on the factor; one frame then stands for fewer virtual bytes the
larger the factor is. `choose` takes the smallest factor that keeps the emulation honest.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from scheduler.model.program import Slot, TimedProgram

if TYPE_CHECKING:
    from scheduler.model.program import Program
    from scheduler.model.taskgraph import TaskGraph
    from topologies.fabric import Fabric

__all__ = ["Dilation", "dilate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dilation:
    """What one execution is slowed down by.

    `wall_bps` is what the fastest port carries on the wall, `frame_bytes` the data of a full frame,
    which stands for `quantum_bytes` virtual bytes; `bytes_per_wall_byte` is their ratio. `guard_ns`
    (virtual) is how long before the end of a slot the last frame leaves. `bound_by` names what
    made the factor as large as it is. `expected_wall_s` is None where nothing was predicted.
    """

    factor: float
    bytes_per_wall_byte: float
    wall_bps: int
    frame_bytes: int
    quantum_bytes: int
    guard_ns: int
    bound_by: str
    expected_wall_s: float | None = None


def dilate(
    graph: TaskGraph, fabric: Fabric, program: Program, factor: float
) -> tuple[TaskGraph, Fabric, Program]:
    """Return the same three, `factor` times slower: durations longer and rates lower.

    Whole ns and bit/s: what is rounded is below 1e-8 of any rate of interest.
    """

    def slower(time_ns: int) -> int:
        return round(time_ns * factor)

    slow_graph = dataclasses.replace(
        graph, dur_ns=np.rint(np.asarray(graph.dur_ns) * factor).astype(np.int64)
    )
    planes = tuple(
        dataclasses.replace(
            plane,
            rate_bps=max(1, round(plane.rate_bps / factor)),
            delay_ns=slower(plane.delay_ns),
        )
        for plane in fabric.planes
    )
    slow_fabric = dataclasses.replace(
        fabric,
        planes=planes,
        control_ns=slower(fabric.control_ns),
        notify_ns=slower(fabric.notify_ns),
        latency_ns=slower(fabric.latency_ns),
    )
    if isinstance(program, TimedProgram):
        program = dataclasses.replace(
            program,
            period_ns=slower(program.period_ns),
            phase_ns=min(slower(program.phase_ns), slower(program.period_ns) - 1),
            guard_ns=slower(program.guard_ns),
            planes=tuple(
                tuple(Slot(slower(slot.offset_ns), slot.dst_ports) for slot in slots)
                for slots in program.planes
            ),
        )
    return slow_graph, slow_fabric, program
