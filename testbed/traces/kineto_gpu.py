"""Kineto traces of GPUs: kernels, what launched them, and which of them move data between ranks."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from testbed.traces.capture import BEFORE, Busy, Call
from testbed.traces.kineto_calls import (
    ROWS,
    attach_waits,
    call_from_annotation,
    call_from_metadata,
    call_from_operator,
    refine,
)
from testbed.traces.names import collective_kind, is_communication, kernel_kind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from testbed.traces.capture import Recording
    from testbed.traces.kineto import Event, Events

__all__ = ["read_gpu", "updates"]

_DEEPEST: Final = 16
_BLOCKING: Final = re.compile(r"(?:Stream|Device|Event)Synchronize$|Memcpy$")
_ANNOTATION: Final = re.compile(r"(?:nccl|rccl|hccl|xccl|ucc|mpi|gloo):")


class _Enclosing:
    """Finds the innermost of some host events around a moment of a thread. O(log n) each."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._events: dict[tuple[Any, Any], list[Event]] = defaultdict(list)
        for event in events:
            self._events[event.thread].append(event)
        self._starts: dict[tuple[Any, Any], list[int]] = {}
        for thread, listed in self._events.items():
            listed.sort(key=lambda event: event.start_ns)
            self._starts[thread] = [event.start_ns for event in listed]

    def at(self, thread: tuple[Any, Any], time_ns: int) -> Event | None:
        """Return the innermost event of `thread` around `time_ns`, if any."""
        starts = self._starts.get(thread)
        if starts is None:
            return None
        index = bisect_right(starts, time_ns)
        for event in reversed(self._events[thread][max(0, index - _DEEPEST) : index]):
            if event.end_ns >= time_ns:
                return event
        return None


class _Host:
    """The host's side: what launched a kernel, and what it was told to move."""

    def __init__(self, events: Events) -> None:
        self.launch_of = {
            event.args.correlation: event
            for event in events.runtime
            if event.args.correlation is not None
        }
        self.annotations = _Enclosing(e for e in events.host if _ANNOTATION.match(e.name))
        self.rows = [e for e in events.host if e.name in ROWS]
        self.parameters = _Enclosing(self.rows)
        self.operators = _Enclosing(e for e in events.host if e.name.startswith("c10d::"))
        self.annotated = [
            event
            for event in events.host
            if _ANNOTATION.match(event.name) and collective_kind(event.name)
        ]
        self.used: set[int] = set()

    def describe(self, kernel: Event, launch: Event | None, recording: Recording) -> Call | None:
        """Say what a communication kernel does, by the first source that tells."""
        groups, world = recording.groups, recording.world
        call = call_from_metadata(kernel.args, groups, world)
        annotation = None
        if launch is not None:
            annotation = self.annotations.at(launch.thread, launch.start_ns)
            if annotation is not None:
                self.used.add(id(annotation))
        if call is None and launch is not None:
            parameters = self.parameters.at(launch.thread, launch.start_ns)
            if parameters is not None:
                call = call_from_metadata(parameters.args, groups, world)
        if call is None and launch is not None and annotation is not None:
            operator = self.operators.at(launch.thread, launch.start_ns)
            annotated = call_from_annotation(annotation)
            told = None if operator is None else call_from_operator(operator)
            if annotated is not None:
                call = refine(annotated, told)
        if call is None and (kind := kernel_kind(kernel.name)) is not None:
            call = Call(kind=kind)
        return call


def read_gpu(events: Events, recording: Recording) -> None:
    """Fill `recording` from a trace with GPU kernels."""
    host = _Host(events)
    busy: list[tuple[int, int, int, int, int]] = []
    lanes: dict[Any, int] = {}
    losses = recording.losses
    for event in events.work:
        correlation = event.args.correlation
        launch = None if correlation is None else host.launch_of.get(correlation)
        if launch is not None:
            step, launch_ns = events.step_at(launch.start_ns), launch.start_ns
        elif host.launch_of and events.steps:
            step, launch_ns = BEFORE, event.start_ns
            losses.add("kernels launched before the profile began", event.name[:60])
        else:
            step, launch_ns = events.step_at(event.start_ns), event.start_ns
        copies = event.cat != "kernel"
        recording.kernels += not copies
        told = event.args.collective is not None
        if copies or not (told or is_communication(event.name)):
            busy.append((event.start_ns, event.end_ns, launch_ns, step, copies))
            continue
        recording.transport.append((event.start_ns, event.end_ns))
        call = host.describe(event, launch, recording)
        if call is None:
            if step != BEFORE:
                losses.add("communication kernels of unknown operation", event.name[:60])
            continue
        call.step = step
        call.issued_ns, call.start_ns, call.end_ns = launch_ns, event.start_ns, event.end_ns
        stream = event.args.stream if event.args.stream is not None else event.thread
        call.lane = lanes.setdefault(stream, len(lanes))
        recording.calls.append(call)
    recording.calls.sort(key=lambda call: (call.issued_ns or 0, call.start_ns or 0))
    attach_waits(recording.calls, host.rows)
    recording.rows = {
        number: (row.start_ns, row.end_ns)
        for row in host.rows
        if (number := _record_id(row)) is not None
    }
    recording.busy = Busy.of(busy)
    blocking = {name for name in {e.name for e in events.runtime} if _BLOCKING.search(name)}
    recording.syncs = sorted(
        (event.start_ns, event.end_ns) for event in events.runtime if event.name in blocking
    )
    recording.updates_ns = updates(events)
    for event in host.annotated:
        if id(event) not in host.used:
            what = "gloo calls beside the GPU" if event.name.startswith("gloo") else None
            losses.add(what or "calls that launched no kernel: nothing to send", event.name)


def _record_id(event: Event) -> int | None:
    """Return the id an ExecutionTrace knows the event by; older Kineto counts one further."""
    told, external = event.args.function_id, event.args.external_id
    if isinstance(told, int) and told > 0:
        return told
    if told is None and isinstance(external, int):
        return external - 1
    return None


def updates(events: Events) -> list[int]:
    """List when the host began to update parameters, in order."""
    return sorted(e.start_ns for e in events.host if e.name.startswith("Optimizer.step#"))
