"""Flux's search: simulated annealing over the planes and priorities of blocks of messages.

A move changes one or two blocks. Most moves start from a message on the critical path that waited
for a port: only those can shorten the iteration (the idea of Nowicki and Smutnicki's neighbourhood
for job shops, Management Science 42, 1996).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from scheduler.kernel import kernel
from scheduler.policies._kernels_flux import (
    ANY,
    BY_LAST_ITERATION,
    BY_OUTPUT,
    NEVER,
    NOTHING,
    Instance,
    Ports,
    Schedule,
    Scratch,
    Wish,
    evaluate,
    write_down,
)

if TYPE_CHECKING:
    from scheduler.model.taskgraph import Int64s

RUNS: Final = 0.35  # how often a move is of a whole run over one circuit
MATES: Final = 0.2  # how often its goal is another message between the same nodes
CRITICAL: Final = 0.75  # how often a move starts on the critical path
COLD: Final = 2e-4  # the last temperature, in parts of the value


PER_EVALUATION: Final = 1_000  # work beside tasks and arcs


class Blocks(NamedTuple):
    """Sets of messages that move together, at every level from coarse to single messages.

    `of` has shape (levels, tasks): each message's block. Block k holds
    `message[pointer[k]:pointer[k+1]]`, which `planes[k, :plane_count[k]]` can all carry.
    """

    of: Int64s
    pointer: Int64s
    message: Int64s
    planes: Int64s
    plane_count: Int64s


@kernel
def head_and_tail(instance: Instance, schedule: Schedule, head: Int64s, tail: Int64s) -> None:
    """Longest paths through one iteration to each task's start and from it, itself included.

    Messages count at their fastest plane, ports do not count; `schedule.order` gives the order.
    """
    tail[:] = 0
    length = np.empty(len(instance.kind), np.int64)
    for task in range(len(instance.kind)):
        length[task] = instance.dur_ns[task]
        if instance.kind[task] == 1:
            length[task] = instance.wire_ns[:, task].min() + instance.latency_ns
    for task in schedule.order:
        head[task] = 0
        for k in range(instance.pred_ptr[task], instance.pred_ptr[task + 1]):
            if instance.pred_distance[k] == 0:
                other = instance.pred[k]
                head[task] = max(head[task], head[other] + length[other])
    for task in schedule.order[::-1]:
        for k in range(instance.succ_ptr[task], instance.succ_ptr[task + 1]):
            tail[task] = max(tail[task], tail[instance.succ[k]])
        tail[task] += length[task]


@kernel
def depths(instance: Instance, schedule: Schedule, depth: Int64s) -> None:
    """Count the tasks on the longest path to each task, by number: equal for ranks that match."""
    for task in schedule.order:
        depth[task] = 0
        for k in range(instance.pred_ptr[task], instance.pred_ptr[task + 1]):
            if instance.pred_distance[k] == 0:
                depth[task] = max(depth[task], depth[instance.pred[k]] + 1)


@kernel
def critical_messages(schedule: Schedule, position: Int64s, found: Int64s) -> int:
    """List the messages on the critical path that waited for a port; returns how many.

    The path is followed back from the end over two iterations, the last one standing for both.
    """
    task, latest = NOTHING, NOTHING
    for i in range(len(schedule.order)):
        other = schedule.order[i]
        position[other] = i
        if schedule.end[other] > latest:
            latest = schedule.end[other]
            task = other
    count, wraps = 0, 0
    while task != NOTHING and wraps < 2 and count < len(found):
        kind, cause = schedule.cause_kind[task], schedule.cause[task]
        if kind >= BY_OUTPUT:
            found[count] = task
            count += 1
            if cause != NOTHING and position[cause] >= position[task]:
                wraps += 1
        elif kind == BY_LAST_ITERATION:
            wraps += 1
        task = cause
    return count


@kernel
def shift(blocks: Blocks, block: int, wish: Wish, by: int) -> None:
    """Move the priorities of a whole block."""
    for k in range(blocks.pointer[block], blocks.pointer[block + 1]):
        wish.key[blocks.message[k]] += by


@kernel
def put_on(blocks: Blocks, block: int, wish: Wish, plane: int) -> None:
    """Put a whole block on any ports of `plane`, if it can carry the block."""
    for c in range(blocks.plane_count[block]):
        if blocks.planes[block, c] == plane:
            for k in range(blocks.pointer[block], blocks.pointer[block + 1]):
                message = blocks.message[k]
                wish.plane[message] = plane
                wish.out_port[message] = ANY
                wish.in_port[message] = ANY


@kernel
def copy_wish(source: Wish, target: Wish) -> None:
    """Overwrite `target`."""
    target.plane[:] = source.plane
    target.out_port[:] = source.out_port
    target.in_port[:] = source.in_port
    target.key[:] = source.key


@kernel
def forget_planes(wish: Wish) -> None:
    """Leave open where every message goes."""
    wish.plane[:] = ANY
    wish.out_port[:] = ANY
    wish.in_port[:] = ANY


@kernel
def move(
    blocks: Blocks,
    wish: Wish,
    one: int,
    other: int,
    span_ns: float,
    choose: bool,
    rng: np.random.Generator,
) -> None:
    """Change the plane (if `choose`) or the order of one or two blocks around `one` and `other`."""
    level = rng.integers(0, len(blocks.of))
    a, b = blocks.of[level, one], blocks.of[level, other]
    dice = rng.random()
    if not choose:
        dice = 0.35 + 0.65 * dice
    if dice < 0.2:
        block = a if rng.random() < 0.5 else b
        choice = rng.integers(0, blocks.plane_count[block])
        put_on(blocks, block, wish, blocks.planes[block, choice])
    elif dice < 0.35:
        plane = wish.plane[one]
        put_on(blocks, a, wish, wish.plane[other])
        put_on(blocks, b, wish, plane)
    elif dice < 0.55:
        shift(blocks, a, wish, wish.key[other] - 1 - wish.key[one])
    elif dice < 0.75:
        shift(blocks, b, wish, wish.key[one] + 1 - wish.key[other])
    elif dice < 0.9:  # to another's plane, next to it
        if choose:
            put_on(blocks, a, wish, wish.plane[other])
        side = 2 * rng.integers(0, 2) - 1
        shift(blocks, a, wish, wish.key[other] + side - wish.key[one])
    else:
        shift(blocks, a, wish, int(rng.normal() * 0.1 * span_ns))


@kernel
def mate(
    instance: Instance, messages: Int64s, one: int, other: int, rng: np.random.Generator
) -> int:
    """Return another message between the nodes of `one`, or `other` where none turns up."""
    for _ in range(8):
        drawn = messages[rng.integers(0, len(messages))]
        alike = (
            instance.src[drawn] == instance.src[one] and instance.dst[drawn] == instance.dst[one]
        )
        if alike and drawn != one:
            return int(drawn)
    return other


@kernel
def move_run(
    wire_ns: Int64s,
    messages: Int64s,
    run: Int64s,
    wish: Wish,
    one: int,
    other: int,
    choose: bool,
    rng: np.random.Generator,
) -> None:
    """Move all messages that went over a circuit with `one` past those that went with `other`.

    Moved one by one they would need more changes on the way, which the search avoids.
    """
    low, high = np.full(2, NEVER), np.full(2, -NEVER)
    for message in messages:
        for side, chosen in ((0, one), (1, other)):
            if run[message] == run[chosen]:
                low[side] = min(low[side], wish.key[message])
                high[side] = max(high[side], wish.key[message])
    along = choose and rng.random() < 0.3 and wish.plane[other] != ANY
    by = low[1] - 1 - high[0] if rng.random() < 0.5 else high[1] + 1 - low[0]
    for message in messages:
        if run[message] == run[one]:
            wish.key[message] += by
            if along and wire_ns[wish.plane[other], message] < NEVER:
                wish.plane[message] = wish.plane[other]
                wish.out_port[message] = ANY
                wish.in_port[message] = ANY


@kernel
def effort(instance: Instance, ends: Int64s) -> int:
    """Return the work an evaluation took: tasks and arcs gone through, about."""
    iterations = 0
    while iterations < len(ends) and ends[iterations] != NOTHING:
        iterations += 1
    return iterations * (len(instance.kind) + len(instance.pred)) + PER_EVALUATION


@kernel
def search(
    instance: Instance,
    schedule: Schedule,
    ports: Ports,
    scratch: Scratch,
    blocks: Blocks,
    messages: Int64s,
    wish: Wish,
    now: Wish,
    best: Wish,
    ends: Int64s,
    work: int,
    hot: float,
    choose: bool,
    rng: np.random.Generator,
    target_ns: float,
) -> int:
    """Anneal from `best` with so much `work` (see `effort`); it becomes the best found.

    `wish`, `now` and `ends` are scratch; `hot` is the first temperature, in parts of the value.
    Planes are part of the search if `choose`, else where messages end first. Stops early at
    `target_ns`. Returns the work done. The same arguments give the same result, `rng` in the same
    state included.
    """
    position = np.zeros(len(instance.kind), np.int64)
    critical = np.zeros(4 * len(messages) + 1, np.int64)
    if not choose:
        forget_planes(best)
    value = evaluate(instance, schedule, ports, scratch, best, 0, False, ends)
    done = effort(instance, ends)
    copy_wish(best, now)
    best_value, now_value = value, value
    count = critical_messages(schedule, position, critical)
    cause, run = schedule.cause.copy(), schedule.episode.copy()
    while done < work and best_value > target_ns:
        copy_wish(now, wish)
        one = messages[rng.integers(0, len(messages))]
        other = messages[rng.integers(0, len(messages))]
        if count > 0 and rng.random() < CRITICAL:
            one = critical[rng.integers(0, count)]
            if cause[one] != NOTHING:
                other = cause[one]
        if rng.random() < MATES:
            other = mate(instance, messages, one, other, rng)
        if rng.random() < RUNS:
            move_run(instance.wire_ns, messages, run, wish, one, other, choose, rng)
        else:
            move(blocks, wish, one, other, now_value, choose, rng)
        value = evaluate(instance, schedule, ports, scratch, wish, 0, False, ends)
        heat = hot * (COLD / hot) ** (done / work) * best_value
        done += effort(instance, ends)
        if value <= now_value or rng.random() < np.exp((now_value - value) / heat):
            if value < best_value:
                best_value = value
                copy_wish(wish, best)
            now_value = value
            write_down(schedule, now)
            if not choose:
                forget_planes(now)
            count = critical_messages(schedule, position, critical)
            cause[:] = schedule.cause
            run[:] = schedule.episode
    return done
