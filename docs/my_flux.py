"""A scheduler of one's own: what is ready first goes first, over circuits that stand if possible.

    fluxbed simulate TRACE -t rails,planes=2,delay=10us -s docs/my_flux.py:MyFlux -s flux

Write `docs/my_flux.py:MyFlux,patience=20us` to give its parameter a value.
"""

from __future__ import annotations

import fluxbed


class MyFlux(fluxbed.ListPlanner):
    """A list scheduler that waits for a circuit that stands rather than change another."""

    name = "my-flux"

    def __init__(self, patience_ns: int = 0) -> None:
        """`patience_ns`: how much later a standing circuit may be free and still be chosen."""
        self.patience_ns = patience_ns

    def choose(self, choices: list[fluxbed.Choice]) -> fluxbed.Choice:
        """Return the choice that starts first, standing circuits ahead by `patience_ns`."""
        return min(choices, key=lambda c: c.start_ns - c.stands * self.patience_ns)

    def urgency(self, problem: fluxbed.Problem) -> fluxbed.Int64s:
        """Of messages ready at one time, large ones first."""
        return problem.graph.size_bytes
