"""Flux's schedule generation: from priorities and planes to a program and its steady-state time.

`construct` takes messages in order of priority once all they depend on is placed, puts each at
the end of its ports' queues, and so fixes one iteration of an ordered program. `repeat` executes
that program for further iterations, circuits carried over. Both keep the dispatcher's rules: a
circuit is requested as soon as both its ports have done all before it; where it stands already
nothing is requested; a message begins when it is ready, its circuit is up and its output is free.
Both are O(tasks + arcs), `construct` times log(messages).
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

# `cause_kind`: what a task waited for last.
BY_TASK: Final = 0  # a task it depends on
BY_LAST_ITERATION: Final = 1  # the same, of the iteration before
BY_OUTPUT: Final = 2  # its output was sending `cause`
BY_CHANGE: Final = 3  # its circuit was not up yet; `cause` was the last at its ports


class Instance(NamedTuple):
    """One iteration and a fabric. Arrays per task unless said otherwise; ports count over planes.

    `wire_ns` has shape (planes, tasks). `delay_ns[plane]` is from request to light; `known_ns` from
    a message's last bit to the moment its ports may be asked to change.
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


class Ports(NamedTuple):
    """What every port is doing. Per port: the far end of its circuit as an output and as an input,
    when each side may be asked to change, when the circuit is up, when the output is free, the last
    message of each side and (all-stop) the configuration each side is used in. Per plane:
    configuration, when it may be asked to change, when it is up.
    """  # noqa: D205 (one sentence of the whole)

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
    configuration: Int64s
    plane_done: Int64s
    plane_up: Int64s
    plane_last: Int64s
    episode: Int64s  # per output: the number of its circuit's run of messages; [-1]: how many


class Schedule(NamedTuple):
    """What `construct` decides and `repeat` follows; arrays per task, except `order`, `merges`."""

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
    """What `construct` is asked for, per task: where each message goes, and how early it is taken.

    `plane` and, within it, the ports (over all planes) may be `ANY`: then `construct` chooses.
    """

    plane: Int64s
    out_port: Int64s
    in_port: Int64s
    key: Int64s


class Heap(NamedTuple):
    """A binary heap of (key, second, item), and the counts `construct` works with."""

    key: Int64s
    second: Int64s
    item: Int64s
    missing: Int64s
    stack: Int64s


def make_ports(ports: int, planes: int) -> Ports:
    """Allocate for `ports` ports over `planes` planes; `reset_ports` fills in."""
    sizes = [ports] * 10 + [planes] * 4 + [ports + 1]
    return Ports._make(np.zeros(size, np.int64) for size in sizes)


def make_schedule(tasks: int, planes: int) -> Schedule:
    """Allocate a schedule of `tasks` tasks."""
    sizes = [tasks] * 6 + [planes] + [tasks] * 5
    return Schedule._make(np.full(size, NOTHING, np.int64) for size in sizes)


def make_heap(tasks: int) -> Heap:
    """Allocate for `tasks` tasks."""
    return Heap._make(np.zeros(tasks + 1, np.int64) for _ in range(5))


@kernel
def write_down(schedule: Schedule, target: Wish) -> None:
    """Make `target` the wish that `construct` answers with `schedule`."""
    target.plane[:] = schedule.plane
    target.out_port[:] = schedule.out_port
    target.in_port[:] = schedule.in_port
    target.key[:] = schedule.start


def written_down(schedule: Schedule) -> Wish:
    """Return the wish that `construct` answers with `schedule`."""
    wish = Wish._make(np.empty(len(schedule.order), np.int64) for _ in range(4))
    write_down(schedule, wish)
    return wish


@kernel
def reset_ports(ports: Ports) -> None:
    """Forget everything: no port has been used."""
    for column in (
        ports.to,
        ports.of,
        ports.last_out,
        ports.last_in,
        ports.used_out,
        ports.used_in,
    ):
        column[:] = NOTHING
    for column in (ports.done_out, ports.done_in, ports.up, ports.free):
        column[:] = 0
    ports.configuration[:] = 0
    ports.plane_done[:] = 0
    ports.plane_up[:] = 0
    ports.plane_last[:] = NOTHING
    ports.episode[:] = NOTHING
    ports.episode[-1] = 0


