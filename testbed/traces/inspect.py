"""What is in a trace or workload: ranks, groups, operations, where time went, what is missing.

Times are unions of intervals, so two kernels side by side count once. Every rank is counted as its
file tells it, before anything is joined or dropped: one rank of a large job can be inspected.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from scheduler.model.workload import Compute
from testbed.traces.assembly import Options
from testbed.traces.capture import BEFORE
from testbed.traces.joining import of_window
from testbed.traces.loading import build, read_any
from topologies.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from scheduler.model.workload import Group, Loss, Workload
    from testbed.traces.capture import Recording

__all__ = ["Inspection", "OperationCount", "RankTimes", "dependency_depth", "inspect"]

Spans: TypeAlias = "NDArray[np.int64]"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationCount:
    """The operations of one kind in one iteration, over all ranks seen.

    `calls` counts each rank's part; bytes are sums over ranks of what is known, None where nothing
    is; `unknown` of the calls have no size. `ranks` is how many ranks take part.
    """

    iteration: int
    kind: str
    calls: int
    ranks: int
    in_bytes: int | None
    out_bytes: int | None
    unknown: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimes:
    """Where one rank's time went, in ns: unions of intervals over the whole capture.

    `kernels` and `communication_kernels` count GPU kernels (0 on a CPU; None where nothing says).
    `overlap_ns` is communication with compute beside it; copies of memory count in `busy_ns` alone.
    Of a workload whose operations have no times only `compute_ns` is known.
    """

    rank: int | None
    path: str
    kernels: int | None
    communication_kernels: int | None
    span_ns: int | None
    busy_ns: int | None
    compute_ns: int
    communication_ns: int | None
    overlap_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What was found. `missing` says in sentences what a replay would need besides.

    `dependency_depth` is the longest chain of operations per iteration, None where the ranks given
    do not make a workload.
    """

    format: str
    schema: str | None
    world: int | None
    ranks: tuple[int, ...]
    iterations: tuple[int, ...]
    groups: dict[str, Group]
    operations: tuple[OperationCount, ...]
    times: tuple[RankTimes, ...]
    dependency_depth: dict[int, int] | None
    losses: tuple[Loss, ...]
    missing: tuple[str, ...]


def inspect(
    paths: Iterable[Path | str] | Path | str,
    *,
    importer: str | None = None,
    window: int | None = None,
) -> Inspection:
    """Look into traces or a workload file; options as `load_workload`.

    With `window` only that profiler window is counted, of each rank that has it.

    Raises `InputError` when a file cannot be read at all. What keeps files from being replayed is
    told in `missing`.
    """
    given = [paths] if isinstance(paths, (str, Path)) else list(paths)
    found = read_any(given, importer=importer)
    if not isinstance(found, list):
        return _of_workload(found)
    seen = _of_recordings(found if window is None else of_window(found, window))
    try:
        workload = build(found, given, Options(window=window))
    except InputError as error:
        return replace(seen, missing=(str(error), *seen.missing))
    return replace(
        seen,
        groups=dict(workload.groups),
        dependency_depth=dependency_depth(workload),
        losses=workload.losses,
        missing=_unknown_sizes(seen.operations),
    )


def _of_workload(workload: Workload) -> Inspection:
    calls = [
        (op.iter, op.kind, rank, part.in_bytes, part.out_bytes)
        for op in workload.operations
        if not isinstance(op, Compute)
        for rank, part in op.ranks.items()
    ]
    return Inspection(
        format="fluxbed-workload",
        schema="1",
        world=workload.world,
        ranks=tuple(range(workload.world)),
        iterations=workload.iterations,
        groups=dict(workload.groups),
        operations=_count(calls),
        times=tuple(_workload_times(workload, rank) for rank in range(workload.world)),
        dependency_depth=dependency_depth(workload),
        losses=workload.losses,
        missing=_unknown_sizes(_count(calls)),
    )


def _workload_times(workload: Workload, rank: int) -> RankTimes:
    work: list[tuple[int, int]] = []
    wire: list[tuple[int, int]] = []
    total = 0
    for op in workload.operations:
        if isinstance(op, Compute):
            if op.rank == rank:
                total += op.dur_ns
                if op.start_ns is not None:
                    work.append((op.start_ns, op.start_ns + op.dur_ns))
        elif rank in op.ranks:
            arrive_ns, end_ns = op.ranks[rank].arrive_ns, op.ranks[rank].end_ns
            if arrive_ns is not None and end_ns is not None:
                wire.append((arrive_ns, end_ns))
    compute, communication = _merge(_spans(work)), _merge(_spans(wire))
    both = _merge(np.concatenate([compute, communication]))
    overlap_ns = _length(compute) + _length(communication) - _length(both)
    return RankTimes(
        rank=rank,
        path=workload.source.path,
        kernels=None,
        communication_kernels=None,
        span_ns=_extent(both) if both.size else None,
        busy_ns=_length(both) if both.size else None,
        compute_ns=total,
        communication_ns=_length(communication) if wire else None,
        overlap_ns=overlap_ns if wire and work else None,
    )


