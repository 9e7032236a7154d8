"""Kineto traces without GPU kernels: gloo's worker threads, or the host's side of a GPU job.

The issuing thread runs a `c10d::*` operator, and a worker thread of the group runs what gloo does,
as a `gloo:*` annotation. The two are matched by record id or order, kind and size.
"""

from __future__ import annotations

import re
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final

from testbed.traces.capture import Busy, Call
from testbed.traces.kineto_calls import (
    ROWS,
    attach_waits,
    call_from_annotation,
    call_from_metadata,
    call_from_operator,
    refine,
)
from testbed.traces.kineto_gpu import updates

if TYPE_CHECKING:
    from testbed.traces.capture import Recording
    from testbed.traces.kineto import Event, Events

__all__ = ["read_cpu"]

_TRANSPORT: Final = re.compile(r"(?:gloo|nccl|rccl|hccl|xccl|ucc|mpi):")
_WAITING: Final = re.compile(r"wait_tensor$|monitored_barrier|::wait$|^record_param_comms$")


def read_cpu(events: Events, recording: Recording) -> None:
    """Fill `recording` from a trace without GPU kernels."""
    rows = [e for e in events.host if e.name in ROWS and e.args.collective is not None]
    described = [
        (row, call)
        for row in rows
        if (call := call_from_metadata(row.args, recording.groups, recording.world)) is not None
    ]
    exact = bool(described)  # rows say all: operators inside them say it again
    if not exact:
        operators = [e for e in events.host if e.name.startswith("c10d::")]
        described = [(e, call) for e in operators if (call := call_from_operator(e)) is not None]
    pending = sorted(described, key=lambda pair: (_record(pair[0]) or 0, pair[0].start_ns))
    transports = [e for e in events.host if _TRANSPORT.match(e.name)]
    lanes: dict[Any, int] = {}
    for transport in sorted(transports, key=lambda e: (_record(e) or 0, e.start_ns)):
        call = call_from_annotation(transport)
        if call is None:
            recording.losses.add("annotations of unknown operation", transport.name[:60])
            continue
        issuer, told = _issuer(transport, call, pending)
        if exact and told is None:
            recording.losses.add("transfers nobody asked for", transport.name)
            continue
        call = told if exact and told is not None else refine(call, told)
        if transport.name.startswith("gloo:"):
            call.start_ns, call.end_ns = transport.start_ns, transport.end_ns
            recording.transport.append((transport.start_ns, transport.end_ns))
        call.lane = lanes.setdefault(transport.thread, len(lanes))
        call.issued_ns = transport.start_ns
        if issuer is not None:
            call.issued_ns = min(issuer.end_ns, transport.start_ns)
        call.step = events.step_at(call.issued_ns if issuer is None else issuer.start_ns)
        recording.calls.append(call)
    for issuer, call in pending:
        if exact:
            call.issued_ns, call.step = issuer.end_ns, events.step_at(issuer.start_ns)
            recording.calls.append(call)
        else:
            recording.losses.add("operators whose transfer is not recorded", issuer.name)
    recording.calls.sort(key=lambda call: (call.issued_ns or 0, call.start_ns or 0))
    attach_waits(recording.calls, rows)
    recording.busy = _busy(events)
    recording.updates_ns = updates(events)


def _record(event: Event) -> int | None:
    """Return the event's record id; None where the file has none (0)."""
    value = event.args.function_id
    return value if isinstance(value, int) and value > 0 else None


def _issuer(
    transport: Event, call: Call, pending: list[tuple[Event, Call]]
) -> tuple[Event | None, Call | None]:
    """Take from `pending` the first operator that can have issued the transport."""
    for index, (operator, told) in enumerate(pending):
        if operator.start_ns > transport.start_ns:
            break
        first, then = _record(operator), _record(transport)
        if first is not None and then is not None and first > then:
            break
        same = told.kind == call.kind or (told.kind, call.kind) == ("reduce_scatter", "all_reduce")
        sizes = told.in_bytes is None or call.in_bytes in (None, told.in_bytes)
        if same and sizes:
            return pending.pop(index)
    return None, None


def _busy(events: Events) -> Busy:
    """Collect the innermost operators of the threads that issue, not those of gloo's workers."""
    workers = {
        e.thread
        for e in events.host
        if e.name.startswith("gloo:") and not e.name.startswith(("gloo:send", "gloo:recv"))
    }
    operators = [
        e
        for e in events.host
        if e.cat != "user_annotation"
        and e.thread not in workers
        and not _WAITING.search(e.name)
        and e.args.collective != "wait"
    ]
    operators.sort(key=lambda e: (str(e.thread), e.start_ns, -e.end_ns))
    rows: list[tuple[int, int, int, int, int]] = []
    for event, following in zip_longest(operators, operators[1:]):
        outer = (
            following is not None
            and following.thread == event.thread
            and following.start_ns < event.end_ns
        )
        if not outer:
            step = events.step_at(event.start_ns)
            rows.append((event.start_ns, event.end_ns, event.start_ns, step, 0))
    return Busy.of(rows)
