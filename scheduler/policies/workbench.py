"""What planners of ordered programs build on: evaluate ways to order messages, keep the best."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from scheduler.policies.assignment import assign
from scheduler.policies.ordered import program_of
from topologies.errors import UsageError

if TYPE_CHECKING:
    from scheduler.model.problem import Problem
    from scheduler.model.program import OrderedProgram
    from scheduler.model.taskgraph import Int64s
    from scheduler.policies._kernels_flux import Wish

__all__ = ["ALL", "ITERATIONS", "Candidate", "Rules", "Workbench"]

ITERATIONS: Final = 10  # of a candidate, at most: most need three or four to settle
_SIMULATED: Final = 16  # candidates compared as they are executed, where the decoder estimates,
_SIMULATED_TASKS: Final = 60_000  # as long as they have no more tasks than this together
_EXECUTED: Final = 24  # iterations of those compared; the second half is their steady state


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What Flux may count on, and whether it searches: each can be left out to see its worth.

    `reuse`: circuits that stand cost nothing. `early`: circuits are requested before their messages
    are ready. `planes`: the plane of each message is searched for. `search`: first programs are
    improved. `cyclic`: the steady state counts, not the time of one iteration alone.
    """

    reuse: bool = True
    early: bool = True
    planes: bool = True
    search: bool = True
    cyclic: bool = True


