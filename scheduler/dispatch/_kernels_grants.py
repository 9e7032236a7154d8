"""The event loop of programs that grant messages to circuits: ordered and reactive ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from scheduler.dispatch._kernels_columns import (
    A_AT,
    A_COUNT,
    A_DST,
    A_FIRST,
    A_OP,
    A_PLANE,
    A_SRC,
    DROP,
    EV_ARRIVED,
    EV_READY,
    EV_START,
    EV_STARTED,
    MAKE,
    ORDERED,
    PLANE_BASE,
    PLANE_DELAY,
    PLANE_DUPLEX,
    PLANE_RATE,
    PORT_PLANE,
    R_CONTROL,
    R_DELIVERY,
    R_GATHER,
    R_KIND,
    R_LOOKAHEAD,
    R_NOTIFY,
    REACTIVE,
    State,
)
from scheduler.dispatch._kernels_dispatch import dispatch
from scheduler.dispatch._kernels_events import (
    ASKED,
    BEGUN,
    END,
    ENDED,
    FREED,
    JOINED,
    KIND,
    KNOWN,
    MESSAGE,
    N_FRESH,
    N_HEAP,
    START,
    Progress,
    begin_all,
    leaves,
    pop,
    push,
    take_in,
)
from scheduler.dispatch._kernels_rows import wire_ns
from scheduler.kernel import kernel, lean_kernel

if TYPE_CHECKING:
    from scheduler.dispatch.layout import Route, Work
    from scheduler.model.taskgraph import Int64s

__all__ = ["LOG_COLUMNS", "Lines", "carry_out", "run_grants"]

# `lines.port`, a row per port: the FIFO of messages granted to an output, and its circuit.
P_HEAD: Final = 0
P_TAIL: Final = 1
P_FREE: Final = 2  # when its last committed message has left, ns
P_UP: Final = 3  # when its circuit is up, ns
P_CIRCUIT: Final = 4  # row of the log of the last circuit, -1 none
P_SENDING: Final = 5  # packet switch: 1 while the output is busy or its head waits for the input
P_WAIT_HEAD: Final = 6  # packet switch: outputs that wait for this input, FIFO
P_WAIT_TAIL: Final = 7
P_WAIT_NEXT: Final = 8
P_TAKEN: Final = 9  # packet switch: 1 while this input receives
P_LAST: Final = 10  # the message it sent last
P_INTO: Final = 11  # as P_CIRCUIT, for the input of a directed plane
PORT_LINES: Final = 12

# The log of circuits.
LOG_PLANE: Final = 0
LOG_SRC: Final = 1
LOG_DST: Final = 2
LOG_REQUEST: Final = 3
LOG_DARK: Final = 4
LOG_UP: Final = 5
LOG_DOWN: Final = 6
LOG_COLUMNS: Final = 7


class Lines(NamedTuple):
    """The outputs of the hosts: per port a FIFO linked through `after`, (total,) of messages.

    `port_of` and `circuit_of`, (total,), say which output and which circuit carried a message.
    """

    port: Int64s
    after: Int64s
    port_of: Int64s
    circuit_of: Int64s


@lean_kernel
def append(lines: Lines, port: int, message: int) -> None:
    """Put a message at the end of an output's FIFO."""
    line = lines.port[port]
    lines.after[message] = -1
    if line[P_HEAD] < 0:
        line[P_HEAD] = message
    else:
        lines.after[line[P_TAIL]] = message
    line[P_TAIL] = message


@lean_kernel
def send(
    state: State, work: Work, progress: Progress, lines: Lines, port: int, start_ns: int
) -> int:
    """Send the head of an output from `start_ns` on, and return when its last bit has left."""
    line, rule = lines.port[port], state.core.rule
    message = line[P_HEAD]
    line[P_HEAD] = lines.after[message]
    rate_bps = state.core.planes[state.core.ports[port, PORT_PLANE], PLANE_RATE]
    end_ns = start_ns + wire_ns(work.size_bytes[message], rate_bps)
    latency_ns = rule[R_DELIVERY] - rule[R_NOTIFY]
    line[P_LAST] = message
    lines.port_of[message] = port
    lines.circuit_of[message] = line[P_CIRCUIT]
    progress.times[START, message] = start_ns
    progress.times[END, message] = end_ns + latency_ns
    push(progress, end_ns + latency_ns, ENDED * KIND + message)
    leaves(progress, message, end_ns)
    return int(end_ns)


