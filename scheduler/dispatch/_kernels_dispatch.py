"""The dispatcher: one compiled state machine, (state, now, event) -> rows of `actions`.

The simulator calls it on a virtual clock and the engine on the real one. An event costs work
proportional to the rows it writes and the messages it grants, never to the number of ports
(all-stop planes and slots of timed programs touch all their ports by nature).
"""

from __future__ import annotations

from scheduler.dispatch._kernels_columns import (
    A_COUNT,
    C_GRANTED,
    C_PLANES,
    C_ROWS,
    C_STAMP,
    DROP,
    ENTRY_A,
    ENTRY_B,
    ENTRY_COUNT,
    ENTRY_DST,
    ENTRY_FIRST,
    ENTRY_PLANE,
    ENTRY_SRC,
    EV_ARRIVED,
    EV_READY,
    EV_START,
    EV_STARTED,
    EV_TICK,
    MATCHING_COUNT,
    MATCHING_FIRST,
    MATCHING_MESSAGES,
    MSG_A,
    ORDERED,
    PLANE_ALL_STOP,
    PLANE_BASE,
    PLANE_DUPLEX,
    PLANE_OPTICAL,
    PLANE_PORTS,
    PLANE_RATE,
    PLANE_SLOT,
    PLANE_SLOTS,
    PORT_PLANE,
    R_CONTROL,
    R_DELIVERY,
    R_HORIZON,
    R_ITERATIONS,
    R_KIND,
    R_LOOKAHEAD,
    R_NOTIFY,
    R_PARTIAL,
    R_PERIOD,
    R_PHASE,
    R_PORTS,
    R_TASKS,
    SIDE_BUSY,
    SIDE_FIRST,
    SIDE_FREE_AT,
    SIDE_LENGTH,
    SIDE_PEER,
    SIDE_POSITION,
    SIDE_STAMP,
    SLOT_FIRST,
    SLOT_OFFSET,
    TIMED,
    State,
)
from scheduler.dispatch._kernels_policy import message_arrived, message_ready
from scheduler.dispatch._kernels_rows import connect, grant_row, wire_ns, write_row
from scheduler.kernel import lean_kernel

__all__ = ["dispatch", "first_slot", "slot_start_ns"]


@lean_kernel
def grant_entry(state: State, entry: int, iteration: int, at_ns: int) -> None:
    """Grant the entry's messages of `iteration` to its circuit, which stands or is coming."""
    core, line = state.core, state.entries[entry]
    row = grant_row(core, line[ENTRY_PLANE], line[ENTRY_SRC], line[ENTRY_DST], at_ns)
    shift, at = iteration * core.rule[R_TASKS], core.cursor[C_GRANTED]
    for k in range(line[ENTRY_COUNT]):
        core.granted[at + k] = shift + state.message[line[ENTRY_FIRST] + k]
    core.cursor[C_GRANTED] += line[ENTRY_COUNT]
    core.actions[row, A_COUNT] += line[ENTRY_COUNT]


@lean_kernel
def next_entry(state: State, side: int) -> int:
    """Return the base entry that `side` is at, or -1 where it has had all of them."""
    line = state.core.sides[side]
    length, position = line[SIDE_LENGTH], line[SIDE_POSITION]
    if position >= length * state.core.rule[R_ITERATIONS]:
        return -1
    return int(state.side_entry[line[SIDE_FIRST] + position % length])


