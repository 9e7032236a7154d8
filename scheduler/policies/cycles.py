"""Timed programs from matchings: slots of equal length, or as long as what they carry."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Final, Literal

from scheduler.model.program import Slot, TimedProgram
from scheduler.policies.matchings import port_matching, ports_by_rank
from topologies.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scheduler.policies.decomposition import Turn
    from topologies.fabric import Fabric

__all__ = ["equal_slots", "slot_length", "weighted_slots"]

_DELAYS_PER_SLOT: Final = 10  # RotorNet's: light is on for 90 % of the time
_SLOT_WITHOUT_DELAY_NS: Final = 10_000  # tau = 0 gives no scale: as for tau = 1 us
_LEAST: Final = 10  # no slot is lit for less than this part of the mean


def slot_length(fabric: Fabric, slot_ns: int | None, where: str) -> int:
    """Return the (mean) slot, dark time included: as asked for, or ten reconfiguration delays.

    Raises `UsageError` for one that is dark from end to end.
    """
    delay_ns = max(plane.delay_ns for plane in fabric.planes if plane.kind == "ocs")
    if slot_ns is None:
        return _DELAYS_PER_SLOT * delay_ns or _SLOT_WITHOUT_DELAY_NS
    if slot_ns <= delay_ns:
        why = f"a plane is dark for the first {delay_ns} ns of each slot"
        raise UsageError(f"a slot of {slot_ns} ns", where, why, "choose a longer slot")
    return slot_ns


def equal_slots(
    fabric: Fabric,
    matchings: Mapping[int, Sequence[tuple[int, ...]]],
    slot_ns: int,
    phase_ns: int = 0,
    routing: Literal["direct", "vlb", "rotorlb"] = "direct",
) -> TimedProgram:
    """Return the program whose planes go through their matchings of ports in step.

    `matchings` are by plane, equally many for all that are listed.
    """
    period_ns = max((len(rows) for rows in matchings.values()), default=1) * slot_ns
    return TimedProgram(
        period_ns=period_ns,
        phase_ns=phase_ns % period_ns,
        planes=tuple(
            tuple(Slot(i * slot_ns, row) for i, row in enumerate(matchings.get(k, ())))
            for k in range(len(fabric.planes))
        ),
        routing=routing,
    )


def weighted_slots(
    fabric: Fabric,
    turns: Mapping[int, Sequence[Turn]],
    slot_ns: int,
    phase_ns: int = 0,
    *,
    staggered: bool = False,
) -> TimedProgram:
    """Return the program whose slots are lit in proportion to their weights.

    `turns` are by plane, over its nodes in ascending order; all ports of a node on one plane do the
    same. The period is `slot_ns` times the most turns of a plane, and all planes fill it; no slot
    is lit for less than a tenth of its plane's mean. `staggered` planes begin an equal part of the
    period after each other. A plane with one turn never changes: the program is then `partial`.
    """
    turns = {k: rows for k, rows in turns.items() if rows}
    period_ns = max((len(rows) for rows in turns.values()), default=1) * slot_ns
    planes: list[tuple[Slot, ...]] = [()] * len(fabric.planes)
    for number, (k, rows) in enumerate(turns.items()):
        plane = fabric.planes[k]
        columns = ports_by_rank(plane, f"plane {k}")
        lit = _shares([turn.weight for turn in rows], period_ns - len(rows) * plane.delay_ns)
        starts = [0, *accumulate(share + plane.delay_ns for share in lit)][: len(rows)]
        shift = number * period_ns // len(turns) if staggered else 0
        planes[k] = tuple(
            sorted(
                Slot(
                    (start + shift) % period_ns,
                    port_matching(plane, columns, [turn.permutation] * len(columns)),
                )
                for start, turn in zip(starts, rows, strict=True)
            )
        )
    return TimedProgram(
        period_ns=period_ns,
        phase_ns=phase_ns % period_ns,
        planes=tuple(planes),
        partial=any(len(rows) == 1 for rows in turns.values()),
    )


def _shares(weights: Sequence[int], total: int) -> list[int]:
    """Split `total` in proportion to weights, whole numbers, none below the least share.

    >>> _shares([3, 1, 0], 300)
    [217, 72, 10]
    """
    least = max(total // (_LEAST * len(weights)), 1)
    small: set[int] = set()
    while True:
        rest = total - least * len(small)
        mass = sum(w for k, w in enumerate(weights) if k not in small)
        below = {k for k, w in enumerate(weights) if k not in small and w * rest < least * mass}
        if not below:
            break
        small |= below
    return [
        least if k in small else weight * rest // mass if mass else least
        for k, weight in enumerate(weights)
    ]
