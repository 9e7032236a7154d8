"""What an importer makes of its files: one `Recording` per rank, in the trace's own clock.

Importers only read; matching ranks, aligning clocks and cutting compute is done once, for every
format, in `assembly`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from scheduler.model.workload import Group

__all__ = [
    "BEFORE",
    "MOST_RANKS",
    "Busy",
    "Call",
    "Enter",
    "Losses",
    "Recording",
    "Step",
    "Work",
    "implied_size",
    "strided",
]

BEFORE: Final = -1  # the step of work launched before the profile began
MOST_RANKS: Final = 2**18  # in memory about 1 kB each, whether they do anything or not


def strided(start: int, stride: int, size: int) -> tuple[int, ...]:
    """Return `size` ranks from `start` on; () when that is no group of fewer than `MOST_RANKS`.

    >>> strided(1, 2, 3), strided(0, 1, 2**31)
    ((1, 3, 5), ())
    """
    if start < 0 or stride <= 0 or not 0 < size <= MOST_RANKS:
        return ()
    return tuple(range(start, start + stride * size, stride))


class Losses:
    """Counts what was dropped or inferred, and keeps the first example of each.

    >>> losses = Losses()
    >>> losses.add("rows without a kind", "line 3"), losses.add("rows without a kind", "line 4")
    (None, None)
    >>> losses.counts["rows without a kind"], losses.examples["rows without a kind"]
    (2, 'line 3')
    """

    __slots__ = ("counts", "examples")  # a run may have 262,144 ranks

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, str] = {}

    def add(self, what: str, example: str | None = None, count: int = 1) -> None:
        """Count `what`, `count` times."""
        if count:
            self.counts[what] += count
            if example is not None:
                self.examples.setdefault(what, example)

    def merge(self, other: Losses, prefix: str = "") -> None:
        """Add all of `other`, naming their place `prefix` in the examples."""
        for what, count in other.counts.items():
            example = other.examples.get(what)
            self.add(what, f"{prefix}{example}" if example else prefix.rstrip(": ") or None, count)


@dataclass(slots=True, kw_only=True, eq=False)
class Call:
    """One rank's part in a collective as its trace tells it; None is what the trace does not say.

    `kind` may be "send" or "recv", with `peer` the other rank. `members` are global ranks in group
    order; `size` is how many there are when only that is known. `splits` are the bytes sent to each
    member. `issued_ns` is when the host had asked for it, `start_ns` and `end_ns` are of its
    transport (kernel or worker thread). `lane` tells apart streams or worker threads. `waited` is
    True when the issuing thread waited for the end at once, None when the trace does not say;
    `awaited_ns` is when the host is known to have asked for the end, and `resumed_ns` when it went
    on; `record` and `wait_record` are the record ids of the call and of that request, by which two
    formats agree. With `local`, `root` and `peer` are positions in the group still, because the
    group was not known yet.
    """

    kind: str
    in_bytes: int | None = None
    out_bytes: int | None = None
    dtype: str | None = None
    members: tuple[int, ...] | None = None
    group: str | None = None
    size: int | None = None
    splits: tuple[int, ...] | None = None
    root: int | None = None
    peer: int | None = None
    tag: int | None = None
    seq: int | None = None
    step: int = 0
    lane: int = 0
    issued_ns: int | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    waited: bool | None = None
    awaited_ns: int | None = None
    resumed_ns: int | None = None
    record: int | None = None
    wait_record: int | None = None
    local: bool = False


def implied_size(call: Call) -> int | None:
    """Tell how many members a call has, as recorded or as its bytes imply."""
    if call.size is not None:
        return call.size
    if call.splits:
        return len(call.splits)
    whole, part = {
        "all_gather": (call.out_bytes, call.in_bytes),
        "reduce_scatter": (call.in_bytes, call.out_bytes),
    }.get(call.kind, (None, None))
    return whole // part if whole and part and whole % part == 0 else None


@dataclass(frozen=True, slots=True)
class Step:
    """One iteration as the host saw it."""

    number: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """When a rank computed: intervals in order of `start_ns`, arrays of shape (intervals,), int64.

    `launch_ns` is when the host asked for it (equal to `start_ns` on a CPU), `step` the iteration
    it belongs to or `BEFORE`; `copies` marks copies and fills of memory.
    """

    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    launch_ns: NDArray[np.int64]
    step: NDArray[np.int64]
    copies: NDArray[np.bool_]

    @classmethod
    def of(cls, rows: list[tuple[int, int, int, int, int]]) -> Busy:
        """Build from (start, end, launch, step, is a copy) rows in any order."""
        table = np.array(rows, np.int64).reshape(-1, 5)
        table = table[np.argsort(table[:, 0], kind="stable")]
        return cls(
            start_ns=table[:, 0],
            end_ns=table[:, 1],
            launch_ns=table[:, 2],
            step=table[:, 3],
            copies=table[:, 4].astype(bool),
        )


_IDLE: Final = Busy.of([])  # one for all ranks that never computed: nobody writes into it


@dataclass(slots=True, eq=False)
class Work:
    """A segment: `dur_ns` of compute that starts when everything in `after` has ended.

    And when everything in `starts_after` has started.
    """

    start_ns: int | None
    dur_ns: int
    after: tuple[Call | Work, ...] = ()
    stream: int = 0
    starts_after: tuple[Call | Work, ...] = ()


@dataclass(slots=True, eq=False)
class Enter:
    """The rank enters `call` when `after` has ended and `starts_after` has started."""

    time_ns: int | None
    call: Call
    after: tuple[Call | Work, ...] = ()
    starts_after: tuple[Call | Work, ...] = ()


@dataclass(slots=True, kw_only=True)
class Recording:
    """What one file says about one rank.

    Times are ns of the machine's clock; without `timed` they only order what happened. Several
    `partial` recordings of one rank add up. `syncs` are
    when the host waited for the GPU, `updates_ns` when it began to update parameters,
    `places` are this rank's place in groups and their size, where members are not listed. `program`
    is, by step, what the rank does, in formats that say so instead of when. `transport`
    is when data moved between ranks or a rank waited for it (known operation or not).
    """

    path: str
    format: str
    schema: str | None = None
    rank: int | None = None
    world: int | None = None
    host: str | None = None
    process: int | None = None
    groups: Mapping[str, Group] = field(default_factory=dict)
    places: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    calls: list[Call] = field(default_factory=list)
    busy: Busy = _IDLE
    on_gpu: bool = False
    partial: bool = False
    timed: bool = False
    syncs: list[tuple[int, int]] = field(default_factory=list)
    rows: dict[int, tuple[int, int]] = field(default_factory=dict)
    updates_ns: list[int] = field(default_factory=list)
    transport: list[tuple[int, int]] = field(default_factory=list)
    kernels: int = 0
    program: dict[int, list[Work | Enter]] | None = None
    losses: Losses = field(default_factory=Losses)