@lean_kernel
def advance_port(state: State, side: int, now_ns: int) -> None:
    """Request the entry that `side` is at, if both its ports are done with all before it.

    Entries that follow it on the same circuit at both its ports merge with it: they are granted
    too. The entry's instance is the same on both sides because each lists it once an iteration.
    """
    sides, entry = state.core.sides, next_entry(state, side)
    if entry < 0:
        return
    a, b = state.entries[entry, ENTRY_A], state.entries[entry, ENTRY_B]
    if sides[a, SIDE_BUSY] != 0 or sides[b, SIDE_BUSY] != 0:
        return
    far = b if side == a else a
    if next_entry(state, far) != entry:
        return
    at_ns = max(now_ns, sides[a, SIDE_FREE_AT], sides[b, SIDE_FREE_AT])
    if sides[a, SIDE_PEER] != b:
        line = state.entries[entry]
        connect(state.core, line[ENTRY_PLANE], line[ENTRY_SRC], line[ENTRY_DST], at_ns)
    while entry >= 0:
        iteration = sides[side, SIDE_POSITION] // sides[side, SIDE_LENGTH]
        grant_entry(state, entry, iteration, at_ns)
        for end in (side, far):
            sides[end, SIDE_POSITION] += 1
            sides[end, SIDE_BUSY] += state.entries[entry, ENTRY_COUNT]
        entry = next_entry(state, side)
        if entry >= 0:
            a, b = state.entries[entry, ENTRY_A], state.entries[entry, ENTRY_B]
            same = (a == side and b == far) or (a == far and b == side)
            if not same or next_entry(state, far) != entry:
                entry = -1


@lean_kernel
def matching_stands(state: State, matching: int) -> bool:
    """Say whether every circuit of the configuration stands or is coming."""
    first = state.matchings[matching, MATCHING_FIRST]
    for entry in range(first, first + state.matchings[matching, MATCHING_COUNT]):
        line = state.entries[entry]
        if state.core.sides[line[ENTRY_A], SIDE_PEER] != line[ENTRY_B]:
            return False
    return True


@lean_kernel
def reconfigure(state: State, plane: int, matching: int, at_ns: int) -> None:
    """Change a whole all-stop plane: everything is dropped or made anew."""
    core = state.core
    sides, base = core.sides, core.planes[plane, PLANE_BASE]
    core.cursor[C_STAMP] += 1
    stamp = core.cursor[C_STAMP]
    first = state.matchings[matching, MATCHING_FIRST]
    last = first + state.matchings[matching, MATCHING_COUNT]
    duplex = core.planes[plane, PLANE_DUPLEX]
    for entry in range(first, last):
        sides[state.entries[entry, ENTRY_A], SIDE_STAMP] = stamp
        if duplex != 0:
            sides[state.entries[entry, ENTRY_B], SIDE_STAMP] = stamp
    for out_side in range(base, base + core.planes[plane, PLANE_PORTS]):
        peer = sides[out_side, SIDE_PEER]
        if peer < 0:
            continue
        if sides[out_side, SIDE_STAMP] != stamp:
            port = peer % core.rule[R_PORTS]
            write_row(core, DROP, plane, out_side - base, port - base, at_ns)
        if duplex == 0:  # on a duplex plane the peer's own turn comes
            sides[peer, SIDE_PEER] = -1
        sides[out_side, SIDE_PEER] = -1
    for entry in range(first, last):
        line = state.entries[entry]
        if sides[line[ENTRY_A], SIDE_PEER] != line[ENTRY_B]:
            connect(core, plane, line[ENTRY_SRC], line[ENTRY_DST], at_ns)


@lean_kernel
def advance_plane(state: State, plane: int, now_ns: int) -> None:
    """Go on to the next configuration of an all-stop plane when all its messages are done.

    A configuration whose circuits all stand merges with the one before: it is granted at once.
    """
    sides = state.core.sides
    side = 2 * state.core.rule[R_PORTS] + plane
    at_ns = max(now_ns, sides[side, SIDE_FREE_AT])
    matching = next_entry(state, side)
    while matching >= 0:
        if not matching_stands(state, matching):
            if sides[side, SIDE_BUSY] != 0:
                return
            reconfigure(state, plane, matching, at_ns)
        iteration = sides[side, SIDE_POSITION] // sides[side, SIDE_LENGTH]
        first = state.matchings[matching, MATCHING_FIRST]
        for entry in range(first, first + state.matchings[matching, MATCHING_COUNT]):
            grant_entry(state, entry, iteration, at_ns)
        sides[side, SIDE_POSITION] += 1
        sides[side, SIDE_BUSY] += state.matchings[matching, MATCHING_MESSAGES]
        matching = next_entry(state, side)


