"""What a few nodes' ports have to do, as the arrays that `_kernels_phases` works on.

What lies off the chosen nodes costs no port: it is contracted into the least times between their
messages. All of it counts from a *reference*: a task that comes before every message of the chosen
nodes in its iteration and after all of them in the one before, as an optimizer step does. Messages
that come after the next reference too (gradients that last into the next iteration) carry what they
hold up over to it.
"""

from __future__ import annotations

import math
from itertools import combinations
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from scheduler.least_times import TimedArcs, chains_of, least_lengths, order_of, side_of
from scheduler.model.taskgraph import csr

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from scheduler._kernels_phases import Labels
    from scheduler.model.taskgraph import Int64s, TaskGraph
    from topologies.fabric import Fabric

__all__ = ["LABELS", "Layout", "Machine"]

LABELS: Final = 6_000  # of a layer

_MOST_MESSAGES: Final = 600
_MOST_MACHINES: Final = 24
_MOST_WRAPS: Final = 15  # that a critical cycle can have for periods to be whole parts
_MOST_CARRIED: Final = 4  # starts held up by the iteration before; more are let go
_NUMBERS_PER_LABEL: Final = 700  # there is room for; where labels have more there are fewer


class Machine(NamedTuple):
    """A port of a chosen node: its output (`way` 0), or its input (1); with duplex planes both."""

    node: int
    plane: int
    port: int
    way: int = 0