@kernel
def before(heap: Heap, at: int, key: int, second: int, item: int) -> bool:
    """Say whether the heap's element `at` comes no later than (key, second, item)."""
    return (heap.key[at], heap.second[at], heap.item[at]) <= (key, second, item)


@kernel
def put(heap: Heap, at: int, key: int, second: int, item: int) -> None:
    """Write an element."""
    heap.key[at] = key
    heap.second[at] = second
    heap.item[at] = item


@kernel
def push(heap: Heap, size: int, key: int, second: int, item: int) -> int:
    """Add an item and return the new size."""
    at = size
    while at > 0:
        up = (at - 1) >> 1
        if before(heap, up, key, second, item):
            break
        put(heap, at, heap.key[up], heap.second[up], heap.item[up])
        at = up
    put(heap, at, key, second, item)
    return size + 1


@kernel
def pop(heap: Heap, size: int) -> int:
    """Take the least item off position 0 (read it first) and return the new size."""
    size -= 1
    key, second, item = heap.key[size], heap.second[size], heap.item[size]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        right = child + 1
        if right < size and before(
            heap, right, heap.key[child], heap.second[child], heap.item[child]
        ):
            child = right
        if not before(heap, child, key, second, item):
            break
        put(heap, at, heap.key[child], heap.second[child], heap.item[child])
        at = child
    put(heap, at, key, second, item)
    return size


@kernel
def joined_configuration(instance: Instance, ports: Ports, plane: int, a: int, b: int) -> int:
    """Return the first configuration of an all-stop plane that can hold the circuit a -> b."""
    if instance.mode[plane] & ALL_STOP == 0:
        return 0
    now = int(ports.configuration[plane])
    if ports.used_out[a] == now and ports.used_in[b] == now and ports.to[a] == b:
        return now
    if ports.used_out[a] != now and ports.used_in[b] != now:
        return now
    return now + 1


@kernel
def light_ns(
    instance: Instance, ports: Ports, plane: int, a: int, b: int, configuration: int
) -> int:
    """Return when a circuit a -> b would be up; 0 where it can have stood from the beginning."""
    mode = instance.mode[plane]
    if mode & PACKET:
        return int(ports.done_in[b] - instance.known_ns)  # its input takes one at a time
    if mode & ALL_STOP:
        if configuration == ports.configuration[plane]:
            return int(ports.plane_up[plane])
        return int(ports.plane_done[plane] + instance.delay_ns[plane])
    if ports.to[a] == b and ports.of[b] == a:
        return int(ports.up[a])
    if ports.to[a] == NOTHING and ports.of[b] == NOTHING:
        return 0
    return int(max(ports.done_out[a], ports.done_in[b]) + instance.delay_ns[plane])


@kernel
def occupy(
    instance: Instance,
    ports: Ports,
    message: int,
    plane: int,
    a: int,
    b: int,
    configuration: int,
    up: int,
    start: int,
) -> None:
    """Send `message` from `start`: its circuit is made where it does not stand."""
    mode = instance.mode[plane]
    last_bit = start + instance.wire_ns[plane, message]
    done = last_bit + instance.known_ns
    ports.free[a] = last_bit
    stands = ports.to[a] == b and ports.of[b] == a
    if mode & ALL_STOP:
        if configuration != ports.configuration[plane]:
            ports.configuration[plane] = configuration
            ports.plane_up[plane] = up
        stands = stands and ports.used_out[a] == configuration and ports.used_in[b] == configuration
        if done > ports.plane_done[plane]:
            ports.plane_done[plane] = done
            ports.plane_last[plane] = message
    if not stands:
        ports.to[a] = b
        ports.of[b] = a
        ports.up[a] = up
        ports.used_out[a] = configuration
        ports.used_in[b] = configuration
        ports.done_out[a] = done
        ports.done_in[b] = done
        ports.episode[a] = ports.episode[-1]
        if mode & DUPLEX:
            ports.to[b] = a
            ports.of[a] = b
            ports.up[b] = up
            ports.used_out[b] = configuration
            ports.used_in[a] = configuration
            ports.episode[b] = ports.episode[-1]
        ports.episode[-1] += 1
    ports.done_out[a] = max(ports.done_out[a], done)
    ports.done_in[b] = max(ports.done_in[b], done)
    ports.last_out[a] = message
    ports.last_in[b] = message
    if mode & DUPLEX:
        ports.done_out[b] = ports.done_out[a] = max(ports.done_out[a], ports.done_out[b])
        ports.done_in[a] = ports.done_in[b] = ports.done_out[a]
        ports.last_out[b] = message
        ports.last_in[a] = message


