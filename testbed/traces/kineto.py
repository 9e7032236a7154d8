"""Kineto: the JSON of `torch.profiler`'s `export_chrome_trace`, 2021 to today, GPU or CPU.

Only the fields below are decoded. Absolute ns are ts * 1000 + baseTimeNanoseconds. A GPU kernel
belongs to the step in which the host launched it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Raw, Struct, field

from scheduler.model.workload import Group
from testbed.files.codec import decode_json
from testbed.traces.capture import BEFORE, Recording, Step, strided
from testbed.traces.kineto_cpu import read_cpu
from testbed.traces.kineto_gpu import read_gpu
from topologies.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testbed.traces.sources import Blob

__all__ = ["Args", "Event", "Events", "Kineto"]

_STEP: Final = re.compile(r"ProfilerStep#([0-9]{1,9})(?![0-9])")
_KERNEL: Final = re.compile(rb'"cat"\s*:\s*"[Kk]ernel"')
_MOST_US: Final = 3e15  # 95 years: a base, a time and a duration add up within 64 bits
_WHITE: Final = re.compile(rb"\s*")
_TELLING: Final = (
    *("record_", "c10d::", "ProfilerStep#", "Optimizer.step#"),
    *("nccl:", "rccl:", "hccl:", "xccl:", "ucc:", "mpi:", "gloo:"),
)
_CLASSES: Final = {  # what an event's category, lower-cased, says it is
    **dict.fromkeys(("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"), "work"),
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "privateuse1_runtime", "runtime"), "runtime"),
    **dict.fromkeys(("cpu_op", "user_annotation", "operator"), "host"),
}


_NOTHING: Final = Raw(b"")


class Args(Struct, gc=False):
    """What is read of an event's `args`."""

    correlation: int | float | str | None = None
    stream: int | float | str | None = None
    external_id: int | float | str | None = field(default=None, name="External id")
    function_id: int | float | str | None = field(default=None, name="Record function id")
    collective: Any = field(default=None, name="Collective name")
    in_elements: Any = field(default=None, name="In msg nelems")
    out_elements: Any = field(default=None, name="Out msg nelems")
    in_split: Any = field(default=None, name="In split size")
    out_split: Any = field(default=None, name="Out split size")
    dtype: Any = None
    group_size: Any = field(default=None, name="Group size")
    group_name: Any = field(default=None, name="Process Group Name")
    group_ranks: Any = field(default=None, name="Process Group Ranks")
    rank_start: Any = field(default=None, name="Global rank start")
    rank_stride: Any = field(default=None, name="Global rank stride")
    rank: Any = field(default=None, name="Rank")
    src_rank: Any = field(default=None, name="Src Rank")
    dst_rank: Any = field(default=None, name="Dst Rank")
    seq: Any = field(default=None, name="Seq")
    asynchronous: Any = field(default=None, name="Is asynchronized op")
    dims: Raw = field(default=_NOTHING, name="Input Dims")
    types: Raw = field(default=_NOTHING, name="Input type")
    concrete: Raw = field(default=_NOTHING, name="Concrete Inputs")


_NO_ARGS: Final = Args()


class _Event(Struct, gc=False):
    ph: Any = ""
    cat: Any = ""
    name: Any = ""
    pid: int | float | str | None = None
    tid: int | float | str | None = None
    ts: int | float | str | None = None
    dur: int | float | str | None = None
    args: Args | None = None


class _File(Struct):
    traceEvents: list[Raw]  # noqa: N815 (the file's own name)
    baseTimeNanoseconds: int | None = None  # noqa: N815 (likewise)
    distributedInfo: dict[str, Any] | None = None  # noqa: N815 (likewise)
    host_name: str | None = None
    schemaVersion: Any = None  # noqa: N815 (likewise)


class Event(Struct, gc=False):
    """A complete ("X") event, its times in ns; `cat` in lower case, `thread` (pid, tid)."""

    name: str
    cat: str
    thread: tuple[Any, Any]
    start_ns: int
    end_ns: int
    args: Args


class Events:
    """The complete events of a file, by what they are."""

    def __init__(self, steps: tuple[Step, ...]) -> None:
        self.work: list[Event] = []
        self.runtime: list[Event] = []
        self.host: list[Event] = []
        self.steps = steps
        self._starts = [step.start_ns for step in steps]

    def step_at(self, time_ns: int) -> int:
        """Return the number of the step in which the host was at `time_ns`, or `BEFORE`."""
        if not self.steps:
            return 0
        index = bisect_right(self._starts, time_ns) - 1
        if index < 0 or time_ns > self.steps[-1].end_ns:
            return BEFORE
        return self.steps[index].number


