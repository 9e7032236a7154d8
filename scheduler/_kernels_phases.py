"""Which orders of a few nodes' messages fit a period: a dynamic program over labels.

A label says which messages are placed, and for each machine (a port of one of the nodes) which peer
its circuit leads to and when it is free; besides, when each message left can start at the earliest.
Placing one more message, in every way, makes the labels of the next layer. A label goes where it
cannot end in time, or where another one with the same messages placed and the same circuits is
nowhere later. `scheduler.phases` says what times count from and why this bounds a period.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from scheduler._kernels_paths import LONG_AGO
from scheduler.kernel import kernel

if TYPE_CHECKING:
    from scheduler.model.taskgraph import Int64s

NEVER: Final = 1 << 60
PAST: Final = LONG_AGO // 2  # sums with `LONG_AGO` stay below it
NOWHERE: Final = -1  # no machine
UNUSED: Final = -1  # a machine's circuit: it serves whom it first serves without a change
BITS: Final = 62  # of a word of the set of placed messages
AHEAD: Final = 48  # messages that the bound by load looks at

# What `place_all` notes in `result`:
LATE: Final = 0  # the least time at which a label that was let go could have ended
CYCLE: Final = 1  # the least time from a machine's becoming free to the same an iteration later
GIVEN_UP: Final = 2  # 1 where memory or work did not suffice
WORK: Final = 3  # what was done so far, in steps of some nanoseconds
MOST_WORK: Final = 4  # what may be done
RESULTS: Final = 5


class Jobs(NamedTuple):
    """Messages in an order their dependencies allow, (n,), and machines, (k,); times in any unit.

    `wire_ns` (k, n) is `NEVER` where a machine cannot carry a message, else `peer` (k, n) is where
    its circuit must lead then and `way` (k, n) the half of it that is used: always 0, or with
    duplex circuits 0 to send and 1 to receive. `place` (places, 2) are the machines that a message
    can use, those of m from `place_ptr[m]` on: one, and where both its nodes are looked at another,
    else -1. `head_ns` and `tail_ns` are the least times from the reference to a message's start and
    from its end to the next reference. `succ_ns` is from a message's end to the start of another;
    `carry_ns` the same to a start in the next iteration, by the place where it is carried over.
    `group` is each machine's node and side. Machines of one `unit` (k,) can together change roles
    with their `twin` (k,), each a machine of an earlier unit that is like it; -1 without. `far` is
    the node at a message's other end, -1 if that is looked at too; those of node f are `own` from
    `own_ptr[f]` on, `turn` is a message's place among them, and `number` what circuits to it are
    called. Nodes for which `alike` (f, f) holds can change roles, message by message.
    """

    peer: Int64s
    way: Int64s
    wire_ns: Int64s
    head_ns: Int64s
    tail_ns: Int64s
    succ_ptr: Int64s
    succ: Int64s
    succ_ns: Int64s
    carry_ptr: Int64s
    carry: Int64s
    carry_ns: Int64s
    pred_ptr: Int64s
    pred: Int64s
    place_ptr: Int64s
    place: Int64s
    change_ns: Int64s
    group: Int64s
    unit: Int64s
    twin: Int64s
    far: Int64s
    turn: Int64s
    own_ptr: Int64s
    own: Int64s
    alike: Int64s
    number: Int64s


class Labels(NamedTuple):
    """One layer: `placed` (cap, words), `circuit` (cap, k), and times.

    `state_ns` (cap, columns, s) says when each half of a machine is free, and then when each start
    that is carried over to the next iteration may be. `ready_ns` (cap, columns, n) is of messages.
    Column 0 holds times; column 1 + j, if there, how long after entry j of the state that the
    iteration began with they are at least.
    """

    placed: Int64s
    circuit: Int64s
    state_ns: Int64s
    ready_ns: Int64s


class Trail(NamedTuple):
    """How each label of each layer came about, shape (n + 1, cap)."""

    parent: Int64s
    message: Int64s
    machine: Int64s
    start_ns: Int64s


class Period(NamedTuple):
    """What an iteration must keep: all messages before `deadline_ns`, and `home` at its end.

    `home` (k,) are the circuits that the machines begin with and come back to, `UNUSED` for those
    that must not be used; none count unless `cyclic`. `latest_ns` (s,) is when each entry of the
    state can be at the latest as the iteration begins.
    """

    deadline_ns: int
    home: Int64s
    cyclic: bool
    latest_ns: Int64s


class Memory(NamedTuple):
    """Scratch: a hash table of labels with its chains, and peers seen (kept between calls)."""

    table: Int64s
    link: Int64s
    seen: Int64s


def make_labels(capacity: int, messages: int, machines: int, state: int, columns: int) -> Labels:
    """Allocate a layer."""
    shapes = ((messages // BITS + 1,), (machines,), (columns, state), (columns, messages))
    return Labels._make(np.zeros((capacity, *shape), np.int64) for shape in shapes)


def make_trail(capacity: int, messages: int) -> Trail:
    """Allocate for all layers."""
    return Trail._make(np.zeros((messages + 1, capacity), np.int64) for _ in range(4))


def make_memory(capacity: int, peers: int) -> Memory:
    """Allocate for layers of `capacity` labels."""
    table = np.zeros(1 << capacity.bit_length(), np.int64)
    return Memory(table, np.zeros(capacity, np.int64), np.zeros(peers + 1, np.int64))


@kernel
def is_placed(labels: Labels, at: int, message: int) -> bool:
    """Say whether label `at` has placed the message."""
    return bool(labels.placed[at, message // BITS] >> (message % BITS) & 1)


@kernel
def level(free: Int64s, ports: int, load: int) -> int:
    """Return when `ports` machines, free at times that ascend, can have done `load` together."""
    total, least = 0, NEVER
    for k in range(ports):
        total += free[k]
        least = min(least, -(-(total + load) // (k + 1)))
    return least


@kernel
def load_bound(jobs: Jobs, labels: Labels, at: int, ways: int, seen: Int64s, free: Int64s) -> int:
    """Return the least time at which the next reference can be, by what the machines have to carry.

    For each group and way, the first messages left (any number) take the machines together at
    least their wire time, and a change for each peer of theirs to which no circuit leads now.
    """
    count, machines = len(jobs.head_ns), len(jobs.group)
    best, group = 0, -1
    for first in range(machines):
        if jobs.group[first] == group:
            continue
        group = jobs.group[first]
        for way in range(ways):
            begun, earliest = 0, NEVER
            for m in range(count):
                if jobs.way[first, m] != way or jobs.wire_ns[first, m] == NEVER:
                    continue
                if not is_placed(labels, at, m):
                    earliest = min(earliest, labels.ready_ns[at, 0, m])
                    begun += 1
                    if begun == AHEAD:
                        break
            if begun == 0:
                continue
            seen[-1] += 1
            stamp, ports, least_change, spare = seen[-1], 0, NEVER, 0
            for k in range(first, machines):
                if jobs.group[k] != group:
                    break
                least_change = min(least_change, jobs.change_ns[k])
                when = max(labels.state_ns[at, 0, k * ways + way], earliest - jobs.change_ns[k])
                i = ports
                while i > 0 and free[i - 1] > when:
                    free[i] = free[i - 1]
                    i -= 1
                free[i] = when
                ports += 1
                if labels.circuit[at, k] == UNUSED:
                    spare += 1
                else:
                    seen[labels.circuit[at, k]] = stamp
            load, changes, tail, taken = 0, 0, NEVER, 0
            for m in range(count):
                if jobs.way[first, m] != way or jobs.wire_ns[first, m] == NEVER:
                    continue
                if is_placed(labels, at, m):
                    continue
                wire = jobs.wire_ns[first, m]
                for k in range(first, first + ports):
                    wire = min(wire, jobs.wire_ns[k, m])
                load += wire
                if seen[jobs.peer[first, m]] != stamp:
                    seen[jobs.peer[first, m]] = stamp
                    changes += 1
                tail = min(tail, jobs.tail_ns[m])
                dark = max(changes - spare, 0) * least_change
                best = max(best, level(free, ports, load + dark) + tail)
                taken += 1
                if taken == AHEAD:
                    break
    return best


@kernel
def same_circuits(labels: Labels, a: int, b: int) -> bool:
    """Say whether two labels have placed the same messages and have the same circuits."""
    same = True
    for w in range(labels.placed.shape[1]):
        same = same and labels.placed[a, w] == labels.placed[b, w]
    for k in range(labels.circuit.shape[1]):
        same = same and labels.circuit[a, k] == labels.circuit[b, k]
    return same


@kernel
def no_later(labels: Labels, a: int, b: int, first: int) -> bool:
    """Say whether label `a` is nowhere later than `b`; both have placed all before `first`."""
    for c in range(labels.state_ns.shape[1]):
        for k in range(labels.state_ns.shape[2]):
            if labels.state_ns[a, c, k] > labels.state_ns[b, c, k]:
                return False
        for m in range(first, labels.ready_ns.shape[2]):
            if labels.ready_ns[a, c, m] > labels.ready_ns[b, c, m] and not is_placed(labels, a, m):
                return False
    return True


@kernel
def settle(jobs: Jobs, labels: Labels, at: int, ways: int, latest_ns: Int64s) -> None:
    """Change what makes no difference, so that more labels are alike.

    Machines become free no earlier than something could begin; the columns beside the time count
    only where they can exceed it.
    """
    earliest = NEVER
    for m in range(len(jobs.head_ns)):
        if not is_placed(labels, at, m):
            earliest = min(earliest, labels.ready_ns[at, 0, m])
    if earliest < NEVER:
        for k in range(len(jobs.group)):
            for i in range(k * ways, (k + 1) * ways):
                least = earliest - jobs.change_ns[k]
                labels.state_ns[at, 0, i] = max(labels.state_ns[at, 0, i], least)
    for c in range(1, labels.state_ns.shape[1]):
        latest = latest_ns[c - 1]
        for i in range(labels.state_ns.shape[2]):
            if latest + labels.state_ns[at, c, i] <= labels.state_ns[at, 0, i]:
                labels.state_ns[at, c, i] = LONG_AGO
        for m in range(len(jobs.head_ns)):
            if latest + labels.ready_ns[at, c, m] <= labels.ready_ns[at, 0, m]:
                labels.ready_ns[at, c, m] = LONG_AGO


@kernel
def insert(labels: Labels, count: int, memory: Memory, result: Int64s) -> int:
    """Keep the label just written at `count`, unless another is nowhere later.

    Returns where it is now, or -1. One that it makes superfluous is overwritten.
    """
    code = 0
    for w in range(labels.placed.shape[1]):
        word = labels.placed[count, w]
        code = ((code ^ word ^ (word >> 31)) & 0x7FFFFFFF) * 48271 & 0xFFFFFFFFFFFF
    for k in range(labels.circuit.shape[1]):
        code = ((code ^ labels.circuit[count, k]) & 0x7FFFFFFF) * 48271 & 0xFFFFFFFFFFFF
    slot = (code ^ (code >> 17)) & (len(memory.table) - 1)
    first = 0
    while first < labels.ready_ns.shape[2] and is_placed(labels, count, first):
        first += 1
    other = memory.table[slot]
    while other >= 0:
        result[WORK] += 1
        if same_circuits(labels, count, other):
            if no_later(labels, other, count, first):
                return -1
            if no_later(labels, count, other, first):
                labels.state_ns[other] = labels.state_ns[count]
                labels.ready_ns[other] = labels.ready_ns[count]
                return int(other)
        other = memory.link[other]
    memory.link[count] = memory.table[slot]
    memory.table[slot] = count
    return count


@kernel
def is_open(jobs: Jobs, labels: Labels, at: int, message: int) -> bool:
    """Say whether a message is not placed, and all before it are."""
    if is_placed(labels, at, message):
        return False
    for k in range(jobs.pred_ptr[message], jobs.pred_ptr[message + 1]):
        if not is_placed(labels, at, jobs.pred[k]):
            return False
    return True


@kernel
def has_equal(jobs: Jobs, labels: Labels, at: int, k: int, ways: int, period: Period) -> bool:
    """Say whether the twins of the unit of `k` are in the same state, so that one unit will do."""
    if jobs.twin[k] < 0:
        return False
    for own in range(len(jobs.unit)):
        if jobs.unit[own] != jobs.unit[k]:
            continue
        twin = jobs.twin[own]
        if labels.circuit[at, twin] != labels.circuit[at, own]:
            return False
        if period.cyclic and period.home[twin] != period.home[own]:
            return False
        for c in range(labels.state_ns.shape[1]):
            for w in range(ways):
                one = labels.state_ns[at, c, twin * ways + w]
                if one != labels.state_ns[at, c, own * ways + w]:
                    return False
    return True


@kernel
def same_so_far(jobs: Jobs, labels: Labels, at: int, f: int, g: int, period: Period) -> bool:
    """Say whether nodes f and g, which can change roles, have done the same until now."""
    one, other = jobs.number[f], jobs.number[g]
    for k in range(len(jobs.group)):
        if labels.circuit[at, k] in (one, other):
            return False
        if period.cyclic and period.home[k] in (one, other):
            return False
    for i in range(jobs.own_ptr[f + 1] - jobs.own_ptr[f]):
        a, b = jobs.own[jobs.own_ptr[f] + i], jobs.own[jobs.own_ptr[g] + i]
        if is_placed(labels, at, a) != is_placed(labels, at, b):
            return False
        if is_placed(labels, at, a):
            continue
        for c in range(labels.ready_ns.shape[1]):
            if labels.ready_ns[at, c, a] != labels.ready_ns[at, c, b]:
                return False
    return True


@kernel
def has_double(jobs: Jobs, labels: Labels, at: int, message: int, period: Period) -> bool:
    """Say whether another message can be placed with the same effect, but for its node's name."""
    f = jobs.far[message]
    if f < 0:
        return False
    for g in range(len(jobs.alike)):
        if jobs.alike[f, g] == 0 or jobs.own[jobs.own_ptr[g] + jobs.turn[message]] > message:
            continue
        if same_so_far(jobs, labels, at, f, g, period):
            return True
    return False


