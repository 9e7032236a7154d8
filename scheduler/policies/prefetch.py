"""Circuits provisioned in program order: a controller that knows what comes next, but not when.

"Provisioning" of Opus (Photonic Rails, arXiv 2507.08119 and 2602.12521): jobs repeat the same order
of collectives, so the next topology is requested as soon as the transfer before it ends, and the
change hides behind computation. Opus changes a rail as a whole once a group has checked in; here
every port is turned by itself, to the next message that it will carry in program order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from scheduler.policies.base import Reactive

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Prefetch"]


class Prefetch(Reactive):
    """Greedy, and idle ports are turned at once to the circuits the program needs next."""

    name: ClassVar[str] = "prefetch"

    def __init__(self, gather_ns: int = 0) -> None:
        self.gather_ns = gather_ns

    def function(self) -> Callable[..., int]:
        """Return the compiled policy."""
        from scheduler.policies._kernels_prefetch import prefetch

        return prefetch
