"""What a collective sends: messages between members, and which of them wait for which.

`Flows` is a pattern over member numbers 0..n-1, before any rank or node is known, so collectives
of the same shape share one. It is made by an algorithm (`scheduler.model.collectives`) and then
refined here: cut into lanes and pieces, freed of empty messages, given its reduction times.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from topologies.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from scheduler.model.taskgraph import Int64s

__all__ = ["GATE", "Flows", "divide", "duration_ns", "join", "pairs", "require_countable"]

GATE: Final = -1  # the `dst` of a row that is not a message
_MOST_ROWS: Final = 2**24


def pairs(rows: Sequence[tuple[int, int]] = ()) -> Int64s:
    """Return `rows` with shape (rows, 2), also when there is none."""
    return np.array(rows, np.int64).reshape(-1, 2)


def divide(sizes_bytes: Int64s, parts: int, element_bytes: int) -> Int64s:
    """Cut each size into `parts` that differ by at most one element and sum to it exactly.

    Shape (sizes,) to (sizes, parts). A size that is no whole number of elements is cut by bytes.

    >>> divide(np.array([20]), 3, 4).tolist()
    [[8, 8, 4]]
    """
    sizes = np.asarray(sizes_bytes, np.int64)[:, None]
    element = np.where(sizes % element_bytes == 0, element_bytes, 1)
    quotient, rest = np.divmod(sizes // element, parts)
    cut: Int64s = (quotient + (np.arange(parts) < rest)) * element
    return cut


def require_countable(rows: int) -> None:
    """Raise `UsageError` for a collective of more messages than can be held."""
    if rows > _MOST_ROWS:
        raise UsageError(
            f"one collective has {rows} messages",
            "expansion",
            f"fluxbed holds up to {_MOST_ROWS}",
            "use larger chunks, fewer channels, or an algorithm such as tree",
        )


def duration_ns(sizes_bytes: Int64s, rate_bps: int) -> Int64s:
    """Return how long each size takes at `rate_bps`, rounded up; shape (sizes,).

    >>> duration_ns(np.array([2**31]), 800 * 10**9).tolist()
    [21474837]
    """
    bits = (8 * size for size in sizes_bytes.tolist())  # times 10**9 is more than 64 bits
    return np.array([-(-each * 10**9 // rate_bps) for each in bits], np.int64)


@dataclass(frozen=True, kw_only=True)
class Flows:
    """Messages and gates of one collective. Arrays have shape (rows,) unless said.

    A row with `dst` >= 0 is a message from member `src` to member `dst`; a row with `dst` = GATE
    is a moment at member `src`, `dur_ns` long. `step` is the row's step, and `part` tells apart the
    messages of one step that need not move together. `reduces` marks messages the receiver adds to
    its own data before it goes on. `arcs`, shape (arcs, 2), are (before, after) rows. Messages
    follow the entry of their ends by rule; `entered` (member, row) and `left` (row, member), shape
    (k, 2), are the entries a gate waits for and the exits that wait for a gate.
    """

    src: Int64s
    dst: Int64s
    size_bytes: Int64s
    step: Int64s
    part: Int64s
    reduces: NDArray[np.bool_]
    arcs: Int64s
    dur_ns: Int64s
    entered: Int64s = field(default_factory=pairs)
    left: Int64s = field(default_factory=pairs)

    @classmethod
    def of(
        cls,
        src: Int64s,
        dst: Int64s,
        size_bytes: Int64s,
        step: Int64s,
        *,
        reduces: bool | NDArray[np.bool_] = False,
        arcs: Int64s | None = None,
        entered: Int64s | None = None,
        left: Int64s | None = None,
        dur_ns: Int64s | None = None,
    ) -> Flows:
        """Make flows of one part; arrays of any equal shape are flattened."""
        columns = [np.ravel(np.asarray(c, np.int64)) for c in (src, dst, size_bytes, step)]
        rows = len(columns[0])
        return cls(
            src=columns[0],
            dst=columns[1],
            size_bytes=columns[2],
            step=columns[3],
            part=np.zeros(rows, np.int64),
            reduces=np.broadcast_to(np.ravel(np.asarray(reduces, np.bool_)), (rows,)).copy(),
            arcs=pairs() if arcs is None else arcs,
            entered=pairs() if entered is None else entered,
            left=pairs() if left is None else left,
            dur_ns=np.zeros(rows, np.int64) if dur_ns is None else dur_ns,
        )

    @property
    def rows(self) -> int:
        """How many messages and gates there are."""
        return len(self.src)

    @property
    def is_message(self) -> NDArray[np.bool_]:
        """True where a row is a message."""
        return np.asarray(self.dst != GATE)

    @cached_property
    def group(self) -> Int64s:
        """Number of the row's (step, part), counted from 0: rows that move together share it."""
        key = self.step * (self.part.max(initial=0) + 1) + self.part
        return np.unique(key, return_inverse=True)[1].astype(np.int64)

    @cached_property
    def groups(self) -> int:
        """How many different (step, part) there are."""
        return int(self.group.max(initial=-1)) + 1

    def local_arcs(self, members: int, *, eager_send: bool) -> Int64s:
        """Return all arcs in the collective's own numbering, shape (arcs, 2).

        The entry of member i is task i, row r is task members + r, the exit of member i is task
        members + rows + i. A message waits for its sender's entry, unless what it waits for was
        received there, and (without `eager_send`) for its receiver's; an exit waits for what its
        member sent, and for what it received unless that was sent on.
        """
        leave = members + self.rows
        everyone = np.arange(members)
        row = np.flatnonzero(self.is_message)
        first, then = self.arcs[:, 0], self.arcs[:, 1]
        reached = np.where(self.is_message, self.dst, self.src)
        relayed = self.arcs[reached[first] == self.src[then]]
        carried, passed_on = np.zeros((2, self.rows), np.bool_)
        carried[relayed[:, 1]] = True  # its sender is known to have entered
        passed_on[relayed[:, 0]] = True  # its receiver leaves after something later
        opening = row if eager_send else row[~carried[row]]
        ending = row[~passed_on[row]]
        listed = [
            np.stack([everyone, leave + everyone], axis=1),
            np.stack([self.src[opening], members + opening], axis=1),
            np.stack([members + row, leave + self.src[row]], axis=1),
            np.stack([members + ending, leave + self.dst[ending]], axis=1),
            self.arcs + members,
            self.entered + np.array([0, members]),
            self.left + np.array([members, leave]),
        ]
        if not eager_send:
            listed.insert(2, np.stack([self.dst[row], members + row], axis=1))
        return np.concatenate(listed)

    def take(self, rows: Int64s, arcs: Int64s) -> Flows:
        """Return the flows of `rows` in that order, with `arcs` already in the new numbering.

        `entered` and `left` follow the rows they name; those of rows not taken are dropped.
        """
        where = np.full(self.rows, -1, np.int64)
        where[rows] = np.arange(len(rows))
        entered, left = self.entered.copy(), self.left.copy()
        entered[:, 1] = where[entered[:, 1]]
        left[:, 0] = where[left[:, 0]]
        return replace(
            self,
            **{name: getattr(self, name)[rows] for name in _COLUMNS},
            arcs=arcs,
            entered=entered[entered[:, 1] >= 0],
            left=left[left[:, 0] >= 0],
        )

    def without_empty(self) -> Flows:
        """Drop messages of zero bytes, which bring nothing that anything could wait for."""
        full = ~self.is_message | (self.size_bytes > 0)
        where = np.cumsum(full) - 1
        arcs = self.arcs[full[self.arcs].all(axis=1)]
        return self.take(np.flatnonzero(full), where[arcs])

    def lanes(self, lanes: int, element_bytes: int) -> Flows:
        """Split the data over `lanes` that proceed independently of one another.

        Gates keep their time in each: lanes share what they spend it on.
        """
        if lanes == 1 or not self.is_message.any():
            return self
        sizes = divide(self.size_bytes, lanes, element_bytes)
        parts = self.part.max(initial=0) + 1
        return join(
            [
                replace(self, size_bytes=sizes[:, lane], part=self.part + lane * parts)
                for lane in range(lanes)
            ]
        )

    def pieces(self, pieces: int, element_bytes: int) -> Flows:
        """Send each message in up to `pieces` separate ones; it has arrived when all have."""
        if pieces == 1:
            return self
        sizes = divide(self.size_bytes, pieces, element_bytes)
        sizes[~self.is_message, 0] = 1  # a gate stays one row
        row, piece = np.nonzero(sizes)
        count = np.bincount(row, minlength=self.rows)
        place = np.cumsum(count) - count
        first, then = self.arcs[:, 0], self.arcs[:, 1]
        copies = count[first] * count[then]
        arc = np.repeat(np.arange(len(self.arcs)), copies)
        which = np.arange(len(arc)) - np.repeat(np.cumsum(copies) - copies, copies)
        from_piece, to_piece = np.divmod(which, count[then[arc]])
        arcs = np.stack([place[first[arc]] + from_piece, place[then[arc]] + to_piece], axis=1)
        whole = self.take(row.astype(np.int64), arcs)
        entered, left = self.entered.copy(), self.left.copy()
        entered[:, 1], left[:, 0] = place[entered[:, 1]], place[left[:, 0]]
        return replace(
            whole,
            size_bytes=np.where(whole.is_message, sizes[row, piece], 0),
            part=whole.part * pieces + piece,
            entered=entered,
            left=left,
        )

    def on_the_wire(self, numerator: int, denominator: int) -> Flows:
        """Multiply sizes by the overhead of a protocol, rounded up for each message."""
        return replace(self, size_bytes=-(-self.size_bytes * numerator // denominator))

    def reduced(self, reduce_bw_bps: int) -> Flows:
        """Put the time to add a received message in front of everything that waits for it."""
        heavy = np.flatnonzero(self.reduces & self.is_message)
        arcs = self.arcs.copy()
        gate_of = np.full(self.rows, -1, np.int64)
        gate_of[heavy] = self.rows + np.arange(len(heavy))
        waits = gate_of[arcs[:, 0]] >= 0
        arcs[waits, 0] = gate_of[arcs[waits, 0]]
        gates = Flows.of(
            self.dst[heavy],
            np.full(len(heavy), GATE),
            np.zeros(len(heavy), np.int64),
            self.step[heavy],
            dur_ns=duration_ns(self.size_bytes[heavy], reduce_bw_bps),
        )
        both = join([replace(self, reduces=np.zeros(self.rows, np.bool_)), gates])
        links = np.stack([heavy, gate_of[heavy]], axis=1)
        last = np.setdiff1d(gate_of[heavy], arcs[:, 0])
        left = np.stack([last, both.src[last]], axis=1)
        return replace(
            both,
            arcs=np.concatenate([arcs, links]),
            left=np.concatenate([self.left, left]),
        )

    def ordered(self) -> Flows:
        """Number the rows by step, part, source and destination: the order of message ids."""
        order = np.lexsort((self.dst, self.src, self.part, self.step))
        where = np.empty(self.rows, np.int64)
        where[order] = np.arange(self.rows)
        arcs = where[self.arcs]
        return self.take(order.astype(np.int64), arcs[np.lexsort((arcs[:, 1], arcs[:, 0]))])


_COLUMNS = ("src", "dst", "size_bytes", "step", "part", "reduces", "dur_ns")


def join(flows: Sequence[Flows]) -> Flows:
    """Put independent flows side by side, renumbering their rows."""
    shifts = np.cumsum([0, *(f.rows for f in flows)])[:-1]
    pairings = list(zip(flows, shifts, strict=True))
    return Flows(
        **{name: np.concatenate([getattr(f, name) for f in flows]) for name in _COLUMNS},
        arcs=np.concatenate([f.arcs + shift for f, shift in pairings]),
        entered=np.concatenate([f.entered + np.array([0, shift]) for f, shift in pairings]),
        left=np.concatenate([f.left + np.array([shift, 0]) for f, shift in pairings]),
    )
