"""NCCL's log: communicators with NCCL_DEBUG=INFO, operations with NCCL_DEBUG_SUBSYS=INIT,COLL.

Lines of several processes may interleave, with any prefix; torn ones are counted. A process is a
rank: its place in its largest communicator. `comm 0x...` is a process's own name of a communicator,
`commId` the common one. Counts are elements: of the buffer for all_reduce, of what one rank sends
for all_gather, of what it receives for reduce_scatter. There are no times and no waits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from testbed.traces.capture import MOST_RANKS, Call, Recording
from testbed.traces.names import collective_kind
from topologies.errors import InputError

if TYPE_CHECKING:
    from testbed.traces.sources import Blob

__all__ = ["NcclLog"]

_PROCESS: Final = re.compile(r"(?P<host>[\w.-]+):(?P<pid>\d+):\d+ \[(?P<device>\d+)\] NCCL INFO ")
_INIT: Final = re.compile(
    r"ncclCommInitRank\w* comm (?P<comm>0x[0-9a-f]+) rank (?P<rank>\d+) nranks (?P<size>\d+)"
    r".*commId (?P<id>0x[0-9a-f]+)"
)
_SPLIT: Final = re.compile(
    r"ncclCommSplit\w* comm (?P<comm>0x[0-9a-f]+) rank (?P<rank>\d+) nranks (?P<size>\d+)"
    r".*commId (?P<id>0x[0-9a-f]+)"
)
_OPERATION: Final = re.compile(
    r"(?P<name>AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|Send|Recv|AlltoAll): "
    r"opCount (?P<op>[0-9a-f]+) .*count (?P<count>\d+) datatype (?P<type>\d+) op \d+ "
    r"root (?P<root>\d+) comm (?P<comm>0x[0-9a-f]+)"
)
_TYPE_BYTES: Final = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)
_TYPES: Final = (
    "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64",
    "bfloat16", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip


@dataclass(slots=True)
class _Process:
    """One rank: its communicators, by its own names, and its operations in order."""

    comms: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    calls: list[tuple[str, str, Call]] = field(default_factory=list)


class NcclLog:
    """The importer of NCCL logs: a file holds one rank or several."""

    name: Final = "nccl-log"

    def sniff(self, head: bytes) -> bool:
        """Tell by its beginning whether a file is an NCCL log."""
        return b" NCCL INFO " in head

    def read(self, blob: Blob) -> list[Recording]:
        """Read every rank in the log; `InputError` when it names no communicator."""
        processes: dict[tuple[str, str, str], _Process] = {}
        torn = 0
        for line in blob.load().decode("utf-8", "replace").splitlines():
            who = _PROCESS.search(line)
            if who is None:
                torn += "opCount" in line
                continue
            process = processes.setdefault((who["host"], who["pid"], who["device"]), _Process())
            if made := _INIT.search(line) or _SPLIT.search(line):
                process.comms[made["comm"]] = (made["id"], int(made["rank"]), int(made["size"]))
            elif done := _OPERATION.search(line):
                if int(done["type"]) < len(_TYPES):
                    process.calls.append((done["comm"], done["op"], _call(done)))
                else:
                    torn += 1
            elif "opCount" in line:
                torn += 1
        if not any(process.comms for process in processes.values()):
            raise InputError(
                "no communicator is recorded",
                blob.path,
                "the log has no ncclCommInitRank lines",
                "set NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,COLL from the start",
            )
        recordings = [
            _recording(blob.path, self.name, host, process)
            for (host, _, _), process in processes.items()
            if process.comms
        ]
        recordings[0].losses.add("torn lines", blob.path, torn)
        return recordings


def _call(done: re.Match[str]) -> Call:
    kind = collective_kind(done["name"])
    assert kind is not None
    number = int(done["type"])
    size = int(done["count"]) * _TYPE_BYTES[number]
    call = Call(kind=kind, dtype=_TYPES[number], in_bytes=size, out_bytes=size)
    root = int(done["root"])
    if kind in ("broadcast", "reduce"):
        call.root, call.local = root, True
    elif kind in ("send", "recv"):
        call.peer, call.local = root, True
        call.in_bytes, call.out_bytes = (size, None) if kind == "send" else (None, size)
    return call


def _recording(path: str, form: str, host: str, process: _Process) -> Recording:
    """Make a recording of a process; what one rank sends or receives is multiplied out."""
    _, rank, world = max(process.comms.values(), key=lambda comm: comm[2])
    recording = Recording(path=path, format=form, rank=rank, world=world, host=host)
    recording.places = {name: (place, size) for name, place, size in process.comms.values()}
    recording.losses.add("files without compute", path)
    kept: list[tuple[str, Call]] = []
    for comm, op, call in process.calls:
        if comm not in process.comms:
            recording.losses.add("operations of unknown communicators", comm)
            continue
        call.group, _, call.size = process.comms[comm]
        if call.in_bytes is not None and call.kind in ("all_gather", "all_to_all"):
            call.out_bytes = call.in_bytes * call.size
            call.in_bytes *= call.size if call.kind == "all_to_all" else 1
        elif call.out_bytes is not None and call.kind == "reduce_scatter":
            call.in_bytes = call.out_bytes * call.size
        kept.append((f"{comm} {op}", call))
    recording.calls = _exchanges(kept)
    for number, call in enumerate(recording.calls):
        call.issued_ns = number
    return recording


def _exchanges(listed: list[tuple[str, Call]]) -> list[Call]:
    """Join sends and receives of one operation number that reach everyone: an all_to_all."""
    calls: list[Call] = []
    at = 0
    while at < len(listed):
        end = at
        while end < len(listed) and listed[end][0] == listed[at][0]:
            end += 1
        together = [call for _, call in listed[at:end]]
        whole = _exchange(together)
        calls += together if whole is None else [whole]
        at = end
    return calls


def _exchange(calls: list[Call]) -> Call | None:
    size = calls[0].size or 0
    if size > MOST_RANKS:
        return None
    sent, received = ([0] * size for _ in range(2))
    peers: dict[str, set[int]] = {"send": set(), "recv": set()}
    for call in calls:
        if call.kind not in peers or call.peer is None or call.peer >= size:
            return None
        peers[call.kind].add(call.peer)
        sent[call.peer] += call.in_bytes or 0
        received[call.peer] += call.out_bytes or 0
    if size < 2 or min(len(found) for found in peers.values()) < max(2, size - 1):  # noqa: PLR2004
        return None
    return Call(
        kind="all_to_all",
        dtype=calls[0].dtype,
        group=calls[0].group,
        size=size,
        splits=tuple(sent),
        in_bytes=sum(sent),
        out_bytes=sum(received),
    )
