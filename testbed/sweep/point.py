"""One point of an experiment: everything that decides its result, and nothing else."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
from msgspec import Struct

import fluxbed
from topologies.errors import UsageError
from topologies.units import parse_bytes, parse_duration_ns, parse_rate_bps

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Point", "Value", "quantity"]

Value: TypeAlias = bool | int | float | str

_ID_DIGITS: Final = 16
_PARSERS: Final[Mapping[str, Callable[[str], int]]] = {
    "_ns": parse_duration_ns,
    "_bps": parse_rate_bps,
    "_bytes": parse_bytes,
}


class Point(Struct, frozen=True, kw_only=True):
    """The settings of one evaluation, `topology.delay` to "10us" and so on, by dotted name.

    Two points with the same settings and the same contents behind them have the same `id`:
    `digests` are of the files that settings name, `places` where those files are.
    """

    mode: str
    settings: dict[str, Value]
    digests: dict[str, str] = {}
    places: dict[str, str] = {}

    @property
    def id(self) -> str:
        """Sixteen hexadecimal digits that settings, contents and fluxbed's version decide."""
        parts = [fluxbed.__version__, self.mode, self.settings, self.digests]
        content = msgspec.json.encode(parts, order="deterministic")
        return hashlib.sha256(content).hexdigest()[:_ID_DIGITS]

    def __getitem__(self, name: str) -> Value:
        return self.places.get(name, self.settings[name])

    def get(self, name: str, default: Value) -> Value:
        """Return a setting, or `default` where the experiment does not say."""
        return self[name] if name in self.settings else default

    def part(self, name: str) -> dict[str, Any]:
        """Return the settings under `name`, without it.

        >>> Point(mode="simulate", settings={"synth.tp": 4, "seed": 0}).part("synth")
        {'tp': 4}
        """
        prefix = f"{name}."
        return {
            key.removeprefix(prefix): self[key] for key in self.settings if key.startswith(prefix)
        }


def quantity(value: Value | None) -> tuple[str, int] | None:
    """Return the unit's ending and the number of what is written with a unit, else None.

    >>> quantity("10us"), quantity("800Gbps"), quantity("ring")
    (('_ns', 10000), ('_bps', 800000000000), None)
    """
    if not isinstance(value, str) or value.strip() == "0":
        return None
    for ending, parse in _PARSERS.items():
        try:
            return ending, parse(value)
        except UsageError:
            continue
    return None
