"""A frame that never arrives: whose fault it is said to be."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from scheduler.model.program import OrderedProgram, TimedProgram
from testbed.emulator import _kernels_engine_columns as e
from testbed.emulator import engine
from topologies import CheckError, MachineError

if TYPE_CHECKING:
    from scheduler.model.program import Program

ROTATION = TimedProgram(period_ns=10, planes=((),))
ORDER = OrderedProgram.from_entries([[]])
GUARD_NS = 40_000


@pytest.mark.parametrize(
    ("program", "late_us", "kind"),
    [
        (ROTATION, 900.0, MachineError),
        (ROTATION, 30.0, CheckError),  # in time, so something else broke its circuit
        (ROTATION, None, CheckError),
        (ORDER, 900.0, CheckError),  # whose circuits wait for their frames
    ],
)
def test_only_a_late_frame_of_a_rotation_is_the_machines_fault(
    program: Program, late_us: float | None, kind: type[Exception]
) -> None:
    layout: Any = SimpleNamespace(program=program, graph=SimpleNamespace(tasks=10))
    tables: Any = SimpleNamespace(
        counters=np.zeros(e.COUNTERS, np.int64), numbers=np.zeros(e.NUMBERS, np.int64)
    )
    tables.counters[e.CULPRIT] = 23
    tables.numbers[e.N_GUARD] = GUARD_NS
    drops = {f"{cause}_frames": 20 for cause in ("dark", "unconnected", "conflict")}
    error = engine._lost(layout, tables, drops, {"lateness_max_us": late_us})
    assert type(error) is kind
    assert str(error).startswith("iteration 2: a frame of message 3 was lost 20 times, because ")
