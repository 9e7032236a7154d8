"""Numbering the tasks of an iteration and drawing the arcs between them.

A `Draft` takes operations in program order, hands out task ids, and remembers for every rank and
stream what came last. `Draft.graph` then fills the arrays, all collectives of one shape at a time.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from scheduler.model.flows import duration_ns
from scheduler.model.inside import condensed
from scheduler.model.taskgraph import (
    COMPUTE,
    MARKER,
    MESSAGE,
    ORIGINS,
    Arcs,
    TaskGraph,
)
from scheduler.model.workload import Compute
from topologies.errors import InputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scheduler.model.flows import Flows
    from scheduler.model.taskgraph import Int64s
    from scheduler.model.workload import Collective, Operation, Workload

__all__ = ["INTERNAL_STREAM", "Draft"]

INTERNAL_STREAM: Final = -2
_LONGEST_NS: Final = 366 * 86_400 * 10**9
_MOST_TASKS: Final = 2**26
_NAMED: Final = 5  # operations of a circle that an error lists
_RECORDED: Final = ORIGINS.index("recorded")
_STREAM: Final = ORIGINS.index("stream")
_COLLECTIVE: Final = ORIGINS.index("collective")
_ITERATION: Final = ORIGINS.index("iteration")


@dataclass(slots=True)
class _Batch:
    """All collectives of one shape: first task, first group, op and members of each."""

    flows: Flows
    first: list[int] = field(default_factory=list)
    group: list[int] = field(default_factory=list)
    op: list[int] = field(default_factory=list)
    ranks: list[tuple[int, ...]] = field(default_factory=list)


class Draft:
    """Tasks and arcs while they are being collected. `cut` counts dependencies left out."""

    def __init__(
        self,
        workload: Workload,
        placement: Sequence[int],
        nodes: int,
        *,
        eager_send: bool,
        scale_up_bps: int | None = None,
    ) -> None:
        self._placement = np.array(placement, np.int64)
        self._homes = list(placement)
        self._nodes = nodes
        self._eager = eager_send
        self._scale_up_bps = scale_up_bps
        self._path = workload.source.path
        self._condensed: dict[int, tuple[Flows, Flows]] = {}  # as made, and inside one node
        self._all_ids = {op.id for op in workload.operations}
        self._marked = {
            other
            for op in workload.operations
            for part in ([op] if isinstance(op, Compute) else op.ranks.values())
            for other in part.starts_after
        }
        self._tasks = 0
        self._groups = 0
        self._batches: dict[int, _Batch] = {}
        self._rows = array("q")  # task, kind, op, rank, stream, position, dur_ns, one after another
        self._begin: dict[int, int | dict[int, int]] = {}  # a collective's by rank
        self._end: dict[int, int | dict[int, int]] = {}
        self._waits: list[tuple[int, int, int, tuple[int, ...], tuple[int, ...]]] = []
        self._streams: dict[tuple[int, int], list[int]] = {}  # first and last task, next position
        self._arcs = array("q")  # before, after, origin
        self.cut = 0

    def _place(self, rank: int, stream: int, first: int, last: int) -> int:
        """Append `first` and `last` to a stream; return the position of `first` on it."""
        tasks = 1 + (last > first)
        known = self._streams.get((rank, stream))
        if known is None:
            position = 0
            self._streams[rank, stream] = [first, last, tasks]
        else:
            _, before, position = known
            self._arcs.extend((before, first, _STREAM))
            known[1:] = last, position + tasks
        return position

    def _admit(self, op: Operation) -> None:
        if op.id in self._end:
            raise InputError(
                f"two operations have the id {op.id}",
                self._path,
                "dependencies name operations by id",
                "give each its own",
            )

    def add_compute(self, op: Compute, dur_ns: int) -> None:
        """Add a computation that lasts `dur_ns`."""
        self._admit(op)
        if not 0 <= dur_ns <= _LONGEST_NS or op.stream < 0:
            raise InputError(
                f"it lasts {dur_ns} ns on stream {op.stream}",
                f"operation {op.id} (compute)",
                "neither is negative, and an iteration has less than a year",
                "correct it in the workload",
            )
        if not 0 <= op.rank < len(self._placement):
            raise InputError(
                f"rank {op.rank} takes part",
                f"operation {op.id} (compute)",
                f"the ranks are 0 to {len(self._placement) - 1}",
                "correct its rank or world",
            )
        task = self._tasks
        marked = op.id in self._marked
        self._tasks += 1 + marked
        last = self._end[op.id] = task + marked
        self._begin[op.id] = task
        position = self._place(op.rank, op.stream, task, last)
        if marked:
            self._rows.extend((task, MARKER, op.id, op.rank, op.stream, position, 0))
            self._arcs.extend((task, last, _STREAM))
        position += marked
        self._rows.extend((last, COMPUTE, op.id, op.rank, op.stream, position, dur_ns))
        if op.deps or op.starts_after:
            self._waits.append((op.id, op.rank, task, op.deps, op.starts_after))

    def add_collective(self, op: Collective, members: tuple[int, ...], flows: Flows) -> None:
        """Add a collective of `members`, whose member numbers `flows` speaks of."""
        self._admit(op)
        flows = self._as_placed(members, flows)
        first = self._tasks
        leave = first + len(members) + flows.rows
        self._tasks = leave + len(members)
        self._require_room()
        batch = self._batches.setdefault(id(flows), _Batch(flows))
        batch.first.append(first)
        batch.group.append(self._groups)
        batch.op.append(op.id)
        batch.ranks.append(members)
        self._groups += flows.groups
        self._begin[op.id] = dict(zip(members, range(first, first + len(members)), strict=True))
        self._end[op.id] = dict(zip(members, range(leave, leave + len(members)), strict=True))
        for index, rank in enumerate(members):
            part = op.ranks[rank]
            enter, end = first + index, leave + index
            position = self._place(rank, part.stream, enter, end)
            self._rows.extend((enter, MARKER, op.id, rank, part.stream, position, 0))
            self._rows.extend((end, MARKER, op.id, rank, part.stream, position + 1, 0))
            if part.deps or part.starts_after:
                self._waits.append((op.id, rank, enter, part.deps, part.starts_after))

    def _as_placed(self, members: tuple[int, ...], flows: Flows) -> Flows:
        """Return less of `flows` where all members are on one node, with the same exits."""
        if len({self._homes[rank] for rank in members}) != 1:
            return flows
        if (known := self._condensed.get(id(flows))) is None:
            dur_ns = np.where(flows.is_message, self._inside_ns(flows), flows.dur_ns)
            short = condensed(flows, len(members), dur_ns, eager_send=self._eager)
            known = self._condensed[id(flows)] = flows, short
        return known[1]

    def _find(
        self, table: dict[int, int | dict[int, int]], op: int, rank: int, other: int
    ) -> int | None:
        """Return the task of `other` that `rank` waits for; None if it is of another iteration."""
        known = table.get(other)
        if known is None:
            if other in self._all_ids:
                self.cut += 1
                return None
            raise InputError(
                f"it waits for operation {other}",
                f"operation {op} of rank {rank}",
                "there is no such operation",
                "correct its deps in the workload",
            )
        if isinstance(known, int):
            return known
        if rank in known:
            return known[rank]
        raise InputError(
            f"it waits for operation {other}",
            f"operation {op} of rank {rank}",
            f"rank {rank} takes no part in that one",
            "correct its deps in the workload",
        )

    def _recorded(self) -> None:
        """Draw the arcs of recorded dependencies, now that all operations are known."""
        for op, rank, task, deps, starts_after in self._waits:
            for table, others in ((self._end, deps), (self._begin, starts_after)):
                for other in others:
                    if (before := self._find(table, op, rank, other)) is not None:
                        self._arcs.extend((before, task, _RECORDED))

    def _require_room(self) -> None:
        if self._tasks > _MOST_TASKS:
            raise UsageError(
                f"the iteration has {self._tasks} tasks",
                self._path,
                f"fluxbed holds up to {_MOST_TASKS}",
                "use larger chunks, fewer channels or another algorithm",
            )

    def graph(self) -> TaskGraph:
        """Return the finished graph; raises `InputError` where an operation waits for itself."""
        self._require_room()
        kind = np.full(self._tasks, MARKER, np.int64)
        minus = {name: np.full(self._tasks, -1, np.int64) for name in _MINUS}
        zero = {name: np.zeros(self._tasks, np.int64) for name in ("size_bytes", "dur_ns")}
        rows = np.array(self._rows, np.int64).reshape(-1, 7)
        own = rows[:, 0]
        kind[own], zero["dur_ns"][own] = rows[:, 1], rows[:, 6]
        for column, name in enumerate(("op", "rank", "stream", "position"), 2):
            minus[name][own] = rows[:, column]
        self._recorded()
        listed = [np.array(self._arcs, np.int64).reshape(-1, 3)]
        listed += [self._fill(batch, kind, minus, zero) for batch in self._batches.values()]
        wraps = [(last, first) for first, last, _ in self._streams.values()]
        inside = np.concatenate(listed)
        wrap = np.array(wraps, np.int64).reshape(-1, 2)
        arcs = Arcs(
            before=np.concatenate([inside[:, 0], wrap[:, 0]]),
            after=np.concatenate([inside[:, 1], wrap[:, 1]]),
            distance=np.repeat(np.array([0, 1]), [len(inside), len(wrap)]),
            origin=np.concatenate([inside[:, 2], np.full(len(wrap), _ITERATION)]),
        )
        graph = TaskGraph(nodes=self._nodes, kind=kind, **minus, **zero, variation=None, arcs=arcs)
        _refuse_cycles(graph, self._path)
        return graph

    def _inside_ns(self, flows: Flows) -> Int64s:
        """Return how long each row takes where both its ranks are on one node."""
        if self._scale_up_bps is None:
            return flows.dur_ns
        return flows.dur_ns + duration_ns(flows.size_bytes, self._scale_up_bps)

    def _fill(
        self,
        batch: _Batch,
        kind: Int64s,
        minus: dict[str, Int64s],
        zero: dict[str, Int64s],
    ) -> Int64s:
        """Write the tasks between enter and leave of a batch; return its arcs, shape (arcs, 3)."""
        flows = batch.flows
        first = np.array(batch.first, np.int64)[:, None]
        ranks = np.array(batch.ranks, np.int64)
        n = ranks.shape[1]
        tasks = first + n + np.arange(flows.rows)
        minus["op"][tasks] = np.array(batch.op, np.int64)[:, None]
        minus["step"][tasks] = flows.step
        nodes = self._placement[ranks]
        src, dst = nodes[:, flows.src], nodes[:, flows.dst]
        crosses = flows.is_message & (src != dst)
        dur_ns = np.where(flows.is_message & ~crosses, self._inside_ns(flows), flows.dur_ns)
        kind[tasks] = np.where(crosses, MESSAGE, np.where(dur_ns > 0, COMPUTE, MARKER))
        minus["src"][tasks] = np.where(crosses, src, -1)
        minus["dst"][tasks] = np.where(crosses, dst, -1)
        minus["step"][tasks] = np.where(crosses, flows.step, -1)
        group = np.array(batch.group, np.int64)[:, None] + flows.group
        minus["group"][tasks] = np.where(crosses, group, -1)
        zero["size_bytes"][tasks] = np.where(crosses, flows.size_bytes, 0)
        zero["dur_ns"][tasks] = dur_ns
        here = ranks[:, np.where(flows.is_message, flows.dst, flows.src)]
        minus["rank"][tasks] = np.where(crosses, -1, here)
        minus["stream"][tasks] = np.where(crosses | (dur_ns == 0), -1, INTERNAL_STREAM)
        pattern = flows.local_arcs(n, eager_send=self._eager)
        arcs = np.empty((len(first), len(pattern), 3), np.int64)
        arcs[:, :, :2] = pattern + first[:, :, None]
        arcs[:, :, 2] = _COLLECTIVE
        return arcs.reshape(-1, 3)


_MINUS: Final = ("op", "rank", "stream", "position", "src", "dst", "group", "step")


def _refuse_cycles(graph: TaskGraph, path: str) -> None:
    """Raise `InputError` naming an operation that waits for itself."""
    if not (tasks := graph.cycle()):
        return
    named = sorted(set(graph.op[tasks].tolist()))
    among = ", ".join(map(str, named[:_NAMED])) + (", ..." if named[_NAMED:] else "")
    raise InputError(
        f"operation {named[0]} waits for itself",
        path,
        f"its dependencies and the order of its streams form a circle through {among}",
        "correct deps in the workload",
    )
