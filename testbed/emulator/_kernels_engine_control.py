"""What follows from what happened: tasks end, the dispatcher hears, circuits are written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.dispatch._kernels_columns import (
    A_AT,
    A_COUNT,
    A_DST,
    A_FIRST,
    A_OP,
    A_PLANE,
    A_SRC,
    ACTION_COLUMNS,
    C_PLANES,
    DROP,
    EV_ARRIVED,
    EV_READY,
    EV_TICK,
    MAKE,
    PLANE_BASE,
    PLANE_DELAY,
    PLANE_DUPLEX,
    PLANE_RATE,
    PLANE_SLOTS,
    R_CONTROL,
    R_GATHER,
    R_HORIZON,
    R_KIND,
    R_LOOKAHEAD,
    REACTIVE,
    TIMED,
)
from scheduler.dispatch._kernels_dispatch import dispatch, slot_start_ns
from scheduler.dispatch._kernels_relays import CH_TASK, REACHED, append, has_room, link
from scheduler.dispatch._kernels_rows import wire_ns
from scheduler.kernel import lean_kernel
from scheduler.model.taskgraph import COMPUTE, MARKER, MESSAGE
from testbed.emulator._kernels_crossbar import darken_input, darken_output
from testbed.emulator._kernels_engine_columns import (
    AGAIN,
    ARRIVAL,
    CIRCUITS,
    COMPUTED,
    CROWDED,
    DELIVERED,
    DIRECT,
    DISPATCH,
    DONE,
    DST,
    DUE,
    DUE_ROW,
    DURATION,
    END,
    ENDED,
    FAR,
    FIRST_WINDOW,
    FREE,
    GO_BACK,
    HEARD,
    KIND,
    LAST_BIT,
    LATE_ARRIVALS,
    LENGTH,
    MISSING,
    MOST_WINDOWS,
    N_BUFFER,
    N_LATENCY,
    N_NODES,
    N_NOTIFY,
    N_ROUTING,
    N_ZERO,
    NEVER,
    NEWEST,
    NEWS_COUNT,
    NEXT_TICK,
    NONE,
    OUTAGE,
    OUTAGE_BEGINS,
    PLANE,
    PLANNED,
    PORT,
    Q_AT,
    Q_KIND,
    QUEUE,
    READY,
    RELAYED,
    SENT,
    SETTLED,
    SINCE,
    SIZE,
    SRC,
    START,
    TABLE_CHUNKS,
    TABLE_CIRCUITS,
    TABLE_NEWS,
    TABLE_PLANNED,
    TABLE_WINDOWS,
    W_ARG,
    W_EVENT,
    W_OF,
    W_WHAT,
    W_WHEN,
    WINDOWS,
    X_DARK,
    X_DOWN,
    X_DST,
    X_PLANE,
    X_REQUEST,
    X_SRC,
    X_UP,
    Engine,
    Wire,
)
from testbed.emulator._kernels_engine_faults import (
    command_dark_ns,
    computed_by,
    concerns,
    held_until,
    light_around,
    lock_late_ns,
)
from testbed.emulator._kernels_engine_lines import enqueue, far_of, join_voq, read_clock
from testbed.emulator._kernels_engine_nic import take_up
from testbed.emulator._kernels_engine_packet import join
from testbed.emulator._kernels_engine_receive import go_back, wake
from testbed.emulator._kernels_engine_room import ask_for_room, let_in_next
from testbed.emulator._kernels_engine_tools import (
    drop_timer,
    fill_up,
    most_urgent,
    next_timer_ns,
    observe,
    set_timer,
)

if TYPE_CHECKING:
    from scheduler.dispatch._kernels_columns import Core, State
    from scheduler.model.taskgraph import Int64s
    from testbed.emulator.crossbar import CrossbarTables

__all__ = ["begin", "end_tasks", "ring_timers", "tell_dispatcher"]


@lean_kernel
def begin(engine: Engine, core: Core) -> None:
    """Make ready, at time zero, every task that waits for none, and expect the outages."""
    for row in range(len(engine.faults)):
        if engine.faults[row, Q_KIND] == OUTAGE:
            set_timer(engine, engine.faults[row, Q_AT], OUTAGE_BEGINS, row)
    for task in range(len(engine.tasks)):
        if engine.tasks[task, MISSING] == 0:
            make_ready(engine, core, task, 0)


@lean_kernel
def make_ready(engine: Engine, core: Core, task: int, clock_ns: int) -> None:
    """Let a task go whose predecessors have all ended, the last of them at READY."""
    line = engine.tasks[task]
    if line[KIND] == COMPUTE:
        line[START] = held_until(engine, line[SRC], line[READY])
        end_ns = computed_by(engine, line[SRC], line[START], line[DURATION])
        set_timer(engine, end_ns, COMPUTED, task)
    elif line[KIND] == MARKER:
        line[START] = line[READY]
        line[END] = line[READY]
        push(engine, task)
    elif engine.numbers[N_BUFFER] > 0:
        ask_for_room(engine, task)
    else:
        line[SINCE] = line[READY]
        let_in(engine, core, task, clock_ns)


@lean_kernel
def let_in(engine: Engine, core: Core, task: int, clock_ns: int) -> None:
    """Let a message take its place in its queue, or the dispatcher hear of it."""
    line = engine.tasks[task]
    if core.rule[R_KIND] == TIMED:
        queue_up(engine, task)
        wake(engine, core, line[SRC], clock_ns)
    elif line[FAR] != NONE:
        join(engine, task)
        take_up(engine, core, line[PORT], clock_ns)
    else:
        if core.rule[R_KIND] == REACTIVE:
            notify(engine, EV_READY, task, line[SINCE])
        if line[PORT] != NONE:
            take_up(engine, core, line[PORT], clock_ns)


@lean_kernel
def queue_up(engine: Engine, message: int) -> None:
    """Put a ready message into the queue of its node for its destination."""
    line = engine.tasks[message]
    src, dst, nodes = line[SRC], line[DST], engine.numbers[N_NODES]
    if engine.numbers[N_ROUTING] == DIRECT:
        join_voq(engine, message, src * nodes + dst)
    elif not has_room(engine.relays):
        fill_up(engine, TABLE_CHUNKS)
    elif engine.relays.pair[src * nodes + dst, REACHED] != 0:
        append(engine.relays, src, dst, 0, message, 0, line[SIZE], line[SINCE])


@lean_kernel
def push(engine: Engine, task: int) -> None:
    """List a task that has ended."""
    engine.ended[engine.counters[ENDED]] = task
    engine.counters[ENDED] += 1


@lean_kernel
def ring_timers(
    engine: Engine, core: Core, wire: Wire, tables: CrossbarTables, clock_ns: int
) -> bool:
    """Carry out the timers that are due, at their own times; say whether there were any.

    A planned row waits for frames that should have left before it, however late they are: it may
    darken their circuit.
    """
    rang = False
    while next_timer_ns(engine) <= clock_ns:
        time_ns = next_timer_ns(engine)
        what, arg = engine.timers[0, W_WHAT], engine.timers[0, W_ARG]
        if what == DUE_ROW and engine.ports[most_urgent(engine), DUE] <= time_ns:
            break
        drop_timer(engine)
        if what >= HEARD:
            add_news(engine, what - HEARD, arg, time_ns)
        elif what == GO_BACK:
            go_back(engine, core, arg // len(engine.ports), arg % len(engine.ports), clock_ns)
        elif what == OUTAGE_BEGINS:
            darken_standing(engine, core, tables, engine.faults[arg])
        elif what == RELAYED:
            chunk, node = arg // engine.numbers[N_NODES], arg % engine.numbers[N_NODES]
            message = engine.relays.chunks[chunk, CH_TASK]
            link(engine.relays, node, engine.tasks[message, DST], 1, chunk)
            wake(engine, core, node, clock_ns)
        elif what == DUE_ROW:
            carry_out(engine, core, wire, tables, engine.planned[arg], time_ns)
        else:
            engine.tasks[arg, END] = time_ns
            push(engine, arg)
        rang = True
    return rang


@lean_kernel
def end_tasks(engine: Engine, core: Core, clock_ns: int) -> bool:
    """Let go what waited for the tasks that have ended; say whether there were any."""
    counters = engine.counters
    acted = counters[SETTLED] < counters[ENDED]
    while counters[SETTLED] < counters[ENDED]:
        task = engine.ended[counters[SETTLED]]
        counters[SETTLED] += 1
        line = engine.tasks[task]
        if line[END] == NONE and not deliver(engine, task):
            continue
        counters[DONE] += 1
        if line[KIND] == MESSAGE and core.rule[R_KIND] != TIMED:
            notify(engine, EV_ARRIVED, task, line[END])
        for at in range(engine.successor_ptr[task], engine.successor_ptr[task + 1]):
            after = engine.successor[at]
            waiting = engine.tasks[after]
            waiting[READY] = max(waiting[READY], line[END])
            waiting[MISSING] -= 1
            if waiting[MISSING] == 0:
                make_ready(engine, core, after, clock_ns)
    if counters[CROWDED] != 0:
        counters[CROWDED] = 0
        fill_rooms(engine, core, clock_ns)
    return bool(acted)


@lean_kernel
def fill_rooms(engine: Engine, core: Core, clock_ns: int) -> None:
    """Let in, at every NIC, what there is room for."""
    for node in range(engine.numbers[N_NODES]):
        message = let_in_next(engine, node)
        while message != NONE:
            let_in(engine, core, message, clock_ns)
            message = let_in_next(engine, node)


@lean_kernel
def deliver(engine: Engine, message: int) -> bool:
    """End a message whose bytes have all arrived; False where its latency is not over yet."""
    line, latency_ns = engine.tasks[message], engine.numbers[N_LATENCY]
    if latency_ns > 0:
        if line[ARRIVAL] > line[LAST_BIT] + latency_ns:
            engine.counters[LATE_ARRIVALS] += 1
        set_timer(engine, line[ARRIVAL], DELIVERED, message)
        return False
    line[END] = line[ARRIVAL]
    return True


@lean_kernel
def notify(engine: Engine, event: int, message: int, when_ns: int) -> None:
    """Send the dispatcher word of an event."""
    if engine.numbers[N_NOTIFY] > 0:
        set_timer(engine, when_ns + engine.numbers[N_NOTIFY], HEARD + event, message)
    else:
        add_news(engine, event, message, when_ns)


@lean_kernel
def add_news(engine: Engine, event: int, message: int, when_ns: int) -> None:
    """Queue an event for the dispatcher."""
    count = engine.counters[NEWS_COUNT]
    if count == len(engine.news):
        fill_up(engine, TABLE_NEWS)
        return
    engine.news[count, W_EVENT] = event
    engine.news[count, W_OF] = message
    engine.news[count, W_WHEN] = when_ns
    engine.counters[NEWS_COUNT] = count + 1


@lean_kernel
def tell_dispatcher(
    engine: Engine, state: State, wire: Wire, tables: CrossbarTables, clock_ns: int
) -> bool:
    """Give the dispatcher its events and carry out its rows; say whether there were any.

    A reactive policy hears of what happens together as it does in simulation: arrivals first, then
    by id, whatever order this thread came to them in.
    """
    core = state.core
    if core.rule[R_KIND] == TIMED and engine.counters[NEXT_TICK] <= clock_ns:
        add_news(engine, EV_TICK, 0, clock_ns)
    count, together = engine.counters[NEWS_COUNT], core.rule[R_KIND] == REACTIVE
    if together and count > 0:
        if goes_on(engine, core):
            return False
        put_in_order(engine)
    for at in range(count):
        when_ns = engine.news[at, W_WHEN]
        rows = dispatch(state, when_ns, engine.news[at, W_EVENT], engine.news[at, W_OF])
        for row in range(rows):
            action = core.actions[row]
            if core.rule[R_LOOKAHEAD] > 0 and action[A_AT] > when_ns:
                plan_row(engine, action)
            else:
                carry_out(engine, core, wire, tables, action, when_ns)
    engine.counters[NEWS_COUNT] = 0
    if core.rule[R_KIND] == TIMED and count > 0:
        engine.counters[NEXT_TICK] = next_tick_ns(state)
    return bool(count > 0)


@lean_kernel
def goes_on(engine: Engine, core: Core) -> bool:
    """Say whether more is known to happen within `R_GATHER` of the first event not told."""
    first_ns = engine.news[0, W_WHEN]
    for at in range(1, engine.counters[NEWS_COUNT]):
        first_ns = min(first_ns, engine.news[at, W_WHEN])
    until_ns = first_ns + core.rule[R_GATHER]
    if next_timer_ns(engine) <= until_ns:
        return True
    for port in range(len(engine.ports)):
        line = engine.ports[port]
        if line[LENGTH] == 0 or line[DUE] > until_ns or line[AGAIN] != NONE:
            continue
        task, rate_bps = engine.tasks[line[QUEUE]], core.planes[line[PLANE], PLANE_RATE]
        rest = task[SIZE] - task[SENT] - line[LENGTH]
        if line[DUE] + wire_ns(rest, rate_bps) <= until_ns:
            return True
    return False


@lean_kernel
def put_in_order(engine: Engine) -> None:
    """Sort the events not told by (event, message); all are told when the last has happened."""
    news, last_ns = engine.news, engine.news[0, W_WHEN]
    for k in range(1, engine.counters[NEWS_COUNT]):
        event, message, when_ns = news[k, W_EVENT], news[k, W_OF], news[k, W_WHEN]
        last_ns = max(last_ns, when_ns)
        at = k
        while at > 0 and (
            news[at - 1, W_EVENT] > event
            or (news[at - 1, W_EVENT] == event and news[at - 1, W_OF] > message)
        ):
            news[at, W_EVENT] = news[at - 1, W_EVENT]
            news[at, W_OF] = news[at - 1, W_OF]
            at -= 1
        news[at, W_EVENT] = event
        news[at, W_OF] = message
    for k in range(engine.counters[NEWS_COUNT]):
        news[k, W_WHEN] = last_ns


@lean_kernel
def next_tick_ns(state: State) -> int:
    """Return when the next slot comes within the horizon."""
    core, earliest_ns = state.core, NEVER
    for plane in range(len(core.planes)):
        if core.planes[plane, PLANE_SLOTS] > 0:
            start_ns = slot_start_ns(state, plane, core.cursor[C_PLANES + plane])
            earliest_ns = min(earliest_ns, start_ns)
    if earliest_ns == NEVER:
        return NEVER
    return int(earliest_ns - core.rule[R_CONTROL] - core.rule[R_HORIZON])


@lean_kernel
def plan_row(engine: Engine, action: Int64s) -> None:
    """Keep a row of the dispatcher's actions until its time has come."""
    number = engine.counters[PLANNED]
    if number == len(engine.planned):
        fill_up(engine, TABLE_PLANNED)
        return
    engine.counters[PLANNED] = number + 1
    for column in range(ACTION_COLUMNS):
        engine.planned[number, column] = action[column]
    set_timer(engine, action[A_AT], DUE_ROW, number)


