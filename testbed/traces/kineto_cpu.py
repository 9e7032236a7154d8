"""Kineto traces without GPU kernels: gloo's worker threads, or the host's side of a GPU job.

The issuing thread runs a `c10d::*` operator, and a worker thread of the group runs what gloo does,
as a `gloo:*` annotation. The two are matched by record id or order, kind and size.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from testbed.traces.capture import Busy, Call
from testbed.traces.kineto_calls import (
    call_from_annotation,
    call_from_metadata,
    call_from_operator,
    refine,
)
from testbed.traces.kineto_gpu import Enclosing, updates

if TYPE_CHECKING:
    from testbed.traces.capture import Recording
    from testbed.traces.kineto import Event, Events

__all__ = ["read_cpu"]

_TRANSPORT: Final = re.compile(r"(?:gloo|nccl|rccl|hccl|xccl|ucc|mpi):")
_WAITING: Final = re.compile(r"wait_tensor$|monitored_barrier|::wait$|^record_param_comms$")
_PAIRWISE: Final = ("send", "recv")


def read_cpu(events: Events, recording: Recording) -> None:
    """Fill `recording` from a trace without GPU kernels."""
    transports = [e for e in events.host if _TRANSPORT.match(e.name)]
    operators = [e for e in events.host if e.name.startswith("c10d::")]
    parameters = Enclosing(e for e in events.host if e.name == "record_param_comms")
    around = Enclosing(operators)
    order = sorted(transports, key=lambda e: (_record(e) or 0, e.start_ns))
    pending = _described(operators)
    lanes: dict[Any, int] = {}
    for transport in order:
        call = call_from_annotation(transport)
        if call is None:
            recording.losses.add("annotations of unknown operation", transport.name[:60])
            continue
        operator, told = _issuer(transport, call, pending)
        call = refine(call, told)
        detail = parameters.at(transport.thread, transport.start_ns)
        if detail is not None:
            exact = call_from_metadata(detail.args, recording.groups, recording.world)
            if exact is not None:
                exact.waited = call.waited
                call = exact
        call.lane = lanes.setdefault(transport.thread, len(lanes))
        call.start_ns, call.end_ns = transport.start_ns, transport.end_ns
        call.issued_ns = asked_ns = transport.start_ns
        if operator is not None:
            call.issued_ns = min(operator.end_ns, transport.start_ns)
            asked_ns = operator.start_ns
        by_gloo = transport.name.startswith("gloo:")
        if not by_gloo and around.at(transport.thread, transport.start_ns) is not None:
            call.end_ns = None  # only the host's part is recorded: the transport ran elsewhere
        else:
            recording.transport.append((transport.start_ns, transport.end_ns))
        call.step = events.step_at(asked_ns)
        recording.calls.append(call)
    for operator, told in pending:
        if told.kind not in _PAIRWISE:
            recording.losses.add("operators whose transport is not recorded", operator.name)
    recording.calls.sort(key=lambda call: (call.issued_ns or 0, call.start_ns or 0))
    recording.busy = _busy(events)
    recording.updates_ns = updates(events)


def _record(event: Event) -> int | None:
    """Return the event's record id; None where the file has none (0)."""
    value = event.args.function_id
    return value if isinstance(value, int) and value > 0 else None


def _described(operators: list[Event]) -> list[tuple[Event, Call]]:
    ordered = sorted(operators, key=lambda e: (_record(e) or 0, e.start_ns))
    told = ((operator, call_from_operator(operator)) for operator in ordered)
    return [(operator, call) for operator, call in told if call is not None]


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
        if e.cat != "user_annotation" and e.thread not in workers and not _WAITING.search(e.name)
    ]
    operators.sort(key=lambda e: (str(e.thread), e.start_ns, -e.end_ns))
    rows: list[tuple[int, int, int, int, int]] = []
    for event, following in zip(operators, [*operators[1:], None], strict=True):
        outer = (
            following is not None
            and following.thread == event.thread
            and following.start_ns < event.end_ns
        )
        if not outer:
            step = events.step_at(event.start_ns)
            rows.append((event.start_ns, event.end_ns, event.start_ns, step, 0))
    return Busy.of(rows)
