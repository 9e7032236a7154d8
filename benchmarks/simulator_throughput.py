"""How many messages the simulator executes per second, on one core.

Reference of the same run: pushing and popping as many events through Python's own heapq (a C
implementation), which is the least a discrete-event simulator in Python could do. Run it as
`python -m benchmarks.simulator_throughput`.
"""

from __future__ import annotations

import heapq
import time
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from scheduler.dispatch.simulator import iteration_ends, simulate
from scheduler.model.program import OrderedProgram, Slot, TimedProgram
from scheduler.model.taskgraph import COMPUTE, MESSAGE, Arcs, TaskGraph
from topologies import rails

if TYPE_CHECKING:
    from collections.abc import Callable

    from topologies import Fabric

ITERATIONS = 4


def shifts(nodes: int, rounds: int, size_bytes: int) -> TaskGraph:
    """Build rounds in which node r computes, then sends to node r + 1 + (round mod (nodes - 1))."""
    task = np.arange(2 * rounds * nodes).reshape(rounds, 2, nodes)
    node = np.broadcast_to(np.arange(nodes), (rounds, nodes))
    to = (node + 1 + np.arange(rounds)[:, None] % (nodes - 1)) % nodes
    kind = np.where(np.arange(2)[None, :, None] == 0, COMPUTE, MESSAGE) + 0 * task
    message = kind == MESSAGE
    compute, sent = task[:, 0], task[:, 1]
    back = np.take_along_axis(sent, np.argsort(to, axis=1), axis=1)  # the message node r receives
    before = [compute, sent[:-1], back[:-1], sent[-1:], back[-1:]]
    after = [sent, compute[1:], compute[1:], compute[:1], compute[:1]]
    counts = [part.size for part in before]
    flat = np.concatenate([part.ravel() for part in before])
    both = np.stack([node, to], axis=1)
    return TaskGraph(
        nodes=nodes,
        kind=kind.ravel(),
        op=task.ravel(),
        rank=np.where(message, -1, node[:, None]).ravel(),
        stream=np.where(message, -1, 0).ravel(),
        position=np.where(message, -1, np.arange(rounds)[:, None, None]).ravel(),
        src=np.where(message, both[:, :1], -1).ravel(),
        dst=np.where(message, both[:, 1:], -1).ravel(),
        size_bytes=np.where(message, size_bytes, 0).ravel(),
        dur_ns=np.where(message, 0, 1000 + 7 * node[:, None]).ravel(),
        group=np.where(message, task, -1).ravel(),
        step=np.where(message, 0, -1).ravel(),
        arcs=Arcs(
            before=flat,
            after=np.concatenate([part.ravel() for part in after]),
            distance=np.repeat([0, 0, 0, 1, 1], counts),
            origin=np.full(len(flat), 1),
        ),
    )


def ordered(graph: TaskGraph, fabric: Fabric) -> OrderedProgram:
    """Give message k to plane k mod planes, an entry each, in order of ids."""
    message = graph.messages
    plane = (message // graph.nodes // 2) % len(fabric.planes)
    order = np.argsort(plane, kind="stable")
    listed = message[order]
    return OrderedProgram(
        planes=len(fabric.planes),
        plane=plane[order],
        src_port=graph.src[listed],
        dst_port=graph.dst[listed],
        matching=np.arange(len(listed)),
        message_ptr=np.arange(len(listed) + 1),
        message=listed,
    )


def rotor(nodes: int, planes: int, slot_ns: int) -> TimedProgram:
    """Build the rotating shifts of a rotor network."""
    slots = tuple(
        Slot(k * slot_ns, tuple((port + 1 + k) % nodes for port in range(nodes)))
        for k in range(nodes - 1)
    )
    return TimedProgram(period_ns=(nodes - 1) * slot_ns, planes=(slots,) * planes)


def best_of(run: Callable[[], object], times: int = 3) -> float:
    """Return the shortest wall time of several, s."""
    spans = []
    for _ in range(times):
        begin = time.perf_counter()
        run()
        spans.append(time.perf_counter() - begin)
    return min(spans)


def heap_reference(events: int) -> None:
    """Push and pop events through heapq with 1,024 of them waiting."""
    queue = [(k, k) for k in range(1024)]
    for k in range(events):
        time_ns, _ = heapq.heappop(queue)
        heapq.heappush(queue, (time_ns + 1000 + k % 97, k))


def measure(label: str, run: Callable[..., object], case: tuple[object, ...], count: int) -> float:
    """Print a row without its ratio; returns the best wall time of a call, s."""
    iterations = ITERATIONS if label.startswith("ordered") else 1
    call = partial(run, *case, iterations=iterations)
    call()  # compiles
    span = best_of(call)
    print(f"{label:44}{count:10}{span:9.3f}{count / span:13.0f}", end="")
    return span


def main() -> None:
    """Print the table."""
    print(f"{'case':44}{'messages':>10}{'s':>9}{'messages/s':>13}{'/ heapq':>9}")
    ways = (("iteration_ends", iteration_ends), ("simulate", simulate))
    for nodes, rounds in ((8, 8000), (64, 1000), (1024, 100)):
        fabric = rails(nodes=nodes, planes=2, delay_ns=1000)
        graph = shifts(nodes, rounds, 100_000)
        program = ordered(graph, fabric)
        count = len(graph.messages) * ITERATIONS
        reference = best_of(partial(heap_reference, count), 1)
        for name, run in ways:
            case = (graph, fabric, program)
            span = measure(f"ordered, {nodes} nodes, {name}", run, case, count)
            print(f"{reference / span:9.2f}")
    fabric = rails(nodes=8, planes=2, delay_ns=1000)
    graph = shifts(8, 100, 1_000_000)
    graph.dur_ns[graph.kind == COMPUTE] = 2_000_000
    program = rotor(8, 2, 10_000)
    ends = iteration_ends(graph, fabric, program, iterations=1)
    for name, run in ways:
        label = f"rotor, 10 us slots, {ends[-1] / 1e6:.0f} ms, {name}"
        measure(label, run, (graph, fabric, program), len(graph.messages))
        print(f"{'-':>9}")


if __name__ == "__main__":
    main()