@lean_kernel
def carry_out(
    engine: Engine, core: Core, wire: Wire, tables: CrossbarTables, action: Int64s, when_ns: int
) -> None:
    """Do what one row of the dispatcher's actions says: darken, light, grant."""
    plane = action[A_PLANE]
    base = core.planes[plane, PLANE_BASE]
    port, far = base + action[A_SRC], base + action[A_DST]
    if action[A_OP] == DROP:
        request_ns = max(action[A_AT], read_clock(engine, wire))
        control_ns = core.rule[R_CONTROL]
        dark_ns = command_dark_ns(engine, plane, action[A_AT], request_ns, control_ns)
        darken_output(tables, port, engine.numbers[N_ZERO] + dark_ns)
        darken_input(tables, far, engine.numbers[N_ZERO] + dark_ns)
        end_circuit(engine, port, dark_ns)
    elif action[A_OP] == MAKE:
        make_circuit(engine, core, wire, tables, action)
        if action[A_AT] <= when_ns:
            observe(engine, DISPATCH, read_clock(engine, wire) - when_ns)
    circuit = engine.ports[port, NEWEST]
    for at in range(action[A_FIRST], action[A_FIRST] + action[A_COUNT]):
        enqueue(engine, core.granted[at], port, circuit)
    if core.rule[R_KIND] == REACTIVE and action[A_COUNT] > 0:
        # what it grants was not known before, though it may have been ready
        engine.ports[port, FREE] = max(engine.ports[port, FREE], when_ns)
    take_up(engine, core, port, when_ns)
    if core.planes[plane, PLANE_DUPLEX] != 0:
        take_up(engine, core, far, when_ns)


