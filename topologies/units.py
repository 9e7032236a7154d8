"""Durations, rates and sizes as people write them: `100us`, `800Gbps`, `4MiB`.

A bare number is refused, except 0: `delay=100` does not say whether it is ns or us.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

from topologies.errors import UsageError

__all__ = [
    "format_bytes",
    "format_duration",
    "format_number",
    "format_rate",
    "parse_bytes",
    "parse_duration_ns",
    "parse_rate_bps",
]

_DURATION_NS: Final = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9}
_RATE_BPS: Final = {
    f"{prefix}{suffix}": factor
    for prefix, factor in (("", 1), ("K", 10**3), ("M", 10**6), ("G", 10**9), ("T", 10**12))
    for suffix in ("bps", "b/s", "bit/s")
} | {"kbps": 10**3, "kb/s": 10**3, "kbit/s": 10**3}
_SIZE_BYTES: Final = {
    "B": 1,
    "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
_NUMBER: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?)\s*([^0-9.\s].*)?")


def _parse(text: str, units: dict[str, int], quantity: str, example: str) -> int:
    if (match := _NUMBER.fullmatch(text.strip())) is None:
        what = f"{text!r} is not a {quantity}"
        raise UsageError(what, quantity, "it is not a number with a unit", f"write {example}")
    number, unit = Decimal(match[1]), (match[2] or "").strip()
    if not unit and number == 0:
        return 0
    if unit not in units:
        what = f"{text!r} has " + (f"the unknown unit {unit!r}" if unit else "no unit")
        why = f"the units of a {quantity} are {', '.join(units)}"
        raise UsageError(what, quantity, why, f"write {example}")
    value = number * units[unit]
    if value != value.to_integral_value() or value >= 2**63:
        what = f"{text!r} cannot be counted in whole {next(iter(units))}"
        why = "quantities are 64-bit integers of the smallest unit"
        raise UsageError(what, quantity, why, f"write {example}")
    return int(value)


def parse_duration_ns(text: str) -> int:
    """Read a duration, in ns.

    >>> parse_duration_ns("1.5us")
    1500
    """
    return _parse(text, _DURATION_NS, "duration", "100us")


def parse_rate_bps(text: str) -> int:
    """Read a rate, in bit/s.

    >>> parse_rate_bps("800Gbps")
    800000000000
    """
    return _parse(text, _RATE_BPS, "rate", "800Gbps")


def parse_bytes(text: str) -> int:
    """Read a size, in bytes.

    >>> parse_bytes("4MiB")
    4194304
    """
    return _parse(text, _SIZE_BYTES, "size", "4MiB")


def _format(value: float, steps: list[tuple[float, str]]) -> str:
    scale, unit = next(((s, u) for s, u in steps if abs(value) >= s), steps[-1])
    return f"{value / scale:.4g} {unit}"


def format_duration(value_ns: float) -> str:
    """Write a duration for people.

    >>> format_duration(1_500)
    '1.5 us'
    """
    return _format(value_ns, [(1e9, "s"), (1e6, "ms"), (1e3, "us"), (1, "ns")])


def format_rate(value_bps: float) -> str:
    """Write a rate for people.

    >>> format_rate(800e9)
    '800 Gbps'
    """
    return _format(value_bps, [(1e12, "Tbps"), (1e9, "Gbps"), (1e6, "Mbps"), (1, "bps")])


def format_number(value: float) -> str:
    """Write a count or a ratio for people: three digits, or all of the whole part.

    >>> format_number(3.7416), format_number(121_696.4)
    ('3.74', '121,696')
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"  # noqa: PLR2004 (said above)


def format_bytes(value_bytes: float) -> str:
    """Write a size for people, in powers of ten.

    >>> format_bytes(35_244_664)
    '35.24 MB'
    """
    return _format(value_bytes, [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B")])