@kernel
def can_return(jobs: Jobs, labels: Labels, at: int, home: Int64s) -> bool:
    """Say whether a message is left to bring every machine back to its circuit."""
    for k in range(len(home)):
        if labels.circuit[at, k] == home[k]:
            continue
        found = False
        for m in range(len(jobs.head_ns)):
            leads = jobs.peer[k, m] == home[k] and jobs.wire_ns[k, m] < NEVER
            if leads and not is_placed(labels, at, m):
                found = True
                break
        if not found:
            return False
    return True


@kernel
def layer(
    jobs: Jobs,
    labels: Labels,
    count: int,
    after: Labels,
    depth: int,
    ways: int,
    period: Period,
    memory: Memory,
    trail: Trail,
    result: Int64s,
) -> int:
    """Place one more message in each of `count` labels; returns how many `after` holds."""
    messages, machines = len(jobs.head_ns), len(jobs.group)
    capacity = len(after.placed) - 1
    columns, halves = labels.state_ns.shape[1], machines * ways
    free = np.empty(machines, np.int64)
    light, end = np.empty(columns, np.int64), np.empty(columns, np.int64)
    memory.table[:] = -1
    made = 0
    for at in range(count):
        if result[WORK] > result[MOST_WORK] or made == capacity:
            result[GIVEN_UP] = 1
            break
        result[WORK] += 2
        least = load_bound(jobs, labels, at, ways, memory.seen, free)
        if least > period.deadline_ns:
            result[LATE] = min(result[LATE], least)
            continue
        for m in range(messages):
            if not is_open(jobs, labels, at, m) or has_double(jobs, labels, at, m, period):
                continue
            for p in range(jobs.place_ptr[m], jobs.place_ptr[m + 1]):
                k, other = jobs.place[p, 0], jobs.place[p, 1]
                wire = jobs.wire_ns[k, m]
                far = k if other == NOWHERE else other
                if period.cyclic and UNUSED in (period.home[k], period.home[far]):
                    continue
                if made == capacity or has_equal(jobs, labels, at, k, ways, period):
                    continue
                half, second = k * ways + jobs.way[k, m], NOWHERE
                changes = labels.circuit[at, k] not in (UNUSED, jobs.peer[k, m])
                if other != NOWHERE:
                    second = other * ways + jobs.way[other, m]
                    if labels.circuit[at, other] not in (UNUSED, jobs.peer[other, m]):
                        changes = True
                late = False
                for c in range(columns):
                    light[c] = labels.state_ns[at, c, half]
                    if second != NOWHERE:
                        light[c] = max(light[c], labels.state_ns[at, c, second])
                    if changes:
                        for w in range(k * ways, (k + 1) * ways):
                            light[c] = max(light[c], labels.state_ns[at, c, w])
                        for w in range(far * ways, (far + 1) * ways):
                            light[c] = max(light[c], labels.state_ns[at, c, w])
                        light[c] += jobs.change_ns[k]
                    end[c] = max(labels.ready_ns[at, c, m], light[c]) + wire
                    if c == 0 and end[c] + jobs.tail_ns[m] > period.deadline_ns:
                        result[LATE] = min(result[LATE], end[c] + jobs.tail_ns[m])
                        late = True
                        break
                    if c > 0 and c - 1 in (half, second) and end[c] > period.deadline_ns:
                        result[CYCLE] = min(result[CYCLE], end[c])
                        late = True
                        break
                if late:
                    continue
                result[WORK] += 1
                after.placed[made] = labels.placed[at]
                after.circuit[made] = labels.circuit[at]
                after.state_ns[made] = labels.state_ns[at]
                after.ready_ns[made] = labels.ready_ns[at]
                after.placed[made, m // BITS] |= 1 << (m % BITS)
                after.circuit[made, k] = jobs.peer[k, m]
                if other != NOWHERE:
                    after.circuit[made, other] = jobs.peer[other, m]
                if period.cyclic and not can_return(jobs, after, made, period.home):
                    continue
                for c in range(columns):
                    if changes:
                        for w in range(k * ways, (k + 1) * ways):
                            after.state_ns[made, c, w] = light[c]
                        for w in range(far * ways, (far + 1) * ways):
                            after.state_ns[made, c, w] = light[c]
                    after.state_ns[made, c, half] = end[c]
                    if second != NOWHERE:
                        after.state_ns[made, c, second] = end[c]
                    for i in range(jobs.succ_ptr[m], jobs.succ_ptr[m + 1]):
                        s = jobs.succ[i]
                        when = end[c] + jobs.succ_ns[i]
                        after.ready_ns[made, c, s] = max(after.ready_ns[made, c, s], when)
                    for i in range(jobs.carry_ptr[m], jobs.carry_ptr[m + 1]):
                        s = halves + jobs.carry[i]
                        when = end[c] + jobs.carry_ns[i]
                        after.state_ns[made, c, s] = max(after.state_ns[made, c, s], when)
                settle(jobs, after, made, ways, period.latest_ns)
                place = insert(after, made, memory, result)
                if place < 0:
                    continue
                trail.parent[depth + 1, place] = at
                trail.message[depth + 1, place] = m
                trail.machine[depth + 1, place] = k
                trail.start_ns[depth + 1, place] = end[0] - wire
                if place == made:
                    made += 1
    return made


@kernel
def place_all(
    jobs: Jobs,
    labels: Labels,
    spare: Labels,
    count: int,
    ways: int,
    period: Period,
    memory: Memory,
    trail: Trail,
    result: Int64s,
) -> int:
    """Place all messages, beginning with `count` labels; returns how many ways are left.

    They are in `labels` if the number of messages is even, else in `spare`.
    """
    for depth in range(len(jobs.head_ns)):
        if depth % 2 == 0:
            count = layer(jobs, labels, count, spare, depth, ways, period, memory, trail, result)
        else:
            count = layer(jobs, spare, count, labels, depth, ways, period, memory, trail, result)
        if count == 0:
            break
    return count