@lean_kernel
def make_circuit(
    engine: Engine, core: Core, wire: Wire, tables: CrossbarTables, action: Int64s
) -> None:
    """Write a new circuit into the crossbar, dark first, and record it."""
    plane = action[A_PLANE]
    base, duplex = core.planes[plane, PLANE_BASE], core.planes[plane, PLANE_DUPLEX] != 0
    port, far = base + action[A_SRC], base + action[A_DST]
    zero_ns = engine.numbers[N_ZERO]
    request_ns = max(action[A_AT], read_clock(engine, wire))
    control_ns = core.rule[R_CONTROL]
    dark_ns = command_dark_ns(engine, plane, action[A_AT], request_ns, control_ns)
    up_ns = dark_ns + core.planes[plane, PLANE_DELAY] + lock_late_ns(engine, plane, far, dark_ns)
    darken_output(tables, port, zero_ns + dark_ns)
    darken_input(tables, far, zero_ns + dark_ns)
    light_around(engine, tables, plane, port, far, up_ns)
    if duplex:
        darken_output(tables, far, zero_ns + dark_ns)
        darken_input(tables, port, zero_ns + dark_ns)
        light_around(engine, tables, plane, far, port, up_ns)
    number = engine.counters[CIRCUITS]
    if number == len(engine.circuits):
        fill_up(engine, TABLE_CIRCUITS)
        return
    engine.counters[CIRCUITS] = number + 1
    line = engine.circuits[number]
    line[X_PLANE] = plane
    line[X_SRC] = action[A_SRC]
    line[X_DST] = action[A_DST]
    line[X_REQUEST] = request_ns
    line[X_DARK] = dark_ns
    line[X_UP] = up_ns
    line[X_DOWN] = NONE
    add_circuit(engine, core, port, number, dark_ns)
    if duplex:
        add_circuit(engine, core, far, number, dark_ns)


