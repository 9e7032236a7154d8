"""What somebody who mistyped a name meant."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["meant"]


def meant(word: str, known: Iterable[str], otherwise: str) -> str:
    """Return advice for an error: the known name that is nearest to `word`, else `otherwise`.

    >>> meant("flxu", ["flux", "static"], "choose one of them")
    'did you mean flux?'
    >>> meant("nope", ["flux", "static"], "choose one of them")
    'choose one of them'
    """
    by_lower = {name.lower(): name for name in known}
    near = get_close_matches(word.lower(), list(by_lower), n=1)
    return f"did you mean {by_lower[near[0]]}?" if near else otherwise
