"""Faults as the engine carries them out: rows of numbers before time zero, effects afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from scheduler.model.program import TimedProgram
from scheduler.model.timeline import NONE
from testbed.emulator import _kernels_engine_columns as e
from testbed.files.summary import FaultEffect
from topologies.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scheduler.model.program import Program
    from scheduler.model.taskgraph import Int64s
    from testbed.files.faults import Fault
    from topologies.fabric import Fabric

__all__ = ["RETRY_NS", "effects_of", "fault_rows", "patience", "require_bearable"]

RETRY_NS: Final = 100_000
"""When a sender that hears nothing goes back, virtual; 1 ms on the wall at the least."""
_KINDS: Final = {
    "stuck-dark": e.OUTAGE,
    "lost-plane": e.OUTAGE,
    "slow-plane": e.SLOW,
    "paused-host": e.PAUSE,
    "frame-loss": e.SPOIL,
    "late-commands": e.COMMANDS,
    "late-lock": e.LOCKS,
}
_DISTS: Final = {
    None: e.FIXED,
    "fixed": e.FIXED,
    "uniform": e.UNIFORM,
    "exponential": e.EXPONENTIAL,
}
_MODULUS: Final = (1 << 31) - 1
_PATIENCE: Final = 10
_SPARE_RETRIES: Final = 2 * e.MOST_TRIES


def fault_rows(faults: Sequence[Fault], fabric: Fabric, factor: float, seed: int) -> Int64s:
    """Return the engine's rows for `faults` on the undilated `fabric`, int64[:, FAULT_COLUMNS].

    Late commands and locks have a row per plane, so that one plane's draws are not another's.
    """
    bases = np.cumsum([0, *(plane.ports for plane in fabric.planes)])
    rows = list(_rows(faults, fabric, bases, factor))
    seeds = np.random.default_rng(seed).integers(1, _MODULUS, len(rows))
    for row, state in zip(rows, seeds.tolist(), strict=True):
        row[e.Q_SEED] = state
    rows.sort(key=lambda row: int(row[e.Q_AT]))
    return np.array(rows, np.int64).reshape(len(rows), e.FAULT_COLUMNS)


def _rows(
    faults: Sequence[Fault], fabric: Fabric, bases: Int64s, factor: float
) -> Iterator[Int64s]:
    def wall(time_ns: int | None) -> int:
        return e.NEVER if time_ns is None else round(time_ns * factor)

    for number, fault in enumerate(faults):
        kind, planes = _KINDS[fault.kind], [fault.plane]
        if kind in (e.COMMANDS, e.LOCKS) and fault.plane is None:
            planes = list(range(len(fabric.planes)))
        for plane in planes:
            row = np.zeros(e.FAULT_COLUMNS, np.int64)
            row[[e.Q_KIND, e.Q_OF, e.Q_DIST]] = kind, number, _DISTS[fault.dist]
            row[e.Q_PLANE] = NONE if plane is None else plane
            port = NONE if fault.port is None or plane is None else bases[plane] + fault.port
            row[[e.Q_PORT, e.Q_NODE]] = port, NONE if fault.host is None else fault.host
            row[[e.Q_AT, e.Q_UNTIL]] = wall(fault.at_ns), wall(fault.until_ns)
            row[e.Q_BATCH] = NONE
            if fault.rate_bps is not None:
                row[e.Q_VALUE] = max(round(fault.rate_bps / factor), 1)
            elif fault.share is not None:
                row[e.Q_VALUE] = round(fault.share * _MODULUS)
            elif fault.mean_ns is not None:
                row[e.Q_VALUE] = wall(fault.mean_ns)
            yield row


def effects_of(faults: Sequence[Fault], rows: Int64s, factor: float) -> list[FaultEffect]:
    """Return what each fault did, in virtual time."""
    effects = []
    for number, fault in enumerate(faults):
        mine = rows[rows[:, e.Q_OF] == number]
        total = mine.sum(axis=0)
        effects.append(
            FaultEffect(
                fault=fault.text,
                frames_lost=int(total[e.Q_LOST]),
                bytes_lost=int(total[e.Q_LOST_BYTES]),
                frames_resent=int(total[e.Q_RESENT]),
                delayed=int(total[e.Q_DELAYED]),
                delay_ns=round(int(total[e.Q_DELAY]) / factor),
                delay_most_ns=round(int(mine[:, e.Q_DELAY_MOST].max(initial=0)) / factor),
            )
        )
    return effects


def patience(faults: Sequence[Fault], fabric: Fabric) -> tuple[float, int]:
    """Return how many times its prediction a run may take, and how much (virtual ns) beyond that.

    Enough for every fault to be over and recovered from; what takes longer will not end.
    """
    if not faults:
        return 1.0, 0
    slowest = max(
        (fabric.planes[f.plane or 0].rate_bps / f.rate_bps for f in faults if f.rate_bps),
        default=1.0,
    )
    beyond_ns = sum(fault.until_ns or 0 for fault in faults)
    return _PATIENCE * slowest, beyond_ns + _SPARE_RETRIES * RETRY_NS


def require_bearable(faults: Sequence[Fault], program: Program) -> None:
    """Raise `UsageError` for commands that would be later than a slot of a timed program lasts."""
    if not isinstance(program, TimedProgram):
        return
    offsets = [[slot.offset_ns for slot in slots] for slots in program.planes if slots]
    gaps = [np.diff([*each, each[0] + program.period_ns]).min() for each in offsets]
    shortest_ns = int(min(gaps, default=program.period_ns))
    for fault in faults:
        if fault.kind == "late-commands" and fault.most_late_ns > shortest_ns:
            what = f"commands may be {fault.most_late_ns} ns late"
            why = f"the program's shortest slot lasts {shortest_ns} ns"
            raise UsageError(what, f"--fault {fault.text}", why, "give a lower mean")