@kernel
def blame(
    instance: Instance,
    ports: Ports,
    schedule: Schedule,
    message: int,
    plane: int,
    a: int,
    b: int,
    ready: int,
    up: int,
) -> None:
    """Note what made `message` wait beyond `ready`, before `occupy` overwrites it."""
    free = ports.free[a]
    if up <= ready and free <= ready:
        return
    if free >= up:
        schedule.cause[message] = ports.last_out[a]
        schedule.cause_kind[message] = BY_OUTPUT
    else:
        culprit = ports.last_out[a]
        if ports.last_in[b] != NOTHING and ports.done_in[b] > ports.done_out[a]:
            culprit = ports.last_in[b]
        if instance.mode[plane] & ALL_STOP:
            culprit = ports.plane_last[plane]
        schedule.cause[message] = culprit
        schedule.cause_kind[message] = BY_CHANGE


@kernel
def ready_ns(instance: Instance, schedule: Schedule, task: int, first: bool) -> int:
    """Return when all that `task` waits for has ended, and note the last of it."""
    ready = 0
    schedule.cause[task] = NOTHING
    schedule.cause_kind[task] = BY_TASK
    for k in range(instance.pred_ptr[task], instance.pred_ptr[task + 1]):
        other = instance.pred[k]
        if instance.pred_distance[k] == 0:
            end = schedule.end[other]
        elif first:
            continue
        else:
            end = schedule.previous_end[other]
        if end > ready:
            ready = end
            schedule.cause[task] = other
            schedule.cause_kind[task] = instance.pred_distance[k]
    return ready


