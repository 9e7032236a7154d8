"""The engine's loop: one thread that is every GPU, every NIC and the controller, in real time.

Per turn: carry out the timers that are due, send the frame that should have left first, receive
it, let go what waited, tell the dispatcher and write its circuits. One frame a turn, so that no
arrival waits behind another port's sending. With nothing due the thread sleeps until shortly
before the next moment and watches the clock from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.dispatch._kernels_columns import EV_START
from scheduler.kernel import lean_kernel, register_warm_up
from testbed.emulator._kernels_engine_columns import (
    AWAKE_NS,
    AWAKE_SINCE,
    CREDIT,
    CREDIT_NS,
    DONE,
    DUE,
    FINISHED,
    FLYING,
    LONGEST_SLEEP_NS,
    N_EPOLL,
    N_LIMIT,
    N_ZERO,
    NAP_NS,
    NAPS,
    NEVER,
    NEXT_CHECK,
    NEXT_TICK,
    NONE,
    OUTCOME,
    OVERDUE,
    PROGRESS_DONE,
    PROGRESS_NS,
    RUNNING,
    SLEEPS,
    SPIN_NS,
    STALLED,
    STOP,
    STOPPED,
    STRAGGLER_NS,
    TURNS,
    Engine,
    Wire,
)
from testbed.emulator._kernels_engine_control import (
    add_news,
    begin,
    end_tasks,
    ring_timers,
    tell_dispatcher,
)
from testbed.emulator._kernels_engine_lines import read_clock
from testbed.emulator._kernels_engine_nic import serve
from testbed.emulator._kernels_engine_receive import receive, resend
from testbed.emulator._kernels_engine_tools import most_urgent, next_timer_ns
from testbed.emulator._kernels_libc import epoll_wait, sleep_until_ns

if TYPE_CHECKING:
    from scheduler.dispatch._kernels_columns import State
    from scheduler.model.taskgraph import Int64s
    from testbed.emulator.crossbar import CrossbarTables

__all__ = ["run", "warm_up"]


@lean_kernel
def run(engine: Engine, state: State, wire: Wire, tables: CrossbarTables, counted: Int64s) -> int:
    """Execute the program and return the outcome; `counted` are the crossbar's counters."""
    counters = engine.counters
    await_zero(engine, wire)
    add_news(engine, EV_START, 0, 0)
    begin(engine, state.core)
    while counters[OUTCOME] == RUNNING:
        counters[TURNS] += 1
        clock_ns = read_clock(engine, wire)
        acted = turn(engine, state, wire, tables, counted, clock_ns)
        engine.progress[PROGRESS_DONE] = counters[DONE]
        engine.progress[PROGRESS_NS] = clock_ns
        if counters[OUTCOME] != RUNNING:
            break
        if counters[DONE] == len(engine.tasks):
            counters[OUTCOME] = FINISHED
        elif engine.control[STOP] != 0:
            counters[OUTCOME] = STOPPED
        elif clock_ns > engine.numbers[N_LIMIT]:
            counters[OUTCOME] = OVERDUE
        elif acted:
            rest(engine, wire, clock_ns)
        else:
            wait(engine, wire)
    return int(counters[OUTCOME])


@lean_kernel
def await_zero(engine: Engine, wire: Wire) -> None:
    """Return at time zero."""
    sleep_until_ns(engine.numbers[N_ZERO] - SPIN_NS, wire.timespec)
    while read_clock(engine, wire) < 0:
        pass
    engine.counters[AWAKE_SINCE] = 0


@lean_kernel
def turn(
    engine: Engine,
    state: State,
    wire: Wire,
    tables: CrossbarTables,
    counted: Int64s,
    clock_ns: int,
) -> bool:
    """Do what is due now; say whether there was anything."""
    core = state.core
    acted = ring_timers(engine, core, wire, tables, clock_ns)
    port = most_urgent(engine)
    if engine.ports[port, DUE] <= clock_ns:
        far = serve(engine, core, wire, port, clock_ns)
        if far != NONE:
            receive(engine, core, wire, far)
        acted = True
    if engine.counters[FLYING] > 0:
        look_for_stragglers(engine, state, wire)
        if engine.counters[NEXT_CHECK] <= clock_ns:
            resend(engine, core, counted, clock_ns)
    else:
        engine.counters[NEXT_CHECK] = NEVER
    acted |= end_tasks(engine, core, clock_ns)
    acted |= tell_dispatcher(engine, state, wire, tables, clock_ns)
    return acted


@lean_kernel
def look_for_stragglers(engine: Engine, state: State, wire: Wire) -> None:
    """Receive what did not arrive while it was sent, or was sent again."""
    events = wire.epoll_events
    count = epoll_wait(engine.numbers[N_EPOLL], events.ctypes.data, len(events), 0)
    for k in range(count):
        receive(engine, state.core, wire, wire.port_of[events[k]["data"] & 0xFFFFFFFF])


@lean_kernel
def wait(engine: Engine, wire: Wire) -> None:
    """Wait until something is due; stall where nothing ever will be."""
    counters = engine.counters
    due_ns = min(next_timer_ns(engine), engine.ports[most_urgent(engine), DUE])
    due_ns = min(due_ns, counters[NEXT_TICK])
    now_ns = read_clock(engine, wire)
    if counters[FLYING] > 0:
        due_ns = min(due_ns, counters[NEXT_CHECK], now_ns + STRAGGLER_NS)
    elif due_ns == NEVER:
        counters[OUTCOME] = STALLED
        return
    due_ns = min(due_ns, now_ns + LONGEST_SLEEP_NS)
    if due_ns - now_ns > SPIN_NS:
        counters[SLEEPS] += 1
        sleep(engine, wire, now_ns, due_ns - SPIN_NS)
        return
    rest(engine, wire, now_ns)
    while read_clock(engine, wire) < due_ns:
        pass


@lean_kernel
def sleep(engine: Engine, wire: Wire, now_ns: int, until_ns: int) -> None:
    """Sleep, and save the time up against naps."""
    sleep_until_ns(engine.numbers[N_ZERO] + until_ns, wire.timespec)
    slept_ns = read_clock(engine, wire) - now_ns
    counters = engine.counters
    counters[AWAKE_SINCE] += slept_ns
    counters[CREDIT] = min(counters[CREDIT] + slept_ns, CREDIT_NS)


@lean_kernel
def rest(engine: Engine, wire: Wire, now_ns: int) -> None:
    """Nap after a millisecond awake, whatever is due, unless enough was slept before.

    The kernel's fair server would take a thread that never sleeps off its core for 50 ms instead.
    """
    counters = engine.counters
    if now_ns - counters[AWAKE_SINCE] < AWAKE_NS:
        return
    counters[AWAKE_SINCE] = now_ns
    counters[CREDIT] -= NAP_NS
    if counters[CREDIT] < 0:
        counters[NAPS] += 1
        sleep(engine, wire, now_ns, now_ns + NAP_NS)
        counters[CREDIT] = 0


@register_warm_up
def warm_up() -> None:
    """Compile the loop by running it, already stopped, on the smallest fabric and no network."""
    from testbed.emulator.engine_tables import unreal_engine

    engine, state, wire, tables, counted = unreal_engine()
    engine.counters[OUTCOME] = STOPPED
    run(engine, state, wire, tables, counted)
