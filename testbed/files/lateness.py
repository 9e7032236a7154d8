"""Whether frames of an emulation left so late that they may have missed their circuit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["guard_outrun"]


def guard_outrun(measures: Mapping[str, Any], guard_ns: int, dilation: float) -> bool:
    """Say whether the latest frame left and travelled for longer than the guard (virtual) lasts.

    Frames are planned to leave a guard before their circuit goes: none that is less late finds it
    gone.

    >>> guard_outrun({"lateness_max_us": 30.0, "transit_max_us": 5.0}, guard_ns=400, dilation=100.0)
    False
    >>> guard_outrun({"lateness_max_us": 900.0}, guard_ns=400, dilation=100.0)
    True
    """
    late_us = sum(measures.get(f"{name}_max_us") or 0.0 for name in ("lateness", "transit"))
    return bool(late_us * 1e3 > guard_ns * dilation)
