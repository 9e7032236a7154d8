"""Whether a run owns up to the faults it bore, and its losses add up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["wrong_effects"]

_COUNTS: Final = (
    "frames_lost",
    "bytes_lost",
    "frames_resent",
    "delayed",
    "delay_ns",
    "delay_most_ns",
)


def wrong_effects(summary: Mapping[str, Any], faults: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield what a summary says wrongly of the `faults` its run was made to bear.

    Frames are sent again because a fault took them or because one before them was missing (then
    the receiver threw them away), or needlessly: so the first two are no more than all.
    """
    if summary.get("faulted") != bool(faults):
        yield "summary faulted", f"it is {summary.get('faulted')} and not {bool(faults)}"
    effects = summary.get("faults")
    if not isinstance(effects, list) or [each.get("fault") for each in effects] != list(faults):
        yield "summary faults", f"they are not {list(faults)}"
        return
    for effect in effects:
        for name in _COUNTS:
            if effect[name] < 0:
                yield "summary faults", f"{name} of {effect['fault']} is {effect[name]}"
    again, discarded = summary.get("frames_resent"), summary.get("frames_discarded")
    if not isinstance(again, int) or not isinstance(discarded, int):
        if discarded is not None:
            yield "summary frames_discarded", f"it is {discarded}, of {again} frames sent again"
        return
    lost = sum(effect["frames_lost"] for effect in effects)
    if not 0 <= discarded <= again - lost:
        what = f"it is {discarded}, of {again} frames sent again {lost} were lost to faults"
        yield "summary frames_discarded", what
