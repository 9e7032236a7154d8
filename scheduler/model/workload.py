"""A workload: what every rank computes and which collectives it joins, before any fabric is known.

Times are in ns and sizes in bytes; what a trace does not say is None, never 0. Operations are in
program order: two operations of one rank on one stream run in the order they appear here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "COLLECTIVES",
    "Collective",
    "Compute",
    "Group",
    "Loss",
    "Operation",
    "Participation",
    "Source",
    "Workload",
]

COLLECTIVES: Final = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "barrier",
    "send_recv",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A communicator. `origin` says how its members are known."""

    ranks: tuple[int, ...]
    desc: str | None = None
    origin: Literal["recorded", "inferred", "default"] = "recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a workload came from. `sha256` is of the input bytes; null for synthetic ones."""

    path: str
    sha256: str | None
    format: str
    schema: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Something dropped or inferred on the way in: how often, and an example."""

    what: str
    count: int
    example: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """Work of one rank that needs no network. `start_ns` is when the trace saw it start."""

    id: int
    rank: int
    stream: int
    dur_ns: int
    start_ns: int | None = None
    iter: int | None = None
    deps: tuple[int, ...] = ()
    starts_after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Participation:
    """One rank's part in a collective.

    `arrive_ns` and `end_ns` are what the trace saw; replay does not use them. `deps` are the
    operations that must have ended on this rank before it enters, `starts_after` those that must
    have started.
    """

    in_bytes: int | None
    out_bytes: int | None
    stream: int
    arrive_ns: int | None = None
    end_ns: int | None = None
    deps: tuple[int, ...] = ()
    starts_after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One instance of a collective: the same object for all its members.

    `kind` is one of `COLLECTIVES`. `root` and `peer` are global ranks: for `send_recv` root sends
    to peer. `splits[rank]` are the bytes an all_to_all sends to each member, in group order.
    """

    id: int
    kind: str
    group: str
    ranks: Mapping[int, Participation]
    seq: int | None = None
    iter: int | None = None
    dtype: str | None = None
    algo: str | None = None
    root: int | None = None
    peer: int | None = None
    tag: int | None = None
    splits: Mapping[int, tuple[int, ...]] | None = None


Operation: TypeAlias = "Compute | Collective"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A training job as captured or made. `compute_scale` multiplies every `dur_ns` in replay.

    `iterations` are the iteration numbers present, in order; operations with `iter` None belong to
    none of them. `synthesised_ranks` were not captured but derived by symmetry.
    """

    world: int
    groups: Mapping[str, Group]
    operations: tuple[Operation, ...]
    source: Source
    iterations: tuple[int, ...] = (0,)
    placement: Mapping[int, str] | None = None
    time_base: str | None = None
    compute_scale: float = 1.0
    losses: tuple[Loss, ...] = ()
    synthesised_ranks: tuple[int, ...] = ()
    notes: tuple[str, ...] = field(default=())
