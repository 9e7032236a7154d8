"""One colour for each scheduler, the same in figures and pages, safe for colour-blind eyes.

Okabe and Ito's (Color Universal Design, 2008), further ones of Paul Tol's muted scheme. Whoever
draws tells `-tuned` from what it tunes by a mark, not by colour.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["base_of", "colours_of"]

_COLOURS: Final = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#332288", "#882255", "#999933",
    "#7A7A7A", "#117733",
)  # fmt: skip
_KNOWN: Final = {"flux": "#D55E00", "packet-ideal": "#000000", "packet-fair": "#000000"}


def base_of(name: str) -> str:
    """Return what a `-tuned` scheduler tunes, and any other name as it is.

    >>> base_of("rotor-direct-tuned")
    'rotor-direct'
    """
    return name.removesuffix("-tuned")


def colours_of(names: Sequence[str]) -> dict[str, str]:
    """Choose a colour for every name, the same for a scheduler and its `-tuned`.

    >>> colours_of(["flux", "bvn", "bvn-tuned"])
    {'flux': '#D55E00', 'bvn': '#0072B2', 'bvn-tuned': '#0072B2'}
    """
    spare = count()
    chosen: dict[str, str] = {}
    for base in dict.fromkeys(map(base_of, names)):
        chosen[base] = _KNOWN.get(base) or _COLOURS[next(spare) % len(_COLOURS)]
    return {name: chosen[base_of(name)] for name in names}
