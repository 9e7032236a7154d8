"""Whether something fits into this machine's memory, asked before it is made."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from topologies.errors import UsageError
from topologies.units import format_bytes

__all__ = ["available_bytes", "require_memory"]

_MEMINFO: Final = Path("/proc/meminfo")
_SHARE: Final = 0.9  # of what is available: others need memory too


def available_bytes() -> int | None:
    """Return how much memory can be had without swapping.

    All there is, where the system does not say what is taken, and None where it says neither.
    """
    try:
        for line in _MEMINFO.read_text("ascii").splitlines():
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                return int(value.split()[0]) * 1024
    except OSError:
        pass  # no Linux: the second answer
    if not {"SC_PAGE_SIZE", "SC_PHYS_PAGES"} <= getattr(os, "sysconf_names", {}).keys():
        return None
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def require_memory(needed_bytes: int, what: str, where: str, fix: str) -> None:
    """Raise `UsageError` where `what` would need more memory than there is, as far as is known.

    >>> require_memory(1, "one byte", "nowhere", "buy some")
    """
    have = available_bytes()
    if have is not None and needed_bytes > _SHARE * have:
        why = (
            f"that takes about {format_bytes(needed_bytes)} of memory and {format_bytes(have)} "
            "are available"
        )
        raise UsageError(what, where, why, fix)
