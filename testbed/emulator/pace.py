"""Did the machine keep pace? What an execution that was too fast for it shows, in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scheduler.model.timeline import NONE
from testbed.files.lateness import guard_outrun

if TYPE_CHECKING:
    from scheduler.model.timeline import Timeline
    from testbed.emulator.dilation import Dilation
    from topologies.fabric import Fabric

__all__ = ["overload"]

_DELAY_SHARE: Final = 0.5  # auto allows for a twentieth: half of that factor is still far away
_MOST_LONGER: Final = 0.05
_MOST_MISSED: Final = 0.01


def overload(
    timeline: Timeline,
    predicted: Timeline | None,
    fabric: Fabric,
    dilation: Dilation,
    *,
    darkened: int = 0,
    faulted: bool = False,
) -> list[str]:
    """Return what shows that the machine did not keep up with `timeline`; empty when it did.

    - the 99th percentile of frames leaving late, or of messages known late to have arrived, above
      half the shortest reconfiguration delay on the wall;
    - more than 1 % of the frames woken too late for their slot;
    - frames dropped in the dark, beyond those that faults cost there (`darkened`), where some were
      later than the guard allows;
    - frames sent again although nothing dropped them: what sends and receives lost them. A run
      that was `faulted` may have sent frames again for that;
    - all iterations together more than 5 % longer than `predicted`, with the same frames and guard
      (None: what was executed cannot be predicted).
    """
    found = []
    measures = timeline.measures
    late_us = max(measures.get(f"{name}_p99_us") or 0.0 for name in ("lateness", "hop"))
    delays_ns = [plane.delay_ns for plane in fabric.planes if plane.delay_ns > 0]
    if delays_ns:
        delay_us = min(delays_ns) * dilation.factor / 1e3
        if late_us > _DELAY_SHARE * delay_us:
            found.append(
                f"frames are {late_us:.0f} us late at their 99th percentile, and a "
                f"reconfiguration takes {delay_us:.3g} us on the wall"
            )
    missed, sent = measures.get("missed_slot_ends") or 0, measures.get("frames_sent") or 0
    if missed > _MOST_MISSED * sent:
        found.append(f"{missed} of {sent} frames were too late for their slot")
    lost = int(measures.get("drops_dark") or 0) - darkened
    if lost > 0 and guard_outrun(measures, dilation.guard_ns, dilation.factor):
        found.append(f"{lost} frames were so late that their circuit was gone, and were sent again")
    again = measures.get("frames_resent") or 0
    if again and lost <= 0 and not faulted:
        found.append(f"{again} frames were lost inside this machine, and were sent again")
    if predicted is None:
        return found
    took_ns, wanted_ns = (int(each.iteration_ends_ns[-1]) for each in (timeline, predicted))
    if took_ns != NONE and took_ns > (1 + _MOST_LONGER) * wanted_ns:
        found.append(f"the iterations took {took_ns / wanted_ns - 1:.1%} longer than predicted")
    return found
