"""On-demand circuits with keep-alive: what a network does that does not look ahead."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from scheduler.policies.base import Reactive

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Greedy"]


class Greedy(Reactive):
    """Circuits on demand, first come first served, kept until their ports are needed."""

    name: ClassVar[str] = "greedy"

    def __init__(self, gather_ns: int = 0) -> None:
        self.gather_ns = gather_ns

    def function(self) -> Callable[..., int]:
        """Return the compiled policy."""
        from scheduler.policies._kernels_greedy import greedy

        return greedy
