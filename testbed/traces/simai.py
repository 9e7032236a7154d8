"""SimAI and ASTRA-sim workload text: layers with compute and a collective in each direction.

Line 1 is a policy and `key: value` pairs, line 2 the number of rows; a row is name, dependency,
then time, collective and bytes of forward, input gradient and weight gradient, then the update
time. Times are ns, bytes the full tensor. One line of layers is run forwards, then backwards; each
rank does the same, so rank 0 is read and the others follow by symmetry. Ranks lie on a grid: tensor
parallel fastest, then data parallel (experts within it), then pipeline.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from scheduler.model.workload import Group
from testbed.traces.capture import MOST_RANKS, Call, Enter, Recording, Work
from testbed.traces.names import collective_kind
from topologies.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from testbed.traces.sources import Blob

__all__ = ["SimAi", "full_tensor", "grid", "require_countable"]

_POLICIES: Final = re.compile(
    r"(?:MICRO|DATA|TRANSFORMER\w*|MODEL|DLRM\w*|HYBRID_\w+|DISTRIBUTED_INFERENCE)(?=\s|$)"
)
_PAIR: Final = re.compile(r"(\w+):?\s+(\d+)")
_COLUMNS: Final = 12
_SUFFIXES: Final = ("_DP_EP", "_EP", "_DP", "_TP")


class _Row(NamedTuple):
    """(time in ns, collective, bytes) of each direction, and the update time in ns."""

    forward: tuple[int, str, int]
    inputs: tuple[int, str, int]
    weights: tuple[int, str, int]
    update_ns: int


class SimAi:
    """The importer of SimAI and ASTRA-sim text: one file is all ranks."""

    name: Final = "simai"

    def sniff(self, head: bytes) -> bool:
        """Tell by its beginning whether a file is workload text."""
        lines = head.decode("utf-8", "replace").splitlines()[:2]
        return (
            len(lines) == 2  # noqa: PLR2004 (policy and number of rows)
            and _POLICIES.match(lines[0]) is not None
            and lines[1].strip().isdecimal()
        )

    def read(self, blob: Blob) -> list[Recording]:
        """Read rank 0; `InputError` when rows are missing or are no rows."""
        lines = blob.load().decode("utf-8", "replace").splitlines()
        if len(lines) < 2 or not lines[1].strip().isdecimal():  # noqa: PLR2004 (the two headers)
            raise InputError(
                "the second line is not the number of rows",
                blob.path,
                "a workload begins with a policy and that number",
                "generate the file again",
            )
        head = {key: int(value) for key, value in _PAIR.findall(lines[0])}
        rows = [
            _row(line, f"{blob.path} line {number}")
            for number, line in enumerate(lines[2:], start=3)
            if line.strip()
        ]
        if len(rows) != int(lines[1]):
            raise InputError(
                f"the file declares {int(lines[1])} rows and has {len(rows)}",
                blob.path,
                "some are missing or the number is wrong",
                "generate the file again, or correct line 2",
            )
        recording = Recording(path=blob.path, format=self.name, schema=lines[0].split()[0], rank=0)
        tp, pp = head.get("model_parallel_NPU_group", 1), head.get("pp", 1)
        world = head.get("all_gpus")
        if world is None:
            what = "the number of GPUs is not in the file: data parallelism taken as 1"
            recording.losses.add(what)
            world = tp * pp
        ep = head.get("ep", 1)
        sizes = {"all_gpus": world, "model_parallel_NPU_group": tp, "pp": pp, "ep": ep}
        require_countable(sizes, f"{blob.path} line 1")
        recording.world = world
        recording.groups = grid(world, tp, pp, ep)
        if head.get("pp_comm"):
            what = "pipeline transfers (pp_comm), which no row places"
            recording.losses.add(what, f"{head['pp_comm']} bytes")
        _run(rows, recording)
        return [recording]


def _row(line: str, where: str) -> _Row:
    fields = line.split()
    numbers = [fields[i] for i in (2, 4, 5, 7, 8, 10, 11) if i < len(fields)]
    if len(fields) < _COLUMNS or not all(number.isdecimal() for number in numbers):
        raise InputError(
            "this is not a row of a workload",
            where,
            f"it has {len(fields)} columns, of which {_COLUMNS} hold a layer",
            "correct the line",
        )
    parts = [(int(fields[i]), fields[i + 1], int(fields[i + 2])) for i in (2, 5, 8)]
    return _Row(parts[0], parts[1], parts[2], int(fields[11]))


def require_countable(sizes: Mapping[str, int], where: str) -> None:
    """Raise `InputError` unless each of the named sizes is a possible number of ranks."""
    for name, size in sizes.items():
        if not 0 < size <= MOST_RANKS:
            raise InputError(
                f"{name} is {size}",
                where,
                f"fluxbed counts from 1 to {MOST_RANKS} ranks",
                "correct the number",
            )


def grid(world: int, tp: int, pp: int, ep: int) -> dict[str, Group]:
    """Return rank 0's groups: tensor, data, expert, and data among equal experts.

    >>> [group.ranks for group in grid(16, 2, 2, 2).values()]
    [(0, 1), (0, 2, 4, 6), (0, 2), (0, 4)]
    """
    dp = max(1, world // (tp * pp))
    ep = min(ep, dp)
    spans = {"tp": (1, tp), "dp": (tp, dp), "ep": (tp, ep), "dp_ep": (tp * ep, max(1, dp // ep))}
    return {
        name: Group(ranks=tuple(range(0, stride * size, stride)), desc=name)
        for name, (stride, size) in spans.items()
    }


def full_tensor(kind: str, full_bytes: int, size: int) -> tuple[int, int]:
    """Return what goes in and out of a rank, when `full_bytes` is the whole tensor.

    >>> full_tensor("all_gather", 64, 4), full_tensor("reduce_scatter", 64, 4)
    ((16, 64), (64, 16))
    """
    if kind == "all_gather":
        return full_bytes // size, full_bytes
    if kind == "reduce_scatter":
        return full_bytes, full_bytes // size
    return full_bytes, full_bytes


class _Rank:
    """Appends work and calls; work goes on after what it is told to wait for."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._items: list[Work | Enter] = []
        recording.program = {0: self._items}
        self._work: Work | None = None
        self._waiting: tuple[Call, ...] = ()

    def work(self, dur_ns: int) -> None:
        """Compute, after everything joined so far."""
        if dur_ns > 0:
            self._work = Work(None, dur_ns, self._waiting)
            self._items.append(self._work)
            self._waiting = ()

    def call(self, name: str, full_bytes: int, default: str) -> Call | None:
        """Enter a collective, after all work so far."""
        group = default
        for suffix in _SUFFIXES:
            if name.upper().endswith(suffix):
                name, group = name[: -len(suffix)], suffix.strip("_").lower()
                break
        if name.upper() == "NONE":
            return None
        if not full_bytes:
            self._recording.losses.add("collectives of 0 bytes", name)
            return None
        kind = collective_kind(name)
        if kind is None:
            self._recording.losses.add("collectives of unknown type", name)
            return None
        members = self._recording.groups[group].ranks
        in_bytes, out_bytes = full_tensor(kind, full_bytes, len(members))
        if full_bytes % len(members) and in_bytes != out_bytes:
            self._recording.losses.add("tensors that do not divide among ranks", name)
        call = Call(kind=kind, in_bytes=in_bytes, out_bytes=out_bytes, group=group, members=members)
        self._recording.calls.append(call)
        before = () if self._work is None else (self._work,)
        self._items.append(Enter(None, call, (*before, *self._waiting)))
        return call

    def join(self, call: Call | None) -> None:
        """Let the next work and calls wait for `call`."""
        if call is not None:
            self._waiting = (*self._waiting, call)


def _run(rows: list[_Row], recording: Recording) -> None:
    """Run layers forwards, then backwards; a weight gradient travels beside what follows."""
    rank = _Rank(recording)
    for row in rows:
        dur_ns, name, size = row.forward
        rank.work(dur_ns)
        rank.join(rank.call(name, size, "tp"))
    travelling: list[Call | None] = []
    for row in reversed(rows):
        rank.work(row.inputs[0])
        arriving = rank.call(row.inputs[1], row.inputs[2], "tp")
        rank.work(row.weights[0])
        travelling.append(rank.call(row.weights[1], row.weights[2], "dp"))
        rank.join(arriving)
    for call in travelling:
        rank.join(call)
    rank.work(sum(row.update_ns for row in rows))
