"""From the order of a few nodes' messages to a plan for all: ranks that are alike do alike."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from scheduler.phases import PhaseProgram
from scheduler.policies.folding import fold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scheduler.model.problem import Problem
    from scheduler.model.taskgraph import Int64s, TaskGraph
    from scheduler.phases import Placed
    from scheduler.policies._kernels_flux import Instance, Wish

__all__ = ["BOTH", "SENT", "Lifted", "classes_of", "lift", "phase_bound", "slices"]

SENT: Final = (0,)  # what nodes send,
BOTH: Final = (0, 1)  # and what they receive

_MOST_KINDS: Final = 3  # nodes that stand for all others
_HEAVIEST: Final = 2  # nodes looked at alone where ranks are not alike
_MOST_TASKS: Final = 5_000


class Lifted(NamedTuple):
    """What the phases of a few nodes say: a bound on the period, and plans (messages, starts)."""

    least_ns: float
    orders: list[list[Placed]]
    classes: Int64s


def phase_bound(
    problem: Problem, instance: Instance, *, least_ns: float, most_ns: float, work: int
) -> Lifted:
    """Bound the period between what is proven and what is known, in `work` steps.

    Nodes whose messages are alike are one kind. One of each kind is looked at, nodes that talk to
    each other where possible: first what all of them send, then all they send and receive, then
    each of them alone.
    """
    graph, fabric = problem.graph, problem.fabric
    if graph.tasks > _MOST_TASKS or len(graph.messages) == 0:
        return Lifted(least_ns, [], np.zeros(0, np.int64))
    duplex = any(plane.duplex for plane in fabric.planes)
    classes = classes_of(graph, duplex=duplex)
    change_ns = (instance.delay_ns + instance.known_ns).tolist()
    orders = []
    highest_ns = math.ceil(most_ns)
    choices = list(_choices(graph, classes, both=not duplex))
    for done, (nodes, ways) in enumerate(choices):
        if least_ns >= most_ns or work <= 0:
            break
        program = PhaseProgram(graph, fabric, nodes, change_ns=change_ns, ways=ways)
        if not program.covers:
            continue
        found = program.shortest(least_ns, highest_ns, work=work // (len(choices) - done))
        work -= found.spent
        least_ns = max(least_ns, float(found.least_ns))
        if found.order:
            orders.append(found.order)
    return Lifted(min(least_ns, most_ns), orders, classes)


def classes_of(graph: TaskGraph, *, duplex: bool) -> Int64s:
    """Return each task's class, (tasks,): see `fold`.

    Where that leaves more than a few kinds of nodes, tasks that do alike are, if not as long.
    """
    classes = fold(graph, duplex=duplex)
    if len(_kinds(graph, classes)) > _MOST_KINDS:
        classes = fold(_shape(graph), duplex=duplex)
    return classes


def _shape(graph: TaskGraph) -> TaskGraph:
    """Return the graph with all tasks equally long and all messages of one size."""
    ones = np.ones(graph.tasks, np.int64)
    return dataclasses.replace(graph, dur_ns=ones, size_bytes=ones)


def _kinds(graph: TaskGraph, classes: Int64s) -> list[list[int]]:
    """Return the nodes that send, those whose messages are of the same classes together."""
    messages = graph.messages
    src = graph.src[messages]
    kinds: dict[bytes, list[int]] = {}
    for node in range(graph.nodes):
        own = np.sort(classes[messages[src == node]])
        if len(own):
            kinds.setdefault(own.tobytes(), []).append(node)
    return list(kinds.values())


def slices(graph: TaskGraph, classes: Int64s) -> Iterator[list[int]]:
    """Yield sets of nodes, one of each kind, each with the most bytes to those before it.

    As many as nodes of the first kind; those that carry most begin.
    """
    messages = graph.messages
    traffic = np.zeros((graph.nodes,) * 2)
    np.add.at(traffic, (graph.src[messages], graph.dst[messages]), graph.size_bytes[messages])
    traffic += traffic.T
    first, *others = _kinds(graph, classes)
    for begin in sorted(first, key=lambda node: -traffic[node].sum()):
        nodes = [begin]
        for kind in others:
            nodes.append(max(kind, key=lambda node: traffic[node, nodes].sum()))
        yield nodes


def _choices(
    graph: TaskGraph, classes: Int64s, *, both: bool
) -> Iterator[tuple[list[int], tuple[int, ...]]]:
    """Yield sets of nodes to look at, and which ways: what they send (0) and receive (1)."""
    nodes = next(slices(graph, classes))
    if len(nodes) > _MOST_KINDS:
        messages = graph.messages
        load = np.bincount(
            graph.src[messages], weights=graph.size_bytes[messages], minlength=graph.nodes
        )
        nodes = np.argsort(-load, kind="stable")[:_HEAVIEST].tolist()
    else:
        yield nodes, SENT
        if both:
            yield nodes, BOTH
    if len(nodes) > 1 or not both:
        for node in nodes:
            yield [node], BOTH if both else SENT


def lift(
    order: list[Placed], classes: Int64s, messages: Int64s, make: Callable[..., Wish], head: Int64s
) -> Wish:
    """Give every message the plane and the start of the one of its class in `order`.

    Those without one are taken by their `head` and go where they end first.
    """
    planes, keys = {}, {}
    for message, machine, start_ns in order:
        own = int(classes[message])
        planes[own], keys[own] = machine.plane, start_ns
    wish = make(key=head)
    for message in messages.tolist():
        own = int(classes[message])
        if own in planes:
            wish.plane[message] = planes[own]
            wish.key[message] = keys[own]
    return wish