@lean_kernel
def begin_ordered(state: State, now_ns: int) -> None:
    """Request the first entries of every port."""
    planes, sides = state.core.planes, state.core.sides
    for plane in range(len(planes)):
        if planes[plane, PLANE_ALL_STOP] != 0:
            advance_plane(state, plane, now_ns)
            continue
        base = planes[plane, PLANE_BASE]
        for out_side in range(base, base + planes[plane, PLANE_PORTS]):
            entry = next_entry(state, out_side)
            if entry >= 0 and sides[out_side, SIDE_BUSY] == 0:
                advance_port(state, out_side, now_ns)


@lean_kernel
def settle(state: State, message: int, now_ns: int, free_at_ns: int) -> None:
    """Count an unrolled message as done at its ports, and request what it held up.

    `free_at_ns` is the earliest its ports may be asked to change.
    """
    entry = state.carrier[message % state.core.rule[R_TASKS]]
    sides, planes = state.core.sides, state.core.planes
    line = state.entries[entry]
    plane = line[ENTRY_PLANE]
    if planes[plane, PLANE_ALL_STOP] != 0:
        side = 2 * state.core.rule[R_PORTS] + plane
        sides[side, SIDE_BUSY] -= 1
        sides[side, SIDE_FREE_AT] = max(sides[side, SIDE_FREE_AT], free_at_ns)
        if sides[side, SIDE_BUSY] == 0:
            advance_plane(state, plane, now_ns)
        return
    a, b = line[ENTRY_A], line[ENTRY_B]
    for side in (a, b):
        sides[side, SIDE_BUSY] -= 1
        sides[side, SIDE_FREE_AT] = max(sides[side, SIDE_FREE_AT], free_at_ns)
    for side in (a, b):
        if sides[side, SIDE_BUSY] == 0:
            advance_port(state, side, now_ns)


@lean_kernel
def predicted_free_ns(state: State, message: int, started_ns: int) -> int:
    """Return when the ports of a message that started may be asked to change.

    Lookahead asks up to `lookahead_ns` before the dispatcher would have known of the arrival, and
    never so early that the circuit is dark before the last bit has left.
    """
    rule = state.core.rule
    plane = state.entries[state.carrier[message % rule[R_TASKS]], ENTRY_PLANE]
    rate_bps = state.core.planes[plane, PLANE_RATE]
    last_bit_ns = started_ns + wire_ns(state.size_bytes[message], rate_bps)
    known_ns = last_bit_ns + rule[R_DELIVERY]
    return int(max(last_bit_ns - rule[R_CONTROL], known_ns - rule[R_LOOKAHEAD]))


@lean_kernel
def slot_start_ns(state: State, plane: int, number: int) -> int:
    """Return when slot `number` of `plane` begins; slot 0 is the first of the cycle at `phase_ns`.

    Numbers are negative for the slots before it.
    """
    rule, line = state.core.rule, state.core.planes[plane]
    cycle, slot = divmod(number, line[PLANE_SLOTS])
    offset = state.slots[line[PLANE_SLOT] + slot, SLOT_OFFSET]
    return int(rule[R_PHASE] + cycle * rule[R_PERIOD] + offset)


@lean_kernel
def first_slot(state: State, plane: int) -> int:
    """Return the number of the first slot a controller that begins at time zero can make.

    It is the last slot that begins no later than a command sent at time zero arrives.
    """
    number = -2 * state.core.planes[plane, PLANE_SLOTS]  # its cycle ends before time zero
    while slot_start_ns(state, plane, number + 1) <= state.core.rule[R_CONTROL]:
        number += 1
    return int(number)


