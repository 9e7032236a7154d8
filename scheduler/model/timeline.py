"""What happened: the times of every task, transfer and circuit, simulated or measured alike."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scheduler.model.taskgraph import Int64s

__all__ = ["NONE", "Circuits", "Timeline", "Transfers"]

NONE: Final = -1  # in arrays of ids and times; null in files


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfers:
    """Pieces of messages on the wire, ordered by start; arrays of shape (transfers,), int64.

    `task` is the unrolled message, `hop` 0 or 1, `circuit` a row of `Circuits` (NONE on an eps
    plane). `end_ns` is when the last bit arrived, latency included. The wall_* and frames_* columns
    are None for a simulation.
    """

    task: Int64s
    hop: Int64s
    from_node: Int64s
    to_node: Int64s
    plane: Int64s
    circuit: Int64s
    size_bytes: Int64s
    start_ns: Int64s
    end_ns: Int64s
    wall_bytes_sent: Int64s | None = None
    wall_bytes_received: Int64s | None = None
    frames_sent: Int64s | None = None
    frames_received: Int64s | None = None
    frames_dark: Int64s | None = None
    frames_resent: Int64s | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Circuits:
    """Every circuit that stood, in order of `up_ns`; arrays of shape (circuits,), int64.

    `request_ns`, and with it `dark_ns`, is NONE for a circuit that stood at time 0 (`up_ns` is then
    0); `down_ns` is NONE for one that stands at the end. dark_ns = request_ns + control_ns, up_ns =
    dark_ns + delay_ns. `planned_up_ns` is what a prediction said (NONE: none was made). `fault` is
    1 where a fault and not the program caused the change.
    """

    plane: Int64s
    src_port: Int64s
    dst_port: Int64s
    request_ns: Int64s
    dark_ns: Int64s
    up_ns: Int64s
    down_ns: Int64s
    planned_up_ns: Int64s
    fault: Int64s


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A finished execution of `iterations` iterations, in virtual ns from time 0.

    `ready_ns`, `start_ns`, `end_ns` have shape (iterations * tasks,); NONE where a task was never
    reached. `origin` says who made it. `measures` are numbers only an emulation has, by name.
    """

    iterations: int
    ready_ns: Int64s
    start_ns: Int64s
    end_ns: Int64s
    transfers: Transfers
    circuits: Circuits
    origin: Literal["simulated", "emulated"] = "simulated"
    measures: Mapping[str, int | float | None] = field(default_factory=dict)

    @property
    def iteration_ends_ns(self) -> Int64s:
        """When each iteration's last task ended, shape (iterations,); NONE where it never did."""
        ends = self.end_ns.reshape(self.iterations, -1)
        return np.where((ends == NONE).any(axis=1), NONE, ends.max(axis=1)).astype(np.int64)

    def iteration_ns(self, skip: int) -> float | None:
        """Steady-state time (end_n - end_k)/(n - k) with k = `skip`; None if unfinished."""
        ends = self.iteration_ends_ns
        if ends[-1] == NONE or not 0 < skip < self.iterations:
            return None
        return float(ends[-1] - ends[skip - 1]) / (self.iterations - skip)
