"""Flux's schedule generation: from priorities and planes to a program and its steady-state time.

The first iteration takes messages in order of priority once all they depend on is placed, puts
each at the end of its ports' queues, and so fixes an ordered program. Further iterations execute
that program, circuits carried over. Both keep the dispatcher's rules: a circuit is requested as
soon as both its ports have done all before it; where it stands already nothing is requested; a
message begins when it is ready, its circuit is up and its output is free. An iteration is
O(tasks + arcs), the first with log(messages) for each message.

Executing an ordered program is a max-plus linear recurrence. Its rate is the largest ratio of time
to iterations over the cycles of what waits for what (Baccelli, Cohen, Olsder and Quadrat,
Synchronization and Linearity, 1992, chapter 3). It is found from both sides: where all times of an
iteration are those of the last one plus at most so much, the period is no longer; and no cycle of
what each task did wait for last is longer than it, as in Howard's policy iteration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from scheduler.kernel import kernel

if TYPE_CHECKING:
    from scheduler.model.taskgraph import Int64s

NEVER: Final = 1 << 60  # a time that does not come
DIRECTED: Final = 0  # `mode` of a plane: bits
DUPLEX: Final = 1
ALL_STOP: Final = 2
PACKET: Final = 4
ANY: Final = -1  # a plane or port: the one on which the message ends first
NOTHING: Final = -1
SETTLING: Final = 3  # iterations before cycles are looked for

# `cause_kind`: what a task waited for last.
BY_TASK: Final = 0  # a task it depends on
BY_LAST_ITERATION: Final = 1  # the same, of the iteration before
BY_OUTPUT: Final = 2  # its output was sending `cause`
BY_CHANGE: Final = 3  # its circuit was not up yet; `cause` was the last at its ports


class Instance(NamedTuple):
    """One iteration and a fabric. Arrays per task unless said otherwise; ports count over planes.

    `wire_ns` has shape (planes, tasks). `delay_ns[plane]` is from request to light. A message's
    ports may be asked to change `known_ns` after its last bit, but not before `heard_ns` after its
    first. Without `reuse` every message pays for a change, without `early` none is requested before
    its message is ready: what the dispatcher does better than that is then left out of the plan.
    """

    kind: Int64s
    src: Int64s
    dst: Int64s
    dur_ns: Int64s
    pred_ptr: Int64s
    pred: Int64s
    pred_distance: Int64s
    succ_ptr: Int64s
    succ: Int64s
    missing: Int64s
    wire_ns: Int64s
    delay_ns: Int64s
    mode: Int64s
    port_ptr: Int64s
    port: Int64s
    port_base: Int64s
    nodes: int
    latency_ns: int
    known_ns: int
    heard_ns: int
    reuse: bool
    early: bool


class Ports(NamedTuple):
    """What every port and plane is doing.

    Per port, for its output and its input: the far end of the circuit, when it may be asked to
    change, the message that decides that, and (all-stop) the last configuration it was used in; for
    its output also when the circuit is up and the message that waited for, when the last message
    has left and which it was, and the number of the circuit's run of messages. Per all-stop plane:
    the configuration, when all its messages are done, when it is up, the message done last, and the
    one that the configuration waited for.
    """

    to: Int64s
    of: Int64s
    done_out: Int64s
    done_in: Int64s
    up: Int64s
    free: Int64s
    last_out: Int64s
    last_in: Int64s
    used_out: Int64s
    used_in: Int64s
    episode: Int64s
    configuration: Int64s
    plane_done: Int64s
    plane_up: Int64s
    plane_last: Int64s
    plane_by: Int64s
    up_by: Int64s
    sent: Int64s


class Schedule(NamedTuple):
    """The program the first iteration fixed, and the times of the last one; arrays per task."""

    order: Int64s
    plane: Int64s
    out_port: Int64s
    in_port: Int64s
    episode: Int64s
    configuration: Int64s
    merges: Int64s  # per plane: 1 where the last configuration serves the first (all-stop)
    start: Int64s
    end: Int64s
    previous_end: Int64s
    cause: Int64s
    cause_kind: Int64s


class Wish(NamedTuple):
    """What is asked for, per task: where each message goes, and how early it is taken.

    `plane` and, within it, the ports (numbered over all planes) may be `ANY`.
    """

    plane: Int64s
    out_port: Int64s
    in_port: Int64s
    key: Int64s


class Scratch(NamedTuple):
    """Memory of `evaluate`: a heap of (key, second key, message), counts and a stack of tasks.

    And each task's place in the order, and by whom it was visited.
    """

    heap: Int64s
    missing: Int64s
    stack: Int64s
    position: Int64s
    seen: Int64s


def make_ports(ports: int, planes: int) -> Ports:
    """Allocate for `ports` ports over `planes` planes."""
    sizes = [ports] * 11 + [planes] * 5 + [ports] * 2
    return Ports._make(np.zeros(size, np.int64) for size in sizes)


def make_schedule(tasks: int, planes: int) -> Schedule:
    """Allocate a schedule of `tasks` tasks."""
    sizes = [tasks] * 6 + [planes] + [tasks] * 5
    return Schedule._make(np.full(size, NOTHING, np.int64) for size in sizes)


def make_scratch(tasks: int) -> Scratch:
    """Allocate for `tasks` tasks."""
    shapes = ((tasks + 1, 3), (tasks,), (tasks,), (tasks,), (tasks,))
    return Scratch._make(np.zeros(shape, np.int64) for shape in shapes)


@kernel
def write_down(schedule: Schedule, target: Wish) -> None:
    """Make `target` the wish that is answered with `schedule`."""
    target.plane[:] = schedule.plane
    target.out_port[:] = schedule.out_port
    target.in_port[:] = schedule.in_port
    target.key[:] = schedule.start


def written_down(schedule: Schedule) -> Wish:
    """Return the wish that is answered with `schedule`."""
    wish = Wish._make(np.empty(len(schedule.order), np.int64) for _ in range(4))
    write_down(schedule, wish)
    return wish


@kernel
def reset_ports(ports: Ports) -> None:
    """Forget everything: no port has been used."""
    for used in (ports.to, ports.of, ports.last_out, ports.last_in, ports.used_out, ports.used_in):
        used[:] = NOTHING
    for when in (ports.done_out, ports.done_in, ports.up, ports.free):
        when[:] = 0
    ports.episode[:] = NOTHING
    ports.configuration[:] = 0
    ports.plane_done[:] = 0
    ports.plane_up[:] = 0
    ports.plane_last[:] = NOTHING
    ports.plane_by[:] = NOTHING
    ports.up_by[:] = NOTHING
    ports.sent[:] = NOTHING


@kernel
def push(heap: Int64s, size: int, key: int, second: int, item: int) -> int:
    """Add (key, second, item) and return the new size."""
    at = size
    while at > 0:
        up = (at - 1) >> 1
        if (heap[up, 0], heap[up, 1], heap[up, 2]) <= (key, second, item):
            break
        heap[at] = heap[up]
        at = up
    heap[at, 0] = key
    heap[at, 1] = second
    heap[at, 2] = item
    return size + 1


@kernel
def pop(heap: Int64s, size: int) -> int:
    """Take the least item off row 0 (read it first) and return the new size."""
    size -= 1
    key, second, item = heap[size, 0], heap[size, 1], heap[size, 2]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        right = child + 1
        if right < size and (heap[right, 0], heap[right, 1], heap[right, 2]) < (
            heap[child, 0],
            heap[child, 1],
            heap[child, 2],
        ):
            child = right
        if (key, second, item) <= (heap[child, 0], heap[child, 1], heap[child, 2]):
            break
        heap[at] = heap[child]
        at = child
    heap[at, 0] = key
    heap[at, 1] = second
    heap[at, 2] = item
    return size


@kernel
def find_merges(instance: Instance, schedule: Schedule, ports: Ports) -> None:
    """Note for which all-stop planes the last configuration holds every circuit of the first."""
    schedule.merges[:] = 1
    for task in schedule.order:
        if instance.kind[task] != 1 or schedule.configuration[task] != 0:
            continue
        plane, a, b = schedule.plane[task], schedule.out_port[task], schedule.in_port[task]
        last = ports.configuration[plane]
        if ports.used_out[a] != last or ports.to[a] != b:
            schedule.merges[plane] = 0


@kernel
def later_by(schedule: Schedule) -> tuple[int, int]:
    """Return how much later than in the iteration before tasks ended: the least and the most."""
    least, most = NEVER, 0
    for task in range(len(schedule.end)):
        by = schedule.end[task] - schedule.previous_end[task]
        least, most = min(least, by), max(most, by)
    return least, most


@kernel
def longest_cycle(schedule: Schedule, scratch: Scratch) -> float:
    """Return the largest time per iteration of any cycle of tasks waiting for their causes."""
    position, seen = scratch.position, scratch.seen
    cause, kind = schedule.cause, schedule.cause_kind
    for i in range(len(position)):
        position[schedule.order[i]] = i
    seen[:] = NOTHING
    longest = 0.0
    for first in range(len(position)):
        task = first
        while task != NOTHING and seen[task] == NOTHING:
            seen[task] = first
            task = cause[task]
        if task == NOTHING or seen[task] != first:
            continue
        length, wraps, last = 0, 0, task
        while True:
            other = cause[task]
            back = kind[task] == BY_LAST_ITERATION
            if kind[task] >= BY_OUTPUT and position[other] >= position[task]:
                back = True
            length += schedule.end[task]
            length -= schedule.previous_end[other] if back else schedule.end[other]
            wraps += back
            task = other
            if task == last:
                break
        if wraps > 0:
            longest = max(longest, length / wraps)
    return longest


@kernel
def evaluate(
    instance: Instance,
    schedule: Schedule,
    ports: Ports,
    scratch: Scratch,
    wish: Wish,
    bias_ns: int,
    earliest_first: bool,
    ends: Int64s,
) -> float:
    """Fix a program in the first iteration, execute it until it repeats itself; its period, ns.

    Messages are taken by their key, least first; with `earliest_first` by the time they can start,
    and the key decides ties. Where `wish` leaves the choice, a message goes where it ends first, a
    change of circuit costing `bias_ns`; of equal ones where light came last, so that idle planes
    stay free. Iterations overlap as their dependencies allow. Fills `ends`, one for each iteration
    there may be, with when it ended, `NOTHING` for those not needed. Where the most iterations do
    not show the period, the value is an upper bound of it; where there is only one, its end.
    `NEVER` if tasks form a circle.
    """
    # One body and local names: Numba counts references for every array handed to a function.
    kind, src, dst, dur_ns = instance.kind, instance.src, instance.dst, instance.dur_ns
    pred_ptr, pred, pred_distance = instance.pred_ptr, instance.pred, instance.pred_distance
    succ_ptr, succ, wire_ns, mode = (
        instance.succ_ptr,
        instance.succ,
        instance.wire_ns,
        instance.mode,
    )
    port_ptr, port, nodes = instance.port_ptr, instance.port, instance.nodes
    known_ns, heard_ns = instance.known_ns, instance.heard_ns
    latency_ns, delay_ns = instance.latency_ns, instance.delay_ns
    reuse, early = instance.reuse, instance.early
    order, start, end, previous = (
        schedule.order,
        schedule.start,
        schedule.end,
        schedule.previous_end,
    )
    cause, cause_kind = schedule.cause, schedule.cause_kind
    to, of, up, free = ports.to, ports.of, ports.up, ports.free
    up_by, sent = ports.up_by, ports.sent
    done_out, done_in, last_out, last_in = (
        ports.done_out,
        ports.done_in,
        ports.last_out,
        ports.last_in,
    )
    used_out, used_in, current = ports.used_out, ports.used_in, ports.configuration
    heap, missing, stack = scratch.heap, scratch.missing, scratch.stack
    tasks, planes, iterations = len(kind), len(mode), len(ends)
    reset_ports(ports)
    ends[:] = NOTHING
    episodes = 0
    for iteration in range(iterations):
        building = iteration == 0
        size, depth, count, last = 0, 0, 0, 0
        if building:
            missing[:] = instance.missing
            for task in range(tasks):
                if missing[task] == 0:
                    stack[depth] = task
                    depth += 1
        else:
            previous[:] = end
            for k in range(planes):  # the first configuration stands only if they merge
                current[k] = 0 if schedule.merges[k] else NOTHING
        while True:
            fresh = True
            if not building:
                if count == tasks:
                    break
                task = order[count]
            elif depth > 0:
                depth -= 1
                task = stack[depth]
            elif size > 0:
                task = heap[0, 2]
                wanted = heap[0, 0]
                size = pop(heap, size)
                fresh = False
            else:
                break
            ready = start[task]
            if fresh:
                ready = 0
                cause[task] = NOTHING
                cause_kind[task] = BY_TASK
                for k in range(pred_ptr[task], pred_ptr[task + 1]):
                    if pred_distance[k] == 0:
                        ended = end[pred[k]]
                    elif building:
                        continue
                    else:
                        ended = previous[pred[k]]
                    if ended > ready:
                        ready = ended
                        cause[task] = pred[k]
                        cause_kind[task] = pred_distance[k]
                if building and kind[task] == 1:
                    start[task] = ready
                    if earliest_first:
                        size = push(heap, size, ready, wish.key[task], task)
                    else:
                        size = push(heap, size, wish.key[task], 0, task)
                    continue
            if kind[task] != 1:
                start[task] = ready
                end[task] = ready + dur_ns[task]
            else:
                first_plane, past_plane, only_a, only_b = 0, planes, ANY, ANY
                if not building:
                    first_plane = schedule.plane[task]
                    only_a, only_b = schedule.out_port[task], schedule.in_port[task]
                elif wish.plane[task] != ANY:
                    first_plane = wish.plane[task]
                    only_a, only_b = wish.out_port[task], wish.in_port[task]
                if not building or wish.plane[task] != ANY:
                    past_plane = first_plane + 1
                best_cost, light, plane, a, b, configuration = NEVER, 0, 0, 0, 0, 0
                for k in range(first_plane, past_plane):
                    wire = wire_ns[k, task]
                    if wire == NEVER:
                        continue
                    row_a, row_b = k * nodes + src[task], k * nodes + dst[task]
                    for i in range(port_ptr[row_a], port_ptr[row_a + 1]):
                        out = port[i]
                        if only_a not in (ANY, out):
                            continue
                        for j in range(port_ptr[row_b], port_ptr[row_b + 1]):
                            into = port[j]
                            if only_b not in (ANY, into):
                                continue
                            stands = reuse and to[out] == into and of[into] == out
                            asked = 0 if early else ready  # no sooner
                            number = 0
                            if mode[k] & PACKET:
                                when = done_in[into] - known_ns  # an input takes one at a time
                                stands = True
                            elif mode[k] & ALL_STOP:
                                number = current[k]
                                if not building:
                                    number = schedule.configuration[task]
                                elif used_out[out] == number or used_in[into] == number:
                                    stands = stands and used_out[out] == used_in[into]
                                    number += 0 if stands else 1
                                if number == current[k]:
                                    when = ports.plane_up[k]
                                else:
                                    when = max(asked, ports.plane_done[k]) + delay_ns[k]
                            elif stands:
                                when = up[out]
                            elif to[out] == NOTHING and of[into] == NOTHING:
                                when = 0  # it can have stood from the beginning
                            else:
                                when = max(asked, done_out[out], done_in[into]) + delay_ns[k]
                            cost = max(ready, when, free[out]) + wire
                            if not stands:
                                cost += bias_ns
                            if cost < best_cost or (cost == best_cost and when > light):
                                best_cost, light, plane = cost, when, k
                                a, b, configuration = out, into, number
                begin = max(ready, light, free[a])
                if building and earliest_first and begin > wanted:
                    size = push(heap, size, begin, wish.key[task], task)
                    continue
                stands = reuse and to[a] == b and of[b] == a
                asked = done_out[a]
                by = ports.last_out[a]
                if last_in[b] != NOTHING and (by == NOTHING or done_in[b] > asked):
                    asked, by = done_in[b], last_in[b]
                if mode[plane] & ALL_STOP:
                    asked, by = ports.plane_done[plane], ports.plane_last[plane]
                    if configuration == current[plane]:
                        by = ports.plane_by[plane]
                elif mode[plane] & PACKET:
                    by = last_in[b]
                elif stands:
                    by = up_by[a]
                if free[a] > ready and free[a] >= light:
                    cause[task] = sent[a]
                    cause_kind[task] = BY_OUTPUT
                elif light > ready and (early or asked > ready):
                    cause[task] = by
                    cause_kind[task] = BY_CHANGE
                done = begin + max(wire_ns[plane, task] + known_ns, heard_ns)
                if mode[plane] & ALL_STOP:
                    if configuration != current[plane]:
                        current[plane] = configuration
                        ports.plane_up[plane] = light
                        ports.plane_by[plane] = by
                    stands = stands and used_out[a] == configuration == used_in[b]
                    if done > ports.plane_done[plane]:
                        ports.plane_done[plane] = done
                        ports.plane_last[plane] = task
                if not stands:
                    to[a], of[b] = b, a
                    up[a] = light
                    up_by[a] = by
                    used_out[a] = used_in[b] = configuration
                    done_out[a] = done_in[b] = done
                    ports.episode[a] = episodes
                    if mode[plane] & DUPLEX:
                        to[b], of[a] = a, b
                        up[b] = light
                        up_by[b] = by
                        used_out[b] = used_in[a] = configuration
                        ports.episode[b] = episodes
                    episodes += 1
                if done >= done_out[a]:
                    done_out[a] = done
                    last_out[a] = task
                if done >= done_in[b]:
                    done_in[b] = done
                    last_in[b] = task
                if mode[plane] & DUPLEX and done >= done_out[b]:
                    done_out[b] = done_in[a] = done
                    last_out[b] = last_in[a] = task
                sent[a] = task
                free[a] = begin + wire_ns[plane, task]
                start[task] = begin
                end[task] = free[a] + latency_ns
                if building:
                    schedule.plane[task] = plane
                    schedule.out_port[task] = a
                    schedule.in_port[task] = b
                    schedule.episode[task] = ports.episode[a]
                    schedule.configuration[task] = configuration
            last = max(last, end[task])
            order[count] = task
            count += 1
            if building:
                for k in range(succ_ptr[task], succ_ptr[task + 1]):
                    missing[succ[k]] -= 1
                    if missing[succ[k]] == 0:
                        stack[depth] = succ[k]
                        depth += 1
        if count < tasks:
            return float(NEVER)
        if building:
            find_merges(instance, schedule, ports)
        ends[iteration] = last
        if iteration > 0:
            least, most = later_by(schedule)
            if least == most:
                return float(most)
            if iteration == iterations - 1:
                return float(most)
            if iteration >= SETTLING and longest_cycle(schedule, scratch) >= most:
                return float(most)
    return float(ends[0])
