"""PyTorch's flight recorder (TORCH_FR_BUFFER_SIZE): JSON, or pickle read without any class.

A ring buffer of what was enqueued: sizes and types, group and sequence number, when it was enqueued
(the other times are the watchdog's). Ranks begin at different sequence numbers; what not all
members have is dropped when ranks are joined. Group lists in the file can be those of another
group, so a group's members are the ranks that name it, unless the list says the same name. gloo
logs a reduce_scatter as an all_reduce, and no sends.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
from math import prod
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct, field

from scheduler.model.workload import Group
from testbed.files.codec import decode_json
from testbed.traces.capture import Call, Recording
from testbed.traces.kineto_calls import numbers
from testbed.traces.membership import RING_FORMAT
from testbed.traces.names import collective_kind, dtype_bytes
from topologies.errors import InputError

if TYPE_CHECKING:
    from testbed.traces.sources import Blob

__all__ = ["FlightRecorder"]

_RANK: Final = re.compile(r"(\d+)(?=\D*$)")
_PEER: Final = re.compile(r"(\d+)\s*(?:->|<-)\s*(\d+)")
_PICKLE: Final = b"\x80"
_DAMAGED: Final = (  # what the unpickler raises, documented to be almost anything
    pickle.UnpicklingError,
    msgspec.ValidationError,
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    TypeError,
    ValueError,
)


class _Entry(Struct):
    profiling_name: str
    process_group: list[Any] = field(default_factory=list)
    collective_seq_id: int | None = None
    time_created_ns: int = 0
    input_sizes: list[list[int]] = field(default_factory=list)
    output_sizes: list[list[int]] = field(default_factory=list)
    input_dtypes: list[str] = field(default_factory=list)
    output_dtypes: list[str] = field(default_factory=list)
    is_p2p: bool = False


class _File(Struct):
    entries: list[_Entry]
    pg_config: dict[str, dict[str, Any]] = field(default_factory=dict)
    version: Any = None


class _NoClasses(pickle.Unpickler):
    """Reads plain data; anything that names a class is refused."""

    def find_class(self, module_name: str, global_name: str) -> Any:  # noqa: ANN401 (raises)
        """Refuse: a dump is made of dicts, lists, numbers and text."""
        message = f"it names {module_name}.{global_name}"
        raise pickle.UnpicklingError(message)


class FlightRecorder:
    """The importer of flight-recorder dumps: one file is one rank."""

    name: Final = RING_FORMAT

    def sniff(self, head: bytes) -> bool:
        """Tell by its beginning whether a file is a flight-recorder dump."""
        if head.startswith(_PICKLE):
            return b"entries" in head or b"pg_config" in head
        text = head.lstrip()
        return text.startswith(b"{") and b'"profiling_name"' in head and b'"entries"' in head

    def read(self, blob: Blob) -> list[Recording]:
        """Read one rank, the last number of the file's name; `InputError` when it is damaged."""
        data = blob.load()
        what = "a flight-recorder dump"
        if data.startswith(_PICKLE):
            file = _unpickle(data, blob.path, what)
        else:
            file = decode_json(data, _File, blob.path, what)
        recording = Recording(path=blob.path, format=self.name)
        recording.schema = None if file.version is None else str(file.version)
        if match := _RANK.search(blob.name.partition(".")[0]):
            recording.rank = int(match[1])
            recording.losses.add("ranks taken from the file's name", blob.name)
        recording.groups = {
            str(group["name"]): Group(ranks=ranks, desc=str(group.get("desc")))
            for group in file.pg_config.values()
            if group.get("name") and (ranks := numbers(group.get("ranks")))
        }
        recording.losses.add("files without compute", blob.path)
        for entry in file.entries:
            kind = collective_kind(entry.profiling_name)
            if kind is None:
                recording.losses.add("entries of unknown operation", entry.profiling_name)
            else:
                recording.calls.append(_call(entry, kind, recording))
        recording.calls.sort(key=lambda call: call.issued_ns or 0)
        return [recording]


def _unpickle(data: bytes, path: str, what: str) -> _File:
    try:
        _check_memo(data)
        content = _NoClasses(io.BytesIO(data)).load()
        return msgspec.convert(content, _File, strict=False)
    except _DAMAGED as error:
        text = str(error) or type(error).__name__
        raise InputError(
            f"this is not {what}", path, text[:1].lower() + text[1:], "dump it again, as JSON"
        ) from error


def _check_memo(data: bytes) -> None:
    """Raise ValueError for places in the pickle's memo that would take gigabytes to hold."""
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > len(data):
            message = f"it remembers {argument} things in {len(data)} bytes"
            raise ValueError(message)


def _call(entry: _Entry, kind: str, recording: Recording) -> Call:
    name = str(entry.process_group[0]) if entry.process_group else None
    call = Call(
        kind=kind,
        in_bytes=_size(entry.input_sizes, entry.input_dtypes),
        out_bytes=_size(entry.output_sizes, entry.output_dtypes),
        dtype=entry.input_dtypes[0].lower() if entry.input_dtypes else None,
        group=name,
        seq=None if entry.is_p2p else entry.collective_seq_id,
        issued_ns=entry.time_created_ns,
    )
    if name is not None and name in recording.groups:
        call.members = recording.groups[name].ranks
    if kind == "barrier":
        call.in_bytes = call.out_bytes = None
    elif kind in ("send", "recv"):
        if match := _PEER.search(entry.profiling_name):
            call.peer, call.local = int(match[2]), True
        if kind == "send":
            call.out_bytes = None
        else:
            call.in_bytes, call.out_bytes = None, call.out_bytes or call.in_bytes
    return call


def _size(sizes: list[list[int]], dtypes: list[str]) -> int | None:
    units = [dtype_bytes(dtype) for dtype in dtypes]
    if not sizes or len(units) < len(sizes) or None in units:
        return None
    return sum(prod(shape) * (unit or 0) for shape, unit in zip(sizes, units, strict=False))