@lean_kernel
def darken_standing(engine: Engine, core: Core, tables: CrossbarTables, outage: Int64s) -> None:
    """Take the light off the circuits that an outage strikes, until it is over.

    Slots of timed programs were written around it.
    """
    if core.rule[R_KIND] == TIMED:
        return
    begin_ns = outage[Q_AT]
    for port in range(len(engine.ports)):
        circuit = engine.ports[port, NEWEST]
        if circuit == NONE or engine.circuits[circuit, X_DOWN] != NONE:
            continue
        plane, far = engine.ports[port, PLANE], far_of(engine, core, port, circuit)
        if engine.circuits[circuit, X_UP] > begin_ns:
            continue  # it was written around it
        if concerns(outage, OUTAGE, plane, port) or concerns(outage, OUTAGE, plane, far):
            darken_output(tables, port, engine.numbers[N_ZERO] + begin_ns)
            darken_input(tables, far, engine.numbers[N_ZERO] + begin_ns)
            light_around(engine, tables, plane, port, far, begin_ns)


@lean_kernel
def end_circuit(engine: Engine, port: int, dark_ns: int) -> None:
    """Record that the newest circuit of an output, if it stands, goes dark."""
    circuit = engine.ports[port, NEWEST]
    if circuit != NONE and engine.circuits[circuit, X_DOWN] == NONE:
        engine.circuits[circuit, X_DOWN] = dark_ns


@lean_kernel
def add_circuit(engine: Engine, core: Core, port: int, circuit: int, dark_ns: int) -> None:
    """Make `circuit` the newest of an output, after the one before it has ended."""
    end_circuit(engine, port, dark_ns)
    line = engine.ports[port]
    line[NEWEST] = circuit
    if core.rule[R_KIND] != TIMED:
        return
    if line[WINDOWS] == MOST_WINDOWS:
        fill_up(engine, TABLE_WINDOWS)
        return
    engine.windows[port, (line[FIRST_WINDOW] + line[WINDOWS]) % MOST_WINDOWS] = circuit
    line[WINDOWS] += 1
