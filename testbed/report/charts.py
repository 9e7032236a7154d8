"""Small charts as SVG: a few bars each, with units on their axes."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["SHARES", "columns", "histogram", "shares", "ticks"]

SHARES: Final = {
    "sending": "#0072b2",
    "lit and idle": "#a9d3ec",
    "dark": "#22262b",
    "unconnected": "#dde3e9",
}
_WIDTH: Final = 440
_LEFT: Final = 62
_UNITS: Final = ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns"))


def ticks(most: float, wanted: int = 4) -> list[float]:
    """Return round numbers from 0 to `most`.

    >>> ticks(7.2)
    [0, 2, 4, 6]
    """
    if most <= 0:
        return [0.0]
    power = 10 ** math.floor(math.log10(most / wanted))
    step = next(m * power for m in (1, 2, 5, 10) if m * power * wanted >= most)
    return [k * step for k in range(int(most / step + 1e-9) + 1)]


def _unit(most_ns: float) -> tuple[float, str]:
    return next(((size, name) for size, name in _UNITS if abs(most_ns) >= size), _UNITS[-1])


def _svg(height: int, body: Sequence[str], label: str) -> str:
    size = f'viewBox="0 0 {_WIDTH} {height}"'
    return f'<svg {size} role="img" aria-label="{escape(label)}">{"".join(body)}</svg>'


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _frame(top: float, floor: float, most: float, unit: str) -> list[str]:
    body = [_text(4, 14, unit)]
    for value in ticks(most):
        y = floor - value / most * (floor - top)
        body.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH}" stroke="#edf0f3"/>')
        body.append(_text(_LEFT - 8, y + 4, f"{value:g}", "end"))
    body.append(f'<path d="M{_LEFT} {floor}H{_WIDTH}" stroke="#9aa6b2"/>')
    return body


def columns(values_ns: Sequence[float | None], skip: int) -> str:
    """Draw the durations of iterations; those left out of the steady state are pale."""
    known = [value for value in values_ns if value is not None]
    size, name = _unit(max(known, default=1.0))
    most = max(known, default=1.0) / size * 1.08 or 1.0
    top, floor = 26.0, 176.0
    body = _frame(top, floor, most, f"duration [{name}]")
    step = (_WIDTH - _LEFT - 8) / max(len(values_ns), 1)
    every = max(1, -(-len(values_ns) // 12))
    for k, value in enumerate(values_ns):
        x = _LEFT + 6 + k * step
        if value is not None:
            tall = value / size / most * (floor - top)
            colour = "#b9d2e4" if k < skip else "#0072b2"
            body.append(
                f'<rect x="{x:.1f}" y="{floor - tall:.1f}" width="{max(step * 0.72, 1):.1f}" '
                f'height="{tall:.1f}" rx="2" fill="{colour}"><title>iteration {k}: '
                f"{value / size:.6g} {name}</title></rect>"
            )
        if k % every == 0:
            body.append(_text(x + step * 0.36, floor + 16, str(k), "middle"))
    body.append(_text(_WIDTH, floor + 34, "iteration", "end"))
    return _svg(214, body, "duration of each iteration")


def shares(planes: Sequence[Mapping[str, float]]) -> str:
    """Draw what each plane's port-time was used for, in percent."""
    body: list[str] = []
    wide = _WIDTH - _LEFT - 8
    for row, plane in enumerate(planes):
        y, x = 8 + 38 * row, float(_LEFT)
        body.append(_text(4, y + 19, f"plane {plane['plane']:.0f}"))
        for name, colour in SHARES.items():
            part = plane[name] * wide
            body.append(
                f'<rect x="{x:.1f}" y="{y}" width="{part:.1f}" height="28" fill="{colour}">'
                f"<title>{name}: {100 * plane[name]:.3g} %</title></rect>"
            )
            x += part
    floor = 12 + 38 * len(planes)
    for percent in (0, 25, 50, 75, 100):
        anchor = "end" if percent == 100 else "middle"  # noqa: PLR2004 (the last tick)
        body.append(_text(_LEFT + wide * percent / 100, floor + 14, str(percent), anchor))
    body.append(_text(_WIDTH, floor + 32, "share of port-time [%]", "end"))
    return _svg(floor + 38, body, "use of the planes")


def histogram(values_ns: Sequence[float], bins: int = 40) -> str:
    """Draw how often each difference occurs."""
    low, high = min(values_ns), max(values_ns)
    size, name = _unit(max(abs(low), abs(high)))
    span = (high - low) or 1.0
    counts = [0] * bins
    for value in values_ns:
        counts[min(int((value - low) / span * bins), bins - 1)] += 1
    top, floor, most = 26.0, 176.0, max(counts) * 1.08
    body = _frame(top, floor, most, "circuits")
    step = (_WIDTH - _LEFT) / bins
    for k, count in enumerate(counts):
        tall = count / most * (floor - top)
        body.append(
            f'<rect x="{_LEFT + k * step:.1f}" y="{floor - tall:.1f}" width="{step * 0.9:.1f}" '
            f'height="{tall:.1f}" fill="#009e73"/>'
        )
    for part in (0.0, 0.5, 1.0):
        anchor = ("start", "middle", "end")[round(2 * part)]
        x = _LEFT + part * (_WIDTH - _LEFT)
        body.append(_text(x, floor + 16, f"{(low + part * span) / size:.4g}", anchor))
    body.append(_text(_WIDTH, floor + 34, f"achieved minus planned up [{name}]", "end"))
    return _svg(214, body, "achieved minus planned")