class Layout:
    """The ports of `nodes` and the messages that use them, as arrays.

    `ways`: 0 are what the nodes send, 1 what they receive; duplex planes join the two, whatever it
    says. A message between two of the nodes uses a port of each, where both count. `labels` is the
    most of a layer.

    `covers` says whether there is anything to lay out: not where a plane switches packets, where
    there are too many ports or messages, or where no task parts one iteration from the next. Then
    all else is unset. `machines`, (k,), are the ports, each with `ways` halves; `kept`, (n,), the
    messages in an order dependencies allow. Of the entries of the state of `_kernels_phases` the
    first `halves` are halves of machines, the others the starts of messages `goals`. Times are in
    parts of 1/`scale` ns; `whole` if every period is a whole number of them. `later` are heads and
    tails over one more iteration, from which a period is to be taken off.
    """

    def __init__(
        self,
        graph: TaskGraph,
        fabric: Fabric,
        nodes: Sequence[int],
        change_ns: Sequence[int] | None = None,
        *,
        ways: Sequence[int] = (0,),
        labels: int = LABELS,
    ) -> None:
        self._graph, self._fabric = graph, fabric
        self._nodes = list(nodes)
        self._ways = list(ways)
        self._labels = labels
        self.machines = [
            Machine(node, k, port, way)
            for node in self._nodes
            for way in self._ways
            for k, plane in enumerate(fabric.planes)
            for port in range(plane.ports)
            if plane.node_of[port] == node
        ]
        delays = [p.delay_ns for p in fabric.planes] if change_ns is None else list(change_ns)
        self._change = np.array([delays[m.plane] for m in self.machines], np.int64)
        optical = all(plane.kind == "ocs" for plane in fabric.planes)
        self._duplex = all(plane.duplex for plane in fabric.planes)
        self.covers = optical and 0 < len(self.machines) <= _MOST_MACHINES and self._prepare()

    def _prepare(self) -> bool:
        """Find the reference and lay out messages and machines; False if there is none."""
        from scheduler import _kernels_paths as paths

        graph, fabric = self._graph, self._fabric
        sides = [side_of(fabric, node) for node in range(graph.nodes)]
        length = least_lengths(graph, fabric, sides, atomic=True)
        order = order_of(graph)
        arcs = TimedArcs(graph, length)
        arcs.add_windows(graph, order, sides)
        table = (order, arcs.pointer, arcs.before, arcs.length, arcs.distance)
        kept = self._own_messages(order)
        if not 1 < len(kept) <= _MOST_MESSAGES:
            return False
        within, around, to_within, to_around = (np.empty(graph.tasks, np.int64) for _ in range(4))
        best: tuple[tuple[int, int], NDArray[np.bool_], Int64s, Int64s, Int64s] | None = None
        for chain, at in chains_of(graph):
            if not set(at) & set(self._nodes):
                continue
            for reference, early in ((int(chain[0]), True), (int(chain[-1]), False)):
                paths.paths_from(*table, reference, within, around)
                paths.paths_to(*table, reference, to_within, to_around)
                head = within if early else around
                tail = to_around if early else to_within
                begins, ends = head[kept] >= 0, tail[kept] >= 0
                score = int(begins.sum()), int((begins & ends).sum())
                if best is None or score > best[0]:
                    next_head = around if early else np.full_like(around, paths.LONG_AGO)
                    best = score, begins, head.copy(), tail.copy(), next_head.copy()
        if best is None or best[0][1] <= 1:
            return False
        _, begun, head, tail, next_head = best
        kept = kept[begun]
        count = len(kept)
        path, carried = (np.full((count, count), paths.LONG_AGO, np.int64) for _ in range(2))
        second = np.full(count, paths.LONG_AGO, np.int64)
        for u, message in enumerate(kept.tolist()):
            paths.paths_from(*table, message, within, around)
            path[u] = np.where(within[kept] >= 0, within[kept] - length[message], path[u])
            carried[u] = np.where(around[kept] >= 0, around[kept] - length[message], carried[u])
            joined = (around >= 0) & (tail >= 0)
            if joined.any():
                second[u] = (around + tail)[joined].max() - length[message]
        # What the reference implies need not be carried.
        last = np.where(tail[kept] >= 0, tail[kept] - length[kept], paths.LONG_AGO)
        carried[carried <= last[:, None] + head[kept][None]] = paths.LONG_AGO
        stay = (last > paths.LONG_AGO) | (second > paths.LONG_AGO)
        kept, path, carried = kept[stay], path[np.ix_(stay, stay)], carried[np.ix_(stay, stay)]
        times = head[kept], next_head[kept], last[stay], second[stay]
        self._lay_out(kept, length[kept], path, carried, times)
        return len(kept) > 1

    def _own_messages(self, order: Int64s) -> Int64s:
        graph = self._graph
        position = np.empty(graph.tasks, np.int64)
        position[order] = np.arange(graph.tasks)
        messages = graph.messages
        own = np.zeros(len(messages), bool)
        if self._duplex or 0 in self._ways:
            own |= np.isin(graph.src[messages], self._nodes)
        if self._duplex or 1 in self._ways:
            own |= np.isin(graph.dst[messages], self._nodes)
        kept = messages[own]
        return kept[np.argsort(position[kept], kind="stable")]

    def _lay_out(
        self,
        kept: Int64s,
        length: Int64s,
        path: Int64s,
        carried: Int64s,
        times: tuple[Int64s, Int64s, Int64s, Int64s],
    ) -> None:
        """Lay out for the kernels.

        `times`: the head and tail of each message, and the same over one more iteration.
        """
        from scheduler import _kernels_paths as paths
        from scheduler import _kernels_phases as kernels

        machines, count = self.machines, len(kept)
        self.kept = kept
        keep = np.zeros((count, count), np.int64)
        paths.needed(path, length, keep)
        before, after = np.nonzero(keep)
        succ_ptr, by_before = csr(before, np.arange(len(before)), count)
        pred_ptr, by_after = csr(after, np.arange(len(after)), count)
        load = self._not_implied(path, length, carried).sum(axis=0)
        goals = np.sort(np.argsort(-load, kind="stable")[: min(_MOST_CARRIED, (load > 0).sum())])
        late, place = np.nonzero(carried[:, goals] > paths.LONG_AGO)
        carry_ptr, by_late = csr(late, np.arange(len(late)), count)
        names, peer, way, wire = self._touches(kept)
        place_ptr, places = self._places(wire, way)
        self._pair_up(wire, coupled=bool((places[:, 1] >= 0).any()))
        self.ways = 2 if self._duplex else 1
        self.halves = len(machines) * self.ways
        self.goals = goals
        self.state = self.halves + len(goals)
        self.scale = math.lcm(*range(1, min(self.state, _MOST_WRAPS) + 2))
        self.whole = self.state <= _MOST_WRAPS
        head, next_head, tail, next_tail = times
        self.later = self._scaled(next_head), self._scaled(next_tail)
        jobs = kernels.Jobs(
            peer=peer,
            way=way,
            wire_ns=wire,
            head_ns=head,
            tail_ns=tail,
            succ_ptr=succ_ptr,
            succ=after[by_before],
            succ_ns=path[before, after][by_before],
            carry_ptr=carry_ptr,
            carry=place[by_late],
            carry_ns=carried[late, goals[place]][by_late],
            pred_ptr=pred_ptr,
            pred=before[by_after],
            place_ptr=place_ptr,
            place=places,
            change_ns=self._change,
            group=np.array([2 * machine.node + machine.way for machine in machines], np.int64),
            unit=self.unit,
            twin=self.twin,
            **self._far(kept, names, (head, tail, next_head, next_tail, *wire), (path, carried)),
        )
        scaled = {
            name: self._scaled(column)
            for name, column in jobs._asdict().items()
            if name.endswith("_ns")
        }
        columns = {**jobs._asdict(), **scaled}
        self.jobs = kernels.Jobs(**{name: np.ascontiguousarray(c) for name, c in columns.items()})
        self.capacity = self._labels
        self.memory = kernels.make_memory(self.capacity + 1, len(names))
        self.trail = kernels.make_trail(self.capacity + 1, count)
        self.layers: dict[int, tuple[Labels, Labels]] = {}

    def _scaled(self, times_ns: Int64s) -> Int64s:
        """Turn ns into parts; what is never, or long ago, stays so."""
        from scheduler._kernels_paths import LONG_AGO
        from scheduler._kernels_phases import NEVER, PAST

        scaled = np.where(times_ns >= NEVER, NEVER, times_ns * self.scale)
        parts: Int64s = np.where(times_ns <= PAST, LONG_AGO, scaled)
        return parts

    def _touches(self, kept: Int64s) -> tuple[Int64s, Int64s, Int64s, Int64s]:
        """Return the peers, and for each machine what `Jobs` says of each message.

        That is `peer`, `way` and `wire_ns`, all (machines, messages).
        """
        from scheduler import _kernels_phases as kernels

        graph, planes = self._graph, self._fabric.planes
        src, dst = graph.src[kept], graph.dst[kept]
        peer, way = (np.zeros((len(self.machines), len(kept)), np.int64) for _ in range(2))
        wire = np.full(peer.shape, kernels.NEVER, np.int64)
        for i, machine in enumerate(self.machines):
            plane = planes[machine.plane]
            for side, own, far in ((0, src, dst), (1, dst, src)):
                if not self._duplex and side != machine.way:
                    continue
                mine = (own == machine.node) & np.isin(far, plane.node_of)
                peer[i, mine], way[i, mine] = far[mine], side if self._duplex else 0
                for m in np.flatnonzero(mine).tolist():
                    wire[i, m] = plane.transfer_ns(int(graph.size_bytes[kept[m]]))
        peers, numbers = np.unique(peer, return_inverse=True)
        return peers, numbers.reshape(peer.shape).astype(np.int64), way, wire

    def _places(self, wire: Int64s, way: Int64s) -> tuple[Int64s, Int64s]:
        """List the machines, or pairs of one of each end, that can carry each message."""
        from scheduler._kernels_phases import NEVER

        rows, pointer = list[tuple[int, int]](), [0]
        for m in range(wire.shape[1]):
            own = np.flatnonzero(wire[:, m] < NEVER).tolist()
            ends = [2 * self.machines[i].node + (way[i, m] or self.machines[i].way) for i in own]
            ones = [i for i, end in zip(own, ends, strict=True) if end == min(ends)]
            others = [i for i, end in zip(own, ends, strict=True) if end != min(ends)]
            for i in ones:
                plane = self.machines[i].plane
                pairs = [(i, j) for j in others if self.machines[j].plane == plane]
                rows += pairs if others else [(i, -1)]
            pointer.append(len(rows))
        return np.array(pointer, np.int64), np.array(rows, np.int64).reshape(-1, 2)

    def _pair_up(self, wire: Int64s, *, coupled: bool) -> None:
        """Find machines that can change roles: each alone, or if `coupled` all of a plane."""
        machines = self.machines
        count = len(machines)
        unit = np.array([m.plane for m in machines]) if coupled else np.arange(count)
        self.unit, self.twin = unit.astype(np.int64), np.full(count, -1, np.int64)
        for one in np.unique(unit).tolist():
            own = np.flatnonzero(unit == one).tolist()
            for other in range(one):
                twins = np.flatnonzero(unit == other).tolist()
                alike = len(own) == len(twins) and all(
                    machines[i].node == machines[j].node
                    and machines[i].way == machines[j].way
                    and self._change[i] == self._change[j]
                    and np.array_equal(wire[i], wire[j])
                    for i, j in zip(own, twins, strict=True)
                )
                if alike:
                    self.twin[own] = twins

    def _far(
        self, kept: Int64s, names: Int64s, each: Sequence[Int64s], pairs: Sequence[Int64s]
    ) -> dict[str, Int64s]:
        """Return what `Jobs` says of the nodes at the other ends, as its columns.

        Two of them are alike if exchanging their messages, first with first and so on, changes
        nothing in any of `each` (n,) and `pairs` (n, n), and none is a goal.
        """
        src, dst = self._graph.src[kept], self._graph.dst[kept]
        inside = np.isin(src, self._nodes)
        end = np.where(inside, dst, src)
        end[inside & np.isin(dst, self._nodes)] = -1
        nodes = np.unique(end[end >= 0])
        far = np.where(end >= 0, np.searchsorted(nodes, end), -1)
        lists = [np.flatnonzero(far == f) for f in range(len(nodes))]
        turn = np.zeros(len(kept), np.int64)
        for own in lists:
            turn[own] = np.arange(len(own))
        alike = np.zeros((len(nodes), len(nodes)), np.int64)
        for f, g in combinations(range(len(nodes)), 2):
            one, other = lists[f], lists[g]
            if len(one) != len(other) or np.isin(self.goals, np.concatenate([one, other])).any():
                continue
            swap = np.arange(len(kept))
            swap[one], swap[other] = other, one
            same = np.array_equal(inside[swap], inside)
            same = same and all(np.array_equal(column[swap], column) for column in each)
            same = same and all(np.array_equal(p[np.ix_(swap, swap)], p) for p in pairs)
            alike[f, g] = alike[g, f] = same
        pointer = np.cumsum([0, *map(len, lists)])
        own = np.concatenate([*lists, np.zeros(0, np.int64)])
        columns = {"far": far, "turn": turn, "own_ptr": pointer, "own": own, "alike": alike}
        columns["number"] = np.searchsorted(names, nodes)
        return {name: column.astype(np.int64) for name, column in columns.items()}

    def slots(self) -> list[list[list[int]]]:
        """Return units of machines that can change roles, by what they are like."""
        alike: dict[int, list[list[int]]] = {}
        root: dict[int, int] = {}
        for one in np.unique(self.unit).tolist():
            own = np.flatnonzero(self.unit == one).tolist()
            twin = int(self.twin[own[0]])
            root[one] = one if twin < 0 else root[int(self.unit[twin])]
            alike.setdefault(root[one], []).append(own)
        return list(alike.values())

    def layer(self, columns: int) -> tuple[Labels, Labels]:
        """Return memory for two layers of labels with so many columns."""
        from scheduler._kernels_phases import make_labels

        if columns not in self.layers:
            sizes = len(self.kept), len(self.machines), self.state, columns
            numbers = columns * (len(self.kept) + self.state)
            room = min(self.capacity, max(self.capacity * _NUMBERS_PER_LABEL // numbers, 64)) + 1
            self.layers[columns] = make_labels(room, *sizes), make_labels(room, *sizes)
        return self.layers[columns]

    @staticmethod
    def _not_implied(path: Int64s, least_ns: Int64s, carried: Int64s) -> NDArray[np.bool_]:
        """Mark the carried arcs that none to an earlier message of the next iteration implies."""
        needed: NDArray[np.bool_] = carried > -(1 << 57)
        for v in range(len(path)):
            for w in np.flatnonzero(path[:, v] >= 0).tolist():
                needed[:, v] &= carried[:, w] + least_ns[w] + path[w, v] < carried[:, v]
        return needed
