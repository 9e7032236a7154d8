"""Programs: what a scheduler decides, in the three kinds the dispatcher executes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from scheduler.model.taskgraph import Int64s

__all__ = [
    "Entry",
    "OrderedProgram",
    "Program",
    "Proof",
    "ReactiveProgram",
    "Slot",
    "Status",
    "TimedProgram",
]

Status: TypeAlias = Literal["optimal", "feasible"]


class Proof(NamedTuple):
    """What a planner knows beyond `scheduler.bounds`: no program is faster than the bound.

    `status` is "optimal" where the program reaches it, to the nanosecond, else "feasible".
    """

    status: Status
    lower_bound_ns: float


class Entry(NamedTuple):
    """A circuit of one plane and the messages it carries, in order. All ids are of the base."""

    src_port: int
    dst_port: int
    messages: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedProgram:
    """Per plane, an ordered list of circuits with their messages; cyclic over iterations.

    Only each port's projection of a plane's list binds. An entry is requested when every message
    of its predecessors at all its ports has fully arrived; equal neighbours merge. On an all-stop
    plane, consecutive entries with the same `matching` number are one configuration.

    Stored flat, entries of plane 0 first: `plane`, `src_port`, `dst_port`, `matching` have shape
    (entries,); entry e carries `message[message_ptr[e]:message_ptr[e+1]]`. `initial_circuits` are
    (plane, src_port, dst_port) that stand at time 0. `proof` is set by planners that have one.
    """

    planes: int
    plane: Int64s
    src_port: Int64s
    dst_port: Int64s
    matching: Int64s
    message_ptr: Int64s
    message: Int64s
    initial_circuits: tuple[tuple[int, int, int], ...] = ()
    proof: Proof | None = None

    @classmethod
    def from_entries(
        cls,
        planes: Sequence[Iterable[Entry]],
        initial_circuits: Iterable[tuple[int, int, int]] = (),
        matchings: Sequence[Sequence[int]] | None = None,
    ) -> OrderedProgram:
        """Build from lists; without `matchings` every entry is a configuration of its own."""
        lists = [list(entries) for entries in planes]
        flat = [(plane, *entry) for plane, entries in enumerate(lists) for entry in entries]
        numbers = matchings or [range(len(entries)) for entries in lists]

        def column(values: Iterable[int]) -> Int64s:
            return np.fromiter(values, np.int64)

        lengths = column(len(row[3]) for row in flat)
        return cls(
            planes=len(lists),
            plane=column(row[0] for row in flat),
            src_port=column(row[1] for row in flat),
            dst_port=column(row[2] for row in flat),
            matching=column(number for plane in numbers for number in plane),
            message_ptr=np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]),
            message=column(m for row in flat for m in row[3]),
            initial_circuits=tuple(initial_circuits),
        )

    def entries(self, plane: int) -> list[Entry]:
        """Return plane's entries in order."""
        return [
            Entry(
                int(self.src_port[e]),
                int(self.dst_port[e]),
                tuple(self.message[self.message_ptr[e] : self.message_ptr[e + 1]].tolist()),
            )
            for e in np.flatnonzero(self.plane == plane)
        ]


class Slot(NamedTuple):
    """From `offset_ns` of each period the plane holds a permutation; -1: no circuit from a port."""

    offset_ns: int
    dst_ports: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedProgram:
    """A periodic schedule that does not look at the workload while it runs.

    The cycle begins at `phase_ns` after time 0 modulo `period_ns` (0 <= phase_ns < period_ns).
    Each slot begins dark: for the plane's delay_ns the whole plane is dark, or with `partial` only
    the ports whose circuit changes. No frame is sent in the last `guard_ns` of a slot. `routing`
    is how bytes reach a destination that has no circuit now: `direct` waits, `vlb` and `rotorlb`
    go through one relay.
    """

    period_ns: int
    planes: tuple[tuple[Slot, ...], ...]
    phase_ns: int = 0
    guard_ns: int = 0
    routing: Literal["direct", "vlb", "rotorlb"] = "direct"
    partial: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReactiveProgram:
    """Circuits decided while the workload runs, by one compiled function of the state.

    `function` is a `@kernel` with the signature documented in `scheduler.policies.base`;
    `policy` and `params` say in the plan file which it is. What happens within `gather_ns` of an
    event is decided together with it.
    """

    policy: str
    function: Callable[..., int]
    params: Mapping[str, str] = field(default_factory=dict)
    numbers: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    gather_ns: int = 0


Program: TypeAlias = "OrderedProgram | TimedProgram | ReactiveProgram"
