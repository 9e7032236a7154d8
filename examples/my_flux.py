"""A scheduler of one's own: the message that is ready first, on the plane that is free first.

    fluxbed simulate TRACE -t rails,planes=2,delay=10us -s examples/my_flux.py:MyFlux -s flux

Write `examples/my_flux.py:MyFlux,reuse_bonus=20us` to give its parameter a value.
"""

from __future__ import annotations

from collections import defaultdict
from heapq import heappop, heappush

import fluxbed


class MyFlux(fluxbed.Planner):
    """A list scheduler that likes circuits that stand already."""

    name = "my-flux"

    def __init__(self, reuse_bonus_ns: int = 0) -> None:
        """`reuse_bonus_ns`: how much later a standing circuit may be free and still be chosen."""
        self.reuse_bonus_ns = reuse_bonus_ns

    def plan(self, problem: fluxbed.Problem) -> fluxbed.OrderedProgram:
        """Play one iteration on paper; the order in which ports are used is the program."""
        graph, planes = problem.graph, problem.fabric.planes
        after, waits = defaultdict(list), [0] * graph.tasks
        for before, task, distance in zip(
            graph.arcs.before.tolist(),
            graph.arcs.after.tolist(),
            graph.arcs.distance.tolist(),
            strict=True,
        ):
            if distance == 0:  # within the iteration
                after[before].append(task)
                waits[task] += 1
        free_ns = defaultdict(int)  # of (plane, "out" or "in", port)
        stands = {}  # what a port is connected to
        entries = [[] for _ in planes]
        ready_ns = [0] * graph.tasks
        todo = [(0, task) for task in range(graph.tasks) if waits[task] == 0]
        messages = set(graph.messages.tolist())
        while todo:
            now_ns, task = heappop(todo)
            end_ns = now_ns + int(graph.dur_ns[task])
            if task in messages:
                source, target = int(graph.src[task]), int(graph.dst[task])
                choices = []
                for k, plane in enumerate(planes):
                    out = (k, "out", problem.fabric.ports_of(k, source)[0])
                    into = (k, "in", problem.fabric.ports_of(k, target)[0])
                    same = stands.get(out) == into and stands.get(into) == out
                    pause_ns = 0 if same else plane.delay_ns
                    start_ns = max(now_ns, max(free_ns[out], free_ns[into]) + pause_ns)
                    choices.append((start_ns - same * self.reuse_bonus_ns, start_ns, out, into))
                _, start_ns, out, into = min(choices)
                k = out[0]
                end_ns = start_ns + planes[k].transfer_ns(int(graph.size_bytes[task]))
                free_ns[out] = free_ns[into] = end_ns
                stands[out], stands[into] = into, out
                entries[k].append(fluxbed.Entry(out[2], into[2], (task,)))
            for successor in after[task]:
                ready_ns[successor] = max(ready_ns[successor], end_ns)
                waits[successor] -= 1
                if waits[successor] == 0:
                    heappush(todo, (ready_ns[successor], successor))
        return fluxbed.OrderedProgram.from_entries(entries)
