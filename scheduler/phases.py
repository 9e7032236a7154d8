"""The best order of a few nodes' messages, ports of all other nodes left out: a bound, and a plan.

Let a program repeat every T, a reference task at time 0 (`phase_layout`). What the ports of the
chosen nodes do from there on is a sequence for each, so a dynamic program can try them all: what is
placed so far, the circuit of each port and when it is free, and when each message left can start
(`_kernels_phases`). Everything else is relaxed to its least times. Two deadlines cut the search:
each message must leave the time that the rest of the iteration takes, and each port must be back at
the circuit it began with, T later than it began.

How a port begins is not known. The first pass lets it begin with any circuit, long free. Its end
says how it can begin at the earliest, T before; the next passes begin there. The last passes keep
beside each time what it depends on of the beginning, a max-plus matrix: it can repeat every T iff
no cycle of the matrix is above T (Baccelli et al., Synchronization and Linearity, 1992). Dynamic
programs over sets of jobs go back to Held and Karp (J. SIAM 10, 1962). If no label is left, every
program takes longer than T.

Where the chosen nodes stand for all others (SPMD ranks, one of each stage) nothing is relaxed that
matters, and the order found is one for all: `scheduler.policies.lifting`. Exponential in the number
of messages that can be in flight at once, linear in the number of phases.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from scheduler.phase_layout import LABELS, Layout, Machine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from scheduler.model.taskgraph import Int64s, TaskGraph
    from topologies.fabric import Fabric

__all__ = ["Answer", "PhaseProgram", "Placed", "Shortest"]

_PASSES: Final = 4  # before the exact ones,
_EXACT_PASSES: Final = 12  # of which there are seldom more than two
_MOST_COMPARED: Final = 200  # beginnings, with each other


class Placed(NamedTuple):
    """One message of the order found: on which machine and when, from the reference."""

    message: int
    machine: Machine
    start_ns: int


class Answer(NamedTuple):
    """Whether a period is possible for the ports looked at: None where that took too long.

    If not, every period is at least `least_ns`; if it is possible, `order` keeps it.
    """

    fits: bool | None
    least_ns: Fraction
    order: list[Placed]


class Shortest(NamedTuple):
    """Every period is at least `least_ns`; `order` keeps `fits_ns` (None: nothing was found).

    `spent` are the steps of work it took.
    """

    least_ns: Fraction
    fits_ns: int | None
    order: list[Placed]
    spent: int


class PhaseProgram:
    """What periods the ports of `nodes` can keep.

    `ways` are what counts of their ports: 0 what they send, 1 what they receive (duplex: always
    both). `change_ns` is the least time from a port's last bit to its next light, by plane; by
    default tau. It gives up after `work` steps (some nanoseconds each), counted, so that it always
    answers the same; `labels` bounds the memory. Where it does not cover the workload (see
    `Layout`) it must not be asked.
    """

    def __init__(
        self,
        graph: TaskGraph,
        fabric: Fabric,
        nodes: Sequence[int],
        *,
        change_ns: Sequence[int] | None = None,
        ways: Sequence[int] = (0,),
        work: int = 5_000_000,
        labels: int = LABELS,
    ) -> None:
        self._layout = Layout(graph, fabric, nodes, change_ns, ways=ways, labels=labels)
        self.covers = self._layout.covers
        self._work = work

    def fits(self, period_ns: int, *, tighter: int = 0) -> Answer:
        """Say whether the ports looked at can keep `period_ns`, less `tighter` parts of a ns.

        A part is 1/`scale` ns. A period is the mean over a cycle that wraps at most once for each
        entry of the state, and once more: so it is a whole number of parts, and one that does not
        fit with `tighter=1` proves that no program is faster than `period_ns`.
        """
        return _Try(self._layout, period_ns * self._layout.scale - tighter, self._work).run()

    def shortest(self, least_ns: float, most_ns: int, *, work: int | None = None) -> Shortest:
        """Find the shortest period in whole ns between two that bound it, within `work` steps."""
        work = self._work if work is None else work
        left = work
        low, high = math.ceil(least_ns), most_ns - 1
        proven, found, order = Fraction(least_ns), None, list[Placed]()
        tries = [(most_ns, 1)]  # first of all: is the period that is known the shortest?
        while left > 0 and tries:
            target, tighter = tries.pop()
            attempt = _Try(self._layout, target * self._layout.scale - tighter, left)
            answer = attempt.run()
            left -= attempt.spent
            if answer.fits is None:
                break
            if answer.fits:
                found, order = target, answer.order
                high = target - 1
            else:
                proven = max(proven, answer.least_ns)
                low = max(target + 1, math.ceil(proven))
            if low <= high:
                tries = [((low + high) // 2, 0)]
            elif found is not None and proven < found and not tighter:
                tries = [(found, 1)]  # the last fraction of a nanosecond
        return Shortest(proven, found, order, work - left)


class _Try:
    """One answer to whether `deadline`, in parts of a nanosecond, can be kept."""

    def __init__(self, layout: Layout, deadline: int, work: int) -> None:
        from scheduler import _kernels_phases as kernels

        self._layout, self._deadline = layout, deadline
        self._result = np.zeros(kernels.RESULTS, np.int64)
        self._result[kernels.MOST_WORK] = work
        self._least = Fraction(kernels.NEVER)
        jobs, (next_head, next_tail) = layout.jobs, layout.later
        self.jobs = jobs._replace(
            head_ns=np.maximum(jobs.head_ns, next_head - deadline),
            tail_ns=np.maximum(jobs.tail_ns, next_tail - deadline),
        )

    @property
    def spent(self) -> int:
        """Steps of work done."""
        return int(self._result[3])

    def run(self) -> Answer:
        """Pass after pass, for every set of circuits that an iteration can begin and end with."""
        from scheduler._kernels_paths import LONG_AGO
        from scheduler._kernels_phases import UNUSED

        machines, state = len(self._layout.machines), self._layout.state
        anywhere = np.full(machines, UNUSED, np.int64)
        ends = self._pass(anywhere, np.full((1, state), LONG_AGO), wraps=0)
        for home, states in self._homes(*ends).items():
            if self._gave_up():
                break
            if (at := self._repeats(np.array(home), states)) is not None:
                return self._answer(fits=True, order=self._order(at))
        return self._answer(fits=False)

    def _repeats(self, home: Int64s, states: Int64s) -> int | None:
        """Return the label of an order that repeats with the circuits `home`, None without one.

        A beginning only grows from pass to pass, and is never later than that of any order that
        repeats. Passes end when one is its own end.
        """
        wraps = 1
        for _ in range(_PASSES):
            begin = self._useful(self._earlier(states))
            circuit, matrix = self._pass(home, begin, wraps, cyclic=True)
            wraps += 1
            states = matrix[(circuit == home).all(axis=1), 0]
            if len(states) == 0 or self._gave_up():
                return None
        begin = self._useful(self._earlier(states))
        for _ in range(_EXACT_PASSES):
            circuit, matrix = self._pass(home, begin, wraps, cyclic=True, exact=True)
            wraps += self._layout.state + 1
            closed: list[Int64s] = []
            for at in np.flatnonzero((circuit == home).all(axis=1)).tolist():
                end = self._closed(matrix[at])
                if end is None:
                    self._least = min(self._least, Fraction(self._deadline + 1))
                elif (begin == end).all(axis=1).any():
                    return int(at)
                else:
                    closed.append(end)
            if not closed or self._gave_up():
                return None
            begin = self._useful(np.array(closed))
        return int(at)  # not settled: nothing is claimed

    def _gave_up(self) -> bool:
        return bool(self._result[2])

    def _answer(self, *, fits: bool, order: list[Placed] | None = None) -> Answer:
        layout = self._layout
        gave_up = self._gave_up() and not fits
        least = max(self._least, Fraction(self._deadline))
        if layout.whole:
            least = Fraction(max(math.ceil(self._least), self._deadline + 1))
        return Answer(None if gave_up else fits, least / layout.scale, order or [])

    def _pass(
        self,
        home: Int64s,
        begin: Int64s,
        wraps: int,
        *,
        cyclic: bool = False,
        exact: bool = False,
    ) -> tuple[Int64s, Int64s]:
        """Return circuits (n, k) and states (n, columns, s) at the end of an iteration.

        `wraps`: how many deadlines `begin` has been moved back by at most.
        """
        from scheduler import _kernels_phases as kernels
        from scheduler._kernels_paths import LONG_AGO

        layout, jobs, result = self._layout, self.jobs, self._result
        count = len(begin)
        labels, spare = layout.layer(1 + layout.state if exact else 1)
        if count >= len(labels.placed):
            result[kernels.GIVEN_UP] = 1
            count = len(labels.placed) - 1
        labels.placed[:count] = 0
        labels.circuit[:count] = home
        labels.state_ns[:count] = LONG_AGO
        labels.ready_ns[:count] = LONG_AGO
        halves = layout.halves
        labels.state_ns[:count, 0, :halves] = begin[:count, :halves]
        ready = np.repeat(jobs.head_ns[None], count, axis=0)
        goals = layout.goals
        ready[:, goals] = np.maximum(ready[:, goals], begin[:count, halves:])
        labels.ready_ns[:count, 0] = ready
        if exact:
            for half in range(halves):
                labels.state_ns[:count, 1 + half, half] = 0
            for place, goal in enumerate(goals.tolist()):
                labels.ready_ns[:count, 1 + halves + place, goal] = 0
        result[kernels.LATE] = result[kernels.CYCLE] = kernels.NEVER
        period = kernels.Period(self._deadline, home, cyclic, self._latest(home))
        count = kernels.place_all(
            jobs, labels, spare, count, layout.ways, period, layout.memory, layout.trail,
            result,
        )  # fmt: skip
        if result[kernels.LATE] < kernels.NEVER:
            # A later deadline lets what is counted back from be earlier, by as much for each wrap.
            wraps += 2  # heads and tails over one more iteration
            late = Fraction(int(result[kernels.LATE]) + wraps * self._deadline, wraps + 1)
            self._least = min(self._least, late)
        if result[kernels.CYCLE] < kernels.NEVER:
            self._least = min(self._least, Fraction(int(result[kernels.CYCLE])))
        last = labels if len(jobs.head_ns) % 2 == 0 else spare
        return last.circuit[:count].copy(), last.state_ns[:count].copy()

    def _latest(self, home: Int64s) -> Int64s:
        """When each entry of the state can be at the latest: the end comes `deadline` after it."""
        from scheduler._kernels_paths import LONG_AGO
        from scheduler._kernels_phases import NEVER

        layout, jobs = self._layout, self.jobs
        latest = np.full(layout.state, LONG_AGO, np.int64)
        for k, circuit in enumerate(home.tolist()):
            last = (jobs.peer[k] == circuit) & (jobs.wire_ns[k] < NEVER)
            if last.any():
                half = k * layout.ways
                latest[half : half + layout.ways] = -jobs.tail_ns[last].min()
        for m in range(len(jobs.head_ns)):
            for i in range(jobs.carry_ptr[m], jobs.carry_ptr[m + 1]):
                place = layout.halves + jobs.carry[i]
                latest[place] = max(latest[place], jobs.carry_ns[i] - jobs.tail_ns[m])
        return latest

    def _earlier(self, states: Int64s) -> Int64s:
        """Turn ends into beginnings, `deadline` earlier, and no earlier than makes a difference."""
        from scheduler._kernels_paths import LONG_AGO
        from scheduler._kernels_phases import PAST

        layout, halves = self._layout, self._layout.halves
        begin = np.where(states <= PAST, LONG_AGO, states - self._deadline)
        idle = int(self.jobs.head_ns.min()) - np.repeat(self.jobs.change_ns, layout.ways)
        begin[..., :halves] = np.maximum(begin[..., :halves], idle)
        return begin

    @staticmethod
    def _useful(begin: Int64s) -> Int64s:
        """Leave out beginnings that are nowhere earlier than another."""
        begin = np.unique(begin, axis=0)
        if len(begin) > _MOST_COMPARED:
            return begin
        better: NDArray[np.bool_] = np.asarray((begin[:, None] <= begin[None]).all(axis=2))
        np.fill_diagonal(better, val=False)
        kept: Int64s = begin[~better.any(axis=0)]
        return kept

    def _homes(self, circuit: Int64s, states: Int64s) -> dict[tuple[int, ...], Int64s]:
        """Group ends by circuits; machines that are alike are put in order, their states too."""
        layout, ways = self._layout, self._layout.ways
        found: dict[tuple[int, ...], list[Int64s]] = {}
        slots = layout.slots()
        for row, state in zip(circuit, states[:, 0], strict=True):
            home, moved = row.copy(), state.copy()
            for units in slots:
                order = sorted(units, key=lambda unit: tuple(row[unit].tolist()))
                for slot, machine in zip(chain(*units), chain(*order), strict=True):
                    home[slot] = row[machine]
                    for way in range(ways):
                        moved[slot * ways + way] = state[machine * ways + way]
            found.setdefault(tuple(home.tolist()), []).append(moved)
        return {home: np.array(rows) for home, rows in found.items()}

    def _closed(self, matrix: Int64s) -> Int64s | None:
        """Return the earliest beginning that a label's end comes back to; None if a cycle grows."""
        from scheduler._kernels_paths import LONG_AGO
        from scheduler._kernels_phases import PAST

        begin = self._earlier(matrix[0])
        step = np.where(matrix[1:] <= PAST, LONG_AGO, matrix[1:] - self._deadline)
        for _ in range(len(begin) + 1):
            later = np.maximum(begin, (step + begin[:, None]).max(axis=0))
            if np.array_equal(later, begin):
                return begin
            begin = later
        return None

    def _order(self, at: int) -> list[Placed]:
        """Follow a label back through the layers."""
        layout = self._layout
        trail, order = layout.trail, list[Placed]()
        for depth in range(len(layout.kept), 0, -1):
            message = int(layout.kept[trail.message[depth, at]])
            machine = layout.machines[trail.machine[depth, at]]
            start_ns = int(trail.start_ns[depth, at]) // layout.scale
            order.append(Placed(message, machine, start_ns))
            at = int(trail.parent[depth, at])
        return order[::-1]