@lean_kernel
def serve(state: State, work: Work, progress: Progress, lines: Lines, port: int) -> None:
    """Commit every message at the head of an output that is ready.

    Its start is known: when its NIC has let it in, its circuit is up and the port is free. Nothing
    that happens later can change it, for a circuit is not displaced before its messages have
    arrived.
    """
    line = lines.port[port]
    while line[P_HEAD] >= 0 and progress.admitted[line[P_HEAD]] >= 0:
        message = line[P_HEAD]
        start_ns = max(progress.admitted[message], line[P_UP], line[P_FREE])
        line[P_FREE] = send(state, work, progress, lines, port, start_ns)
        rule = state.core.rule
        if rule[R_LOOKAHEAD] > 0 and rule[R_KIND] == ORDERED:
            push(progress, start_ns + rule[R_NOTIFY], BEGUN * KIND + message)


@lean_kernel
def close(log: Int64s, circuit: int, dark_ns: int) -> None:
    """Note that a circuit, if there was one, ends: as soon as either of its ports is asked for.

    With lookahead the later of two requests can be for the earlier time.
    """
    if circuit >= 0 and (log[circuit, LOG_DOWN] < 0 or dark_ns < log[circuit, LOG_DOWN]):
        log[circuit, LOG_DOWN] = dark_ns


@lean_kernel
def carry_out(state: State, lines: Lines, log: Int64s, size: int, row: Int64s) -> int:
    """Do what a row of `actions` says to the circuits; returns how long the log is then."""
    core = state.core
    plane = core.planes[row[A_PLANE]]
    dark_ns = row[A_AT] + core.rule[R_CONTROL]
    src, dst = plane[PLANE_BASE] + row[A_SRC], plane[PLANE_BASE] + row[A_DST]
    if row[A_OP] == DROP:
        close(log, lines.port[src, P_CIRCUIT], dark_ns)
    elif row[A_OP] == MAKE:
        arrives = P_CIRCUIT if plane[PLANE_DUPLEX] != 0 else P_INTO
        close(log, lines.port[src, P_CIRCUIT], dark_ns)
        close(log, lines.port[dst, arrives], dark_ns)
        up_ns = dark_ns + plane[PLANE_DELAY]
        log[size, LOG_PLANE] = row[A_PLANE]
        log[size, LOG_SRC] = row[A_SRC]
        log[size, LOG_DST] = row[A_DST]
        log[size, LOG_REQUEST] = row[A_AT]
        log[size, LOG_DARK] = dark_ns
        log[size, LOG_UP] = up_ns
        log[size, LOG_DOWN] = -1
        lines.port[src, P_CIRCUIT] = size
        lines.port[src, P_UP] = up_ns
        lines.port[dst, arrives] = size
        if plane[PLANE_DUPLEX] != 0:
            lines.port[dst, P_UP] = up_ns
        size += 1
    return size


@kernel
def grown(log: Int64s, size: int, more: int) -> Int64s:
    """Return a log with room for `more` rows beyond `size`: itself, or a larger copy."""
    if size + more <= len(log):
        return log
    larger = np.empty((2 * (size + more), log.shape[1]), np.int64)
    larger[:size] = log[:size]
    return larger


@lean_kernel
def packet_try(
    state: State, work: Work, progress: Progress, lines: Lines, into: Int64s, port: int, now_ns: int
) -> None:
    """Packet switch: start the head of an idle output, or let it wait for its input port."""
    line = lines.port[port]
    if line[P_SENDING] != 0 or line[P_HEAD] < 0:
        return
    line[P_SENDING] = 1
    target = lines.port[into[line[P_HEAD] % len(into)]]
    if target[P_TAKEN] == 0:
        target[P_TAKEN] = 1
        push(progress, send(state, work, progress, lines, port, now_ns), FREED * KIND + port)
        return
    line[P_WAIT_NEXT] = -1
    if target[P_WAIT_HEAD] < 0:
        target[P_WAIT_HEAD] = port
    else:
        lines.port[target[P_WAIT_TAIL], P_WAIT_NEXT] = port
    target[P_WAIT_TAIL] = port


@lean_kernel
def packet_freed(
    state: State,
    work: Work,
    progress: Progress,
    lines: Lines,
    into: Int64s,
    port: int,
    now_ns: int,
) -> None:
    """Packet switch: an output has sent; its input serves who waits, then it goes on."""
    target = lines.port[into[lines.port[port, P_LAST] % len(into)]]
    waiting = target[P_WAIT_HEAD]
    if waiting >= 0:
        target[P_WAIT_HEAD] = lines.port[waiting, P_WAIT_NEXT]
        end_ns = send(state, work, progress, lines, waiting, now_ns)
        push(progress, end_ns, FREED * KIND + waiting)
    else:
        target[P_TAKEN] = 0
    lines.port[port, P_SENDING] = 0
    packet_try(state, work, progress, lines, into, port, now_ns)