@kernel
def construct(
    instance: Instance,
    schedule: Schedule,
    ports: Ports,
    heap: Heap,
    wish: Wish,
    bias_ns: int,
    earliest_first: bool,
) -> int:
    """Fix one iteration of the program; returns when it ends, or -1 where the tasks have a cycle.

    Messages are taken by `key`, least first; with `earliest_first` by the time they can start, and
    `key` decides ties. Where `wish` leaves the choice, a message goes where it ends first, a
    change of circuit costing `bias_ns`; of equal ones where light came last, so that idle planes
    stay free.
    """
    tasks = len(instance.kind)
    heap.missing[:tasks] = instance.missing
    size, depth, count, last = 0, 0, 0, 0
    for task in range(tasks):
        if heap.missing[task] == 0:
            heap.stack[depth] = task
            depth += 1
    while True:
        while depth > 0:
            depth -= 1
            task = heap.stack[depth]
            ready = ready_ns(instance, schedule, task, True)
            schedule.start[task] = ready
            if instance.kind[task] == 1:
                if earliest_first:
                    size = push(heap, size, ready, wish.key[task], task)
                else:
                    size = push(heap, size, wish.key[task], 0, task)
                continue
            schedule.end[task] = ready + instance.dur_ns[task]
            last = max(last, schedule.end[task])
            schedule.order[count] = task
            count += 1
            for k in range(instance.succ_ptr[task], instance.succ_ptr[task + 1]):
                after = instance.succ[k]
                heap.missing[after] -= 1
                if heap.missing[after] == 0:
                    heap.stack[depth] = after
                    depth += 1
        if size == 0:
            break
        task, wanted = heap.item[0], heap.key[0]
        size = pop(heap, size)
        ready = schedule.start[task]
        best_cost, best_light = NEVER, 0
        best_plane, best_a, best_b, best_configuration = 0, 0, 0, 0
        for plane in range(len(instance.mode)):
            if wish.plane[task] not in (ANY, plane) or instance.wire_ns[plane, task] == NEVER:
                continue
            src = plane * instance.nodes + instance.src[task]
            dst = plane * instance.nodes + instance.dst[task]
            for i in range(instance.port_ptr[src], instance.port_ptr[src + 1]):
                a = instance.port[i]
                if wish.out_port[task] not in (ANY, a):
                    continue
                for j in range(instance.port_ptr[dst], instance.port_ptr[dst + 1]):
                    b = instance.port[j]
                    if wish.in_port[task] not in (ANY, b):
                        continue
                    configuration = joined_configuration(instance, ports, plane, a, b)
                    light = light_ns(instance, ports, plane, a, b, configuration)
                    begin = max(ready, light, ports.free[a])
                    cost = begin + instance.wire_ns[plane, task]
                    if (
                        not (ports.to[a] == b and ports.of[b] == a)
                        and instance.mode[plane] & PACKET == 0
                    ):
                        cost += bias_ns
                    if cost < best_cost or (cost == best_cost and light > best_light):
                        best_cost, best_light = cost, light
                        best_plane, best_a, best_b = plane, a, b
                        best_configuration = configuration
        start = max(ready, best_light, ports.free[best_a])
        if earliest_first and start > wanted:
            size = push(heap, size, start, wish.key[task], task)
            continue
        blame(instance, ports, schedule, task, best_plane, best_a, best_b, ready, best_light)
        occupy(
            instance, ports, task, best_plane, best_a, best_b, best_configuration, best_light, start
        )
        schedule.plane[task] = best_plane
        schedule.out_port[task] = best_a
        schedule.in_port[task] = best_b
        schedule.episode[task] = ports.episode[best_a]
        schedule.configuration[task] = best_configuration
        schedule.start[task] = start
        schedule.end[task] = start + instance.wire_ns[best_plane, task] + instance.latency_ns
        last = max(last, schedule.end[task])
        schedule.order[count] = task
        count += 1
        for k in range(instance.succ_ptr[task], instance.succ_ptr[task + 1]):
            after = instance.succ[k]
            heap.missing[after] -= 1
            if heap.missing[after] == 0:
                heap.stack[depth] = after
                depth += 1
    return last if count == tasks else -1


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
def repeat(instance: Instance, schedule: Schedule, ports: Ports) -> int:
    """Execute the fixed program once more, after the iteration `ports` remembers; returns its end.

    Iterations overlap as their dependencies allow.
    """
    schedule.previous_end[:] = schedule.end
    for plane in range(len(instance.mode)):
        # The first configuration is never the one that stands, unless they merge.
        ports.configuration[plane] = 0 if schedule.merges[plane] else NOTHING
    last = 0
    for task in schedule.order:
        ready = ready_ns(instance, schedule, task, False)
        if instance.kind[task] != 1:
            schedule.start[task] = ready
            schedule.end[task] = ready + instance.dur_ns[task]
        else:
            plane, a, b = schedule.plane[task], schedule.out_port[task], schedule.in_port[task]
            configuration = schedule.configuration[task]
            light = light_ns(instance, ports, plane, a, b, configuration)
            start = max(ready, light, ports.free[a])
            blame(instance, ports, schedule, task, plane, a, b, ready, light)
            occupy(instance, ports, task, plane, a, b, configuration, light, start)
            schedule.start[task] = start
            schedule.end[task] = start + instance.wire_ns[plane, task] + instance.latency_ns
        last = max(last, schedule.end[task])
    return last


@kernel
def evaluate(
    instance: Instance,
    schedule: Schedule,
    ports: Ports,
    heap: Heap,
    wish: Wish,
    bias_ns: int,
    earliest_first: bool,
    iterations: int,
    ends: Int64s,
) -> int:
    """Construct, then repeat to `iterations` (at least 3) in all; `ends` (iterations,) is filled.

    Returns the time from the end of the second to that of the last, or `NEVER` for a cycle.
    """
    reset_ports(ports)
    ends[0] = construct(instance, schedule, ports, heap, wish, bias_ns, earliest_first)
    if ends[0] < 0:
        return NEVER
    find_merges(instance, schedule, ports)
    for i in range(1, iterations):
        ends[i] = repeat(instance, schedule, ports)
    return int(ends[iterations - 1] - ends[1])