def _of_recordings(recordings: Sequence[Recording]) -> Inspection:
    calls = [
        (call.step, call.kind, place, call.in_bytes, call.out_bytes)
        for place, recording in enumerate(_distinct(recordings))
        for call in recording.calls
        if call.step != BEFORE
    ]
    ranks = tuple(sorted({r.rank for r in recordings if r.rank is not None}))
    counts = _count(calls)
    first = recordings[0]
    groups: dict[str, Group] = {}
    for recording in recordings:
        groups.update(recording.groups)
    unnamed = () if groups else ("no communicator is recorded: groups are unknown",)
    return Inspection(
        format="+".join(sorted({recording.format for recording in recordings})),
        schema=first.schema,
        world=next((r.world for r in recordings if r.world is not None), None),
        ranks=ranks,
        iterations=tuple(sorted({s.number for r in recordings for s in r.steps})) or (0,),
        groups=groups,
        operations=counts,
        times=tuple(
            _times(recording)
            for recording in sorted(recordings, key=lambda r: (r.rank is None, r.rank or 0))
            if recording.timed
        ),
        dependency_depth=None,
        losses=(),
        missing=(*unnamed, *_unknown_sizes(counts)),
    )


def _distinct(recordings: Sequence[Recording]) -> list[Recording]:
    """Leave out what is about a rank that a timed recording tells already."""
    timed = [recording for recording in recordings if recording.timed]
    known = {recording.rank for recording in timed}
    return timed + [r for r in recordings if not r.timed and (not timed or r.rank not in known)]


def _count(
    calls: Iterable[tuple[int | None, str, int, int | None, int | None]],
) -> tuple[OperationCount, ...]:
    """Sum (iteration, kind, rank, in bytes, out bytes) by iteration and kind."""
    number: Counter[tuple[int, str]] = Counter()
    unknown: Counter[tuple[int, str]] = Counter()
    ranks: dict[tuple[int, str], set[int]] = defaultdict(set)
    sums: dict[tuple[int, str], list[int | None]] = defaultdict(lambda: [None, None])
    for iteration, kind, rank, in_bytes, out_bytes in calls:
        key = (0 if iteration is None else iteration, kind)
        number[key] += 1
        unknown[key] += in_bytes is None and out_bytes is None and kind != "barrier"
        ranks[key].add(rank)
        for place, size in enumerate((in_bytes, out_bytes)):
            if size is not None:
                sums[key][place] = (sums[key][place] or 0) + size
    return tuple(
        OperationCount(
            iteration=key[0],
            kind=key[1],
            calls=number[key],
            ranks=len(ranks[key]),
            in_bytes=sums[key][0],
            out_bytes=sums[key][1],
            unknown=unknown[key],
        )
        for key in sorted(number)
    )


def _unknown_sizes(counts: Iterable[OperationCount]) -> tuple[str, ...]:
    total = sum(count.unknown for count in counts)
    if not total:
        return ()
    return (f"{total} calls have no size: record with record_shapes=True, PyTorch 2.4 or later",)


def _spans(intervals: Iterable[tuple[int, int]]) -> Spans:
    return np.array(list(intervals), np.int64).reshape(-1, 2)


def _merge(spans: Spans) -> Spans:
    """Return the disjoint union of intervals, shape (intervals, 2), in order. O(n log n)."""
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    if not len(spans):
        return spans
    ends = np.maximum.accumulate(spans[:, 1])
    first = np.concatenate([[True], spans[1:, 0] > ends[:-1]])
    last = np.concatenate([first[1:], [True]])
    return np.stack([spans[first, 0], ends[last]], axis=1)


def _length(merged: Spans) -> int:
    return int((merged[:, 1] - merged[:, 0]).sum())


def _extent(merged: Spans) -> int:
    return int(merged[-1, 1] - merged[0, 0]) if len(merged) else 0


def _times(recording: Recording) -> RankTimes:
    busy = recording.busy
    everything = np.stack([busy.start_ns, busy.end_ns], axis=1)
    compute = _merge(everything[~busy.copies])
    communication = _merge(_spans(recording.transport))
    both = _merge(np.concatenate([compute, communication]))
    union = _merge(np.concatenate([everything, communication]))
    return RankTimes(
        rank=recording.rank,
        path=recording.path,
        kernels=recording.kernels,
        communication_kernels=len(recording.transport) if recording.on_gpu else 0,
        span_ns=_extent(union),
        busy_ns=_length(union),
        compute_ns=_length(compute),
        communication_ns=_length(communication),
        overlap_ns=_length(compute) + _length(communication) - _length(both),
    )


def dependency_depth(workload: Workload) -> dict[int, int]:
    """Return, per iteration, how many operations its longest chain has, streams included.

    O(operations + dependencies); operations must come after what they wait for.
    """
    depth: dict[int, int] = {}
    deepest: dict[int, int] = {}
    last: dict[tuple[int, int, int | None], int] = {}
    for op in workload.operations:
        parts = (
            [(op.rank, op.stream, op.deps)]
            if isinstance(op, Compute)
            else [(rank, part.stream, part.deps) for rank, part in op.ranks.items()]
        )
        before = [depth.get(need, 0) for _, _, deps in parts for need in deps]
        before += [last.get((rank, stream, op.iter), 0) for rank, stream, _ in parts]
        depth[op.id] = 1 + max(before, default=0)
        for rank, stream, _ in parts:
            last[rank, stream, op.iter] = depth[op.id]
        if op.iter is not None:
            deepest[op.iter] = max(deepest.get(op.iter, 0), depth[op.id])
    return deepest