@lean_kernel
def hear(news: Int64s, told: int, code: int) -> int:
    """List an event for a reactive policy, arrivals before the rest, by id; returns how many."""
    at = told
    while at > 0 and news[at - 1] > code:
        news[at] = news[at - 1]
        at -= 1
    news[at] = code
    return told + 1


@kernel
def run_grants(
    state: State, work: Work, route: Route, progress: Progress, lines: Lines, log: Int64s, size: int
) -> tuple[Int64s, int]:
    """Run until nothing happens any more; returns the log of circuits and its length.

    `log` holds the initial circuits in its first `size` rows. Messages of an ordered program whose
    plane is a packet switch (`state.carrier` -1) queue at their output by (ready, id), or by
    when their NIC let them in, and at the input they go to by when they came to the head of it.
    A reactive policy hears of what happens within `R_GATHER` of the first event it has not heard of
    when the last of it has happened, arrivals first, then by id.
    """
    core, into, tasks = state.core, route.dst_port, len(route.plane)
    reactive, notify_ns = core.rule[R_KIND] == REACTIVE, core.rule[R_NOTIFY]
    news, told, since_ns = np.empty(len(work.kind) if reactive else 0, np.int64), 0, 0
    event, arg, now_ns = EV_START, 0, 0
    begin_all(work, progress)
    while True:
        # what became ready just now
        for k in range(progress.tally[N_FRESH]):
            message = progress.fresh[k]
            if reactive:
                push(progress, now_ns + notify_ns, ASKED * KIND + message)
            elif state.carrier[message % tasks] < 0:
                push(progress, now_ns, JOINED * KIND + message)
            elif lines.port_of[message] >= 0:  # granted: it may have waited at the head
                serve(state, work, progress, lines, lines.port_of[message])
        progress.tally[N_FRESH] = 0
        # what the dispatcher says to it
        events = 1 if event >= 0 else 0
        if told > 0 and (
            progress.tally[N_HEAP] == 0 or progress.heap[0, 0] > since_ns + core.rule[R_GATHER]
        ):
            events = told
        for at in range(events):
            if told > 0:
                event, arg = EV_ARRIVED, news[at] % KIND
                if news[at] // KIND == ASKED:
                    event = EV_READY
            rows = dispatch(state, now_ns, event, arg)
            log = grown(log, size, rows)
            for k in range(rows):
                row = core.actions[k]
                size = carry_out(state, lines, log, size, row)
                if row[A_COUNT] > 0:
                    port = core.planes[row[A_PLANE], PLANE_BASE] + row[A_SRC]
                    for granted in range(row[A_FIRST], row[A_FIRST] + row[A_COUNT]):
                        append(lines, port, core.granted[granted])
                        lines.port_of[core.granted[granted]] = port
                    if reactive:  # it was not known before, though it may have been ready
                        lines.port[port, P_FREE] = max(lines.port[port, P_FREE], now_ns)
                    serve(state, work, progress, lines, port)
        event = -1
        if events > 0:
            told = 0
        if progress.tally[N_HEAP] == 0:
            return log, size
        now_ns, code = pop(progress)
        kind, arg = code // KIND, code % KIND
        if take_in(work, progress, kind, arg, now_ns):
            if kind == ENDED and work.kind[arg] == MESSAGE:
                if notify_ns == 0:
                    event = EV_ARRIVED
                else:
                    push(progress, now_ns + notify_ns, KNOWN * KIND + arg)
        elif kind == KNOWN:
            event = EV_ARRIVED
        elif kind == ASKED:
            event = EV_READY
        elif kind == BEGUN:
            event = EV_STARTED
        elif kind == JOINED:
            port = route.src_port[arg % tasks]
            append(lines, port, arg)
            packet_try(state, work, progress, lines, into, port, now_ns)
        elif kind == FREED:
            packet_freed(state, work, progress, lines, into, arg, now_ns)
        if reactive and event >= 0:
            since_ns = now_ns if told == 0 else since_ns
            told = hear(news, told, (ASKED if event == EV_READY else KNOWN) * KIND + arg)
            event = -1