ALL: Final = Rules()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to build a program, and the time an iteration of it takes in the long run.

    Where steady iterations do not count it is the time of one alone.
    """

    value_ns: float
    wish: Wish


class Workbench:
    """The arrays of a problem, and what has been found so far.

    Raises `UsageError` where a message has no way or the tasks wait for each other in a circle.
    """

    def __init__(self, problem: Problem, rules: Rules = ALL) -> None:
        from scheduler.policies import _kernels_flux as kernels
        from scheduler.policies.lowering import lower

        self.problem = problem
        self.instance = lower(problem, reuse=rules.reuse, early=rules.early)
        tasks, planes = problem.graph.tasks, len(problem.fabric.planes)
        self.messages = problem.graph.messages
        self.schedule = kernels.make_schedule(tasks, planes)
        self.ports = kernels.make_ports(int(self.instance.port_base[-1]), planes)
        self.scratch = kernels.make_scratch(tasks)
        self.ends_ns = np.zeros(ITERATIONS if rules.cyclic else 1, np.int64)
        self.found: list[Candidate] = []
        self.add(self.wish(), lazy=True)

    def wish(self, *, plane: Int64s | None = None, key: Int64s | None = None) -> Wish:
        """Make a wish that leaves open what is not given, or not possible."""
        from scheduler.policies._kernels_flux import ANY, NEVER, Wish

        tasks = self.problem.graph.tasks
        columns = [np.full(tasks, ANY, np.int64) for _ in range(3)]
        if plane is not None:
            columns[0][:] = plane
            wires_ns = self.instance.wire_ns[columns[0][self.messages], self.messages]
            columns[0][self.messages[wires_ns == NEVER]] = ANY
        return Wish._make([*columns, np.zeros(tasks, np.int64) if key is None else key.copy()])

    def add(self, wish: Wish, bias_ns: int = 0, *, lazy: bool = False) -> None:
        """Build one program and note it as a candidate, which asks for exactly what was built.

        `lazy` takes the message that can start first, else the one with the least key.
        """
        from scheduler.policies._kernels_flux import written_down

        value_ns = self._build(wish, bias_ns, lazy=lazy)
        self.found.append(Candidate(value_ns, written_down(self.schedule)))

    def _build(
        self, wish: Wish, bias_ns: int = 0, *, lazy: bool = False, once: bool = False
    ) -> float:
        """Fill `schedule` and return the time of its steady iterations, or of the first, `once`."""
        from scheduler.policies import _kernels_flux as kernels

        value_ns: float = kernels.evaluate(
            self.instance,
            self.schedule,
            self.ports,
            self.scratch,
            wish,
            bias_ns,
            lazy,
            self.ends_ns[:1] if once else self.ends_ns,
        )
        if value_ns == kernels.NEVER:
            why = "each of them waits for another"
            raise UsageError("the tasks form a circle", "workload", why, "correct the dependencies")
        return value_ns

    @property
    def ranked(self) -> list[Candidate]:
        """What has been found, best first; of equal ones the first found."""
        return sorted(self.found, key=lambda candidate: candidate.value_ns)

    @cached_property
    def head_and_tail(self) -> tuple[Int64s, Int64s]:
        """The longest path to each task's start and from it, ports not counted, ns, (tasks,)."""
        from scheduler.policies._kernels_flux_search import head_and_tail

        head, tail = (np.zeros(self.problem.graph.tasks, np.int64) for _ in range(2))
        head_and_tail(self.instance, self.schedule, head, tail)
        return head, tail

    @cached_property
    def depth(self) -> Int64s:
        """The number of tasks on the longest path to each task, (tasks,)."""
        from scheduler.policies._kernels_flux_search import depths

        depth = np.zeros(self.problem.graph.tasks, np.int64)
        depths(self.instance, self.schedule, depth)
        return depth

    def standing(self) -> tuple[list[Wish], tuple[int, int] | None]:
        """Return ways to send everything over circuits that never change, and a pair without one.

        A pair that the optical ports do not suffice for rides a packet plane that joins it. Where
        there is none, no way is returned and the pair is named. A pair with several circuits sends
        over the first, or over all of them in turn.
        """
        from scheduler.policies._kernels_flux import NEVER, PACKET

        graph, base = self.problem.graph, self.instance.port_base
        circuits = assign(graph, self.problem.fabric)
        head, tail = self.head_and_tail
        packet = np.flatnonzero(self.instance.mode == PACKET)
        one, spread = self.wish(key=head), self.wish(key=head)
        used: dict[tuple[int, int], int] = {}
        for message in self.messages[np.argsort(head[self.messages], kind="stable")].tolist():
            pair = int(graph.src[message]), int(graph.dst[message])
            if not (own := circuits.get(pair)):
                joins = packet[self.instance.wire_ns[packet, message] < NEVER]
                if len(joins) == 0:
                    return [], pair
                one.plane[message] = spread.plane[message] = joins[0]
                continue
            turn = used[pair] = used.get(pair, -1) + 1
            for wish, (plane, a, b) in ((one, own[0]), (spread, own[turn % len(own)])):
                wish.plane[message] = plane
                wish.out_port[message], wish.in_port[message] = base[plane] + a, base[plane] + b
        ways = [one] if max(map(len, circuits.values()), default=1) == 1 else [one, spread]
        return [w._replace(key=key) for w in ways for key in (head, -tail)], None

    def best(self) -> OrderedProgram:
        """Return the best program found.

        The decoder knows how it will be executed, but for packet planes, where it only estimates
        and the best few are simulated. Over few iterations a program can seem faster than it is: a
        port that falls behind holds the others up only when it has used up what it was ahead.
        """
        problem = self.problem
        exact = all(plane.kind == "ocs" for plane in problem.fabric.planes)
        few = 1 if exact else min(_SIMULATED, _SIMULATED_TASKS // max(problem.graph.tasks, 1))
        best: tuple[float, OrderedProgram] | None = None
        for candidate in self.ranked[: max(few, 1)]:
            self._build(candidate.wish, once=True)
            program = program_of(problem.fabric, self.instance, self.schedule, self.messages)
            value_ns = self._simulated_ns(program) if few > 1 else candidate.value_ns
            if best is None or value_ns < best[0]:
                best = (value_ns, program)
        assert best is not None
        return best[1]

    def _simulated_ns(self, program: OrderedProgram) -> float:
        """Return the time an iteration takes once the program is in its stride."""
        from scheduler.dispatch.simulator import iteration_ends

        problem = self.problem
        ends_ns = iteration_ends(
            problem.graph,
            problem.fabric,
            program,
            iterations=_EXECUTED,
            lookahead_ns=problem.lookahead_ns,
        )
        half = _EXECUTED // 2
        return float(ends_ns[-1] - ends_ns[half - 1]) / (_EXECUTED - half)
