"""Spectra: a traffic matrix over parallel switches, as few permutations as there are, balanced.

arXiv 2603.07373, from its abstract; details are ours. (1) Decompose the matrix into as few weighted
permutations as its fullest line has entries; (2) give them, longest first, to the least loaded
switch, each costing its weight and the delay; (3) while two switches' loads differ by more than the
delay, move half the difference of a permutation from the fullest to the emptiest. Every switch is
changed as a whole.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

import numpy as np

from scheduler.policies.base import Planner
from scheduler.policies.coflows import PacketPlanes, Sequence, flows, phases, switches
from scheduler.policies.cycles import slot_length, weighted_slots
from scheduler.policies.decomposition import Turn, among, cover, cover_both_ways, demand
from scheduler.policies.matchings import alike

if TYPE_CHECKING:
    from scheduler.model.problem import Problem
    from scheduler.model.program import OrderedProgram, TimedProgram
    from scheduler.model.taskgraph import Int64s, TaskGraph
    from scheduler.policies.coflows import Pair, Switch

__all__ = ["Spectra", "SpectraAggregate", "balance"]

_MOVES: Final = 8  # at most, per switch


class Share(NamedTuple):
    """A permutation on a switch and how long it is lit there, ns."""

    permutation: tuple[int, ...]
    lit_ns: float


def balance(shares: list[Share], delays_ns: list[int]) -> list[list[Share]]:
    """Give permutations to parallel switches: each switch's, longest first."""
    placed: list[list[Share]] = [[] for _ in delays_ns]
    load = [0.0] * len(delays_ns)
    for share in sorted(shares, key=lambda share: -share.lit_ns):
        k = load.index(min(load))
        placed[k].append(share)
        load[k] += delays_ns[k] + share.lit_ns
    for _ in range(_MOVES * len(load)):
        full, empty = load.index(max(load)), load.index(min(load))
        move_ns = (load[full] - load[empty] - delays_ns[empty]) / 2
        if move_ns <= 0:
            break
        longest = max(placed[full], key=lambda share: share.lit_ns)
        if longest.lit_ns <= move_ns:
            break
        placed[full].remove(longest)
        placed[full].append(longest._replace(lit_ns=longest.lit_ns - move_ns))
        placed[empty].append(longest._replace(lit_ns=move_ns))
        load[full] -= move_ns
        load[empty] += delays_ns[empty] + move_ns
    return [sorted(row, key=lambda share: -share.lit_ns) for row in placed]


def _covered(matrix: Int64s, *, duplex: bool) -> list[Turn]:
    if not matrix.any():
        return []
    return cover_both_ways(np.maximum(matrix, matrix.T)) if duplex else cover(matrix)


class Spectra(Planner):
    """Spectra per phase: few permutations over parallel switches, longest first, balanced.

    The workload's phases are scheduled one by one, each as if it began on idle switches. The
    program is ordered: when a phase begins is known only when it does. Of a permutation that two
    switches share, messages stay whole and fill the shares as they fit. Planes that are not
    all-stop change port by port, which is never later than Spectra's change of the whole.
    """

    name: ClassVar[str] = "spectra"

    def plan(self, problem: Problem) -> OrderedProgram:
        """Schedule every phase; raises `UsageError` where a message has no way."""
        graph, fabric = problem.graph, problem.fabric
        sequence, optical = Sequence(fabric), switches(fabric)
        electric = PacketPlanes(fabric)
        for messages in phases(graph):
            sequence.next_phase()
            found = flows(graph, messages)
            together: defaultdict[tuple[int, ...], list[Pair]] = defaultdict(list)
            for pair in found:
                ways = tuple(k for k, switch in enumerate(optical) if switch.joins(pair))
                if ways:
                    together[ways].append(pair)
                else:
                    sequence.add(*electric.route(pair, self.name), found[pair])
            for ways, pairs in together.items():
                chosen = [optical[k] for k in ways]
                _schedule(graph, sequence, chosen, {pair: found[pair] for pair in pairs})
        return sequence.program()


def _schedule(
    graph: TaskGraph, sequence: Sequence, optical: list[Switch], found: dict[Pair, list[int]]
) -> None:
    """Append one phase's flows among nodes that all these switches join."""
    matrix = np.zeros((graph.nodes, graph.nodes), np.int64)
    for pair, listed in found.items():
        matrix[pair] = graph.size_bytes[listed].sum()
    duplex = any(switch.duplex for switch in optical)
    ns_per_byte = 8e9 / max(switch.rate_bps for switch in optical)
    shares = [
        Share(turn.permutation, turn.weight * ns_per_byte)
        for turn in _covered(matrix, duplex=duplex)
    ]
    placed = balance(shares, [switch.delay_ns for switch in optical])
    room: defaultdict[Pair, dict[tuple[int, int], float]] = defaultdict(dict)
    for k, row in enumerate(placed):
        for at, share in enumerate(row):
            for src, dst in enumerate(share.permutation):
                if dst >= 0:
                    room[src, dst][k, at] = share.lit_ns
    carried: defaultdict[tuple[int, int, Pair], list[int]] = defaultdict(list)
    for pair, listed in found.items():
        for message in listed:
            best = max(room[pair], key=lambda place: room[pair][place])
            room[pair][best] -= int(graph.size_bytes[message]) * ns_per_byte
            carried[*best, pair].append(message)
    for (k, _, pair), listed in sorted(carried.items()):
        sequence.add(*optical[k].circuit(pair), listed)


class SpectraAggregate(Planner):
    """Spectra on the whole iteration's traffic: its balanced permutations, over and over.

    Time is ignored, so which phase comes when is not known and the program is timed: each switch
    repeats its permutations, lit in proportion to their shares. The mean slot is ten
    reconfiguration delays by default, as RotorNet's.
    """

    name: ClassVar[str] = "spectra-aggregate"

    def __init__(self, slot_ns: int | None = None, phase_ns: int = 0) -> None:
        self.slot_ns = slot_ns
        self.phase_ns = phase_ns

    def plan(self, problem: Problem) -> TimedProgram:
        """Decompose, balance, repeat; raises `UsageError` where there are no circuits or light."""
        fabric = problem.fabric
        groups = alike(fabric, self.name)
        slot_ns = slot_length(fabric, self.slot_ns, self.name)
        total = demand(problem.graph)
        turns: dict[int, list[Turn]] = {}
        for (members, duplex), planes in groups.items():
            found = _covered(among(total, members, duplex=duplex), duplex=duplex)
            delays = [fabric.planes[k].delay_ns for k in planes]
            weight = sum(turn.weight for turn in found)
            lit_ns = len(found) * max(slot_ns - max(delays), 1)
            shares = [Share(t.permutation, t.weight / weight * lit_ns) for t in found]
            for k, row in zip(planes, balance(shares, delays), strict=True):
                turns[k] = [Turn(share.permutation, max(int(share.lit_ns), 1)) for share in row]
        return weighted_slots(fabric, turns, slot_ns, self.phase_ns)