@lean_kernel
def write_slot(state: State, plane: int, number: int) -> None:
    """Emit the changes of one slot: what stands and is not in it drops, the rest is made anew.

    With `partial` a circuit that goes on is left alone, unless the plane is all-stop and another
    changes.
    """
    core = state.core
    sides, line, ports = core.sides, core.planes[plane], core.rule[R_PORTS]
    base, duplex = line[PLANE_BASE], line[PLANE_DUPLEX] != 0
    at_ns = max(slot_start_ns(state, plane, number) - core.rule[R_CONTROL], 0)
    first = state.slots[line[PLANE_SLOT] + number % line[PLANE_SLOTS], SLOT_FIRST]
    to_in = base if duplex else base + ports
    changes = core.rule[R_PARTIAL] == 0
    whole = changes or line[PLANE_ALL_STOP] != 0
    for port in range(line[PLANE_PORTS]):
        wanted = state.permutation[first + port]
        wanted_side = to_in + wanted if wanted >= 0 else -1
        changes |= sides[base + port, SIDE_PEER] != wanted_side
    if not changes:
        return
    for port in range(line[PLANE_PORTS]):
        wanted, peer = state.permutation[first + port], sides[base + port, SIDE_PEER]
        if peer >= 0 and (whole or wanted < 0 or peer != to_in + wanted):
            if wanted < 0:
                write_row(core, DROP, plane, port, peer % ports - base, at_ns)
            sides[base + port, SIDE_PEER] = -1
            if not duplex:
                sides[peer, SIDE_PEER] = -1
    for port in range(line[PLANE_PORTS]):
        wanted = state.permutation[first + port]
        if wanted >= 0 and sides[base + port, SIDE_PEER] != to_in + wanted:
            connect(core, plane, port, wanted, at_ns)


@lean_kernel
def tick(state: State, now_ns: int) -> None:
    """Emit every slot whose request falls at or before now + horizon, as far as rows go.

    What a call that comes late by more than a horizon leaves out is for the next one.
    """
    core = state.core
    for plane in range(len(core.planes)):
        if core.planes[plane, PLANE_OPTICAL] == 0 or core.planes[plane, PLANE_SLOTS] == 0:
            continue
        number = core.cursor[C_PLANES + plane]
        until_ns = now_ns + core.rule[R_HORIZON] + core.rule[R_CONTROL]
        room = len(core.actions) - 2 * core.planes[plane, PLANE_PORTS]
        while slot_start_ns(state, plane, number) <= until_ns and core.cursor[C_ROWS] <= room:
            write_slot(state, plane, number)
            number += 1
        core.cursor[C_PLANES + plane] = number


@lean_kernel
def begin_timed(state: State) -> None:
    """Set every plane to the first slot that can be made."""
    for plane in range(len(state.core.planes)):
        if state.core.planes[plane, PLANE_SLOTS] > 0:
            state.core.cursor[C_PLANES + plane] = first_slot(state, plane)


@lean_kernel
def dispatch(state: State, now_ns: int, event: int, arg: int) -> int:
    """Take in one event and return how many rows of `state.core.actions` it wrote.

    Rows are to be carried out in order; `granted[first : first + count]` of a row lists the
    unrolled messages its output may now send, in order. `granted` is written once, never reused.

    Ordered programs: `EV_START`, then `EV_ARRIVED` for every message (it may be late by
    `notify_ns`); with lookahead also `EV_STARTED`, for every message, before its arrival. Timed
    programs: `EV_START`, then `EV_TICK` at least once per horizon. Reactive programs: `EV_START`,
    and `EV_READY`, `EV_ARRIVED` for every message. Other events do nothing.
    """
    core = state.core
    core.cursor[C_ROWS] = 0
    kind, lookahead = core.rule[R_KIND], core.rule[R_LOOKAHEAD] > 0
    if kind == ORDERED:
        if event == EV_START:
            begin_ordered(state, now_ns)
        elif state.carrier[arg % core.rule[R_TASKS]] < 0:
            pass  # a packet switch carries it
        elif event == EV_ARRIVED and not lookahead:
            settle(state, arg, now_ns, now_ns)
        elif event == EV_STARTED and lookahead:
            started_ns = now_ns - core.rule[R_NOTIFY]
            settle(state, arg, now_ns, predicted_free_ns(state, arg, started_ns))
    elif kind == TIMED:
        if event == EV_START:
            begin_timed(state)
        if event in (EV_START, EV_TICK):
            tick(state, now_ns)
    else:
        if event == EV_READY:
            message_ready(core, arg, now_ns)
        elif event == EV_ARRIVED:
            side = core.messages[arg, MSG_A]
            message_arrived(core, core.ports[side, PORT_PLANE], arg)
        state.policy(core, now_ns, event, arg)
    return int(core.cursor[C_ROWS])
