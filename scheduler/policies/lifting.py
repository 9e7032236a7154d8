"""From the order of a few nodes' messages to a plan for all: ranks that are alike do alike."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from scheduler.phases import PhaseProgram
from scheduler.policies.folding import fold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scheduler.model.problem import Problem
    from scheduler.model.taskgraph import Int64s
    from scheduler.phases import Placed
    from scheduler.policies._kernels_flux import Instance, Wish

__all__ = ["Lifted", "lift", "phase_bound"]

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

    Nodes whose messages are alike are one kind; one of each kind is looked at, all of them
    together and each alone.
    """
    graph, fabric = problem.graph, problem.fabric
    if graph.tasks > _MOST_TASKS or len(graph.messages) == 0:
        return Lifted(least_ns, [], np.zeros(0, np.int64))
    classes = fold(graph, duplex=any(plane.duplex for plane in fabric.planes))
    change_ns = (instance.delay_ns + instance.known_ns).tolist()
    orders = []
    highest_ns = math.ceil(most_ns)
    choices = list(_choices(problem, classes))
    for done, nodes in enumerate(choices):
        if least_ns >= most_ns or work <= 0:
            break
        program = PhaseProgram(graph, fabric, nodes, change_ns=change_ns)
        if not program.covers:
            continue
        found = program.shortest(least_ns, highest_ns, work=work // (len(choices) - done))
        least_ns = max(least_ns, float(found.least_ns))
        if found.order:
            orders.append(found.order)
    return Lifted(min(least_ns, most_ns), orders, classes)


def _choices(problem: Problem, classes: Int64s) -> Iterator[list[int]]:
    """Yield sets of nodes to look at."""
    graph = problem.graph
    messages = graph.messages
    src = graph.src[messages]
    kinds: dict[bytes, int] = {}
    for node in range(graph.nodes):
        own = np.sort(classes[messages[src == node]])
        if len(own):
            kinds.setdefault(own.tobytes(), node)
    nodes = list(kinds.values())
    if len(nodes) <= _MOST_KINDS:
        yield nodes
        if len(nodes) > 1:
            yield from ([node] for node in nodes)
        return
    load = np.bincount(src, weights=graph.size_bytes[messages], minlength=graph.nodes)
    yield from ([node] for node in np.argsort(-load, kind="stable")[:_HEAVIEST].tolist())


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