class Kineto:
    """The importer of Kineto traces: one file is one rank."""

    name: Final = "kineto"

    def sniff(self, head: bytes) -> bool:
        """Tell by its beginning whether a file is a Kineto trace."""
        text = head.lstrip()
        if text.startswith(b"{"):
            return b'"traceEvents"' in head or (
                b'"schemaVersion"' in head and b'"nodes"' not in head
            )
        return text.startswith(b"[") and b'"ph"' in head and b'"ts"' in head

    def read(self, blob: Blob) -> list[Recording]:
        """Read one rank; `InputError` when the file is cut, not JSON or holds no events."""
        recording = Recording(path=blob.path, format=self.name, timed=True)
        data = blob.load()
        on_gpu = _KERNEL.search(data) is not None
        file = _decode(data, recording)
        info = file.distributedInfo or {}
        recording.schema = None if file.schemaVersion is None else str(file.schemaVersion)
        recording.host = file.host_name
        recording.rank = _natural(info.get("rank"))
        recording.world = _natural(info.get("world_size"))
        recording.groups = _groups(info, recording.world)
        events = _sort(file, recording, on_gpu=on_gpu)
        if not (events.work or events.host):
            raise InputError(
                "no operations are recorded",
                blob.path,
                "it holds metadata only",
                "export the trace after at least one profiled step",
            )
        recording.steps = events.steps
        events_of_host = (*events.host[:1], *events.runtime[:1])
        recording.process = next((_natural(event.thread[0]) for event in events_of_host), None)
        recording.on_gpu = any(event.cat == "kernel" for event in events.work)
        if recording.on_gpu:
            read_gpu(events, recording)
        else:
            read_cpu(events, recording)
        return [recording]


def _decode(data: bytes, recording: Recording) -> _File:
    start = _WHITE.match(data)
    if start is not None and data.startswith(b"[", start.end()):
        data = b'{"traceEvents":' + data + b"}"
    return decode_json(data, _File, recording.path, "a Kineto trace")


def _complete_events(file: _File, recording: Recording) -> Iterator[tuple[_Event, str, str]]:
    """Decode the events one by one; yield complete ones of classes we read, category and class."""
    decode = msgspec.json.Decoder(_Event).decode
    class_of: dict[Any, tuple[str, str | None]] = {}
    for raw in file.traceEvents:
        try:
            event = decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError):
            shown = bytes(raw)[:60].decode("utf-8", "replace")
            recording.losses.add("events that are not what Kineto writes", shown)
            continue
        cat = event.cat
        if event.ph != "X" or not isinstance(cat, str):
            continue
        told = class_of.get(cat)
        if told is None:
            lower = cat.lower()
            told = class_of[cat] = lower, _CLASSES.get(lower)
        if (kind := told[1]) is not None:
            yield event, told[0], kind


def _sort(file: _File, recording: Recording, *, on_gpu: bool) -> Events:
    """Keep complete events with sane times, in their classes; find the steps.

    Beside a GPU, of the host's operators only those that tell of communication or steps are kept.
    """
    base_ns = _base_ns(file, recording)
    classes: dict[str, list[Event]] = {"work": [], "runtime": [], "host": []}
    steps: dict[int, Step] = {}
    for event, cat, kind in _complete_events(file, recording):
        name, ts, dur = event.name, event.ts, event.dur
        named = isinstance(name, str)
        if kind == "host" and on_gpu and named and not name.startswith(_TELLING):
            continue
        if (
            not named
            or not isinstance(ts, (int, float))
            or not isinstance(dur, (int, float, type(None)))
            or not -_MOST_US < ts < _MOST_US
            or not -_MOST_US < (dur or 0) < _MOST_US
        ):
            recording.losses.add("events without a usable time or name", str(name)[:60])
            continue
        start_ns = round(ts * 1000) + base_ns
        end_ns = start_ns + round(dur * 1000) if dur is not None and dur > 0 else start_ns
        thread = (event.pid, event.tid)
        classes[kind].append(Event(name, cat, thread, start_ns, end_ns, event.args or _NO_ARGS))
        if name.startswith("ProfilerStep#") and (match := _STEP.match(name)):
            steps.setdefault(int(match[1]), Step(int(match[1]), start_ns, end_ns))
    events = Events(tuple(sorted(steps.values(), key=lambda step: step.start_ns)))
    events.work, events.runtime, events.host = (classes[k] for k in ("work", "runtime", "host"))
    if not steps:
        recording.losses.add("files without ProfilerStep marks: taken as one iteration")
    return events


def _base_ns(file: _File, recording: Recording) -> int:
    """Return what the file says all times are counted from; 0 when that is beyond use."""
    base_ns = file.baseTimeNanoseconds or 0
    if -_MOST_US < base_ns / 1000 < _MOST_US:
        return base_ns
    recording.losses.add("times counted from an unusable base: taken as from 0", str(base_ns)[:60])
    return 0


def _natural(value: object) -> int | None:
    """Return a whole number at least 0, as number or text; else None."""
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _groups(info: dict[str, Any], world: int | None) -> dict[str, Group]:
    """Read `pg_config`; an empty or missing list of ranks of the world's size means all."""
    groups: dict[str, Group] = {}
    listed = info.get("pg_config")
    for entry in listed if isinstance(listed, list) else []:
        if not isinstance(entry, dict):
            continue
        ranks = entry.get("ranks")
        if isinstance(ranks, str):
            ranks = [int(number) for number in re.findall(r"\d+", ranks)]
        size = _natural(entry.get("pg_size"))
        if not ranks and size == world and world:
            ranks = list(strided(0, 1, world))
        if (
            isinstance(ranks, list)
            and ranks
            and all(_natural(rank) is not None for rank in ranks)
            and len(set(ranks)) == len(ranks)
            and (size is None or size == len(ranks))
        ):
            name = str(entry.get("pg_name", len(groups)))
            desc = entry.get("pg_desc")
            groups[name] = Group(ranks=tuple(ranks), desc=None if desc is None else str(desc))
    return groups
