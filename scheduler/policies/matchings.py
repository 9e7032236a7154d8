"""Matchings that meet every pair of nodes: what demand-oblivious networks rotate through."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from topologies.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from topologies.fabric import Fabric, Plane

__all__ = ["alike", "deal", "node_matchings", "port_matching", "ports_by_rank"]

Matching = tuple[int, ...]


def node_matchings(count: int, *, duplex: bool) -> list[tuple[int, ...]]:
    """Return matchings of nodes 0..count-1 that together join every ordered pair exactly once.

    Row k gives each node's destination, -1 for none. Directed: the count-1 circulant shifts of
    RotorNet (Mellette et al., SIGCOMM 2017). Duplex: the rounds of a round-robin tournament by the
    circle method, count-1 of them for an even count and count for an odd one.

    >>> node_matchings(4, duplex=False)
    [(1, 2, 3, 0), (2, 3, 0, 1), (3, 0, 1, 2)]
    >>> node_matchings(3, duplex=True)
    [(1, 0, -1), (-1, 2, 1), (2, -1, 0)]
    """
    if not duplex:
        return [tuple((i + shift) % count for i in range(count)) for shift in range(1, count)]
    even = count + count % 2
    rounds = []
    for turn in range(even - 1):
        circle = [even - 1, *((turn + k) % (even - 1) for k in range(even - 1))]
        partner = [-1] * even
        for left, right in zip(circle[: even // 2], reversed(circle[even // 2 :]), strict=True):
            partner[left], partner[right] = right, left
        rounds.append(tuple(-1 if p >= count else p for p in partner[:count]))
    return rounds


def ports_by_rank(plane: Plane, where: str) -> list[list[int]]:
    """Return, for each k, the k-th port of every node of the plane, nodes ascending.

    Raises `UsageError` where nodes have different numbers of ports: a rotor joins all of them
    alike.
    """
    of_node: dict[int, list[int]] = {}
    for port, node in enumerate(plane.node_of):
        of_node.setdefault(node, []).append(port)
    rows = [of_node[node] for node in sorted(of_node)]
    if len({len(row) for row in rows}) > 1:
        why = "a rotating plane needs as many ports of every node"
        raise UsageError(
            "nodes have different numbers of ports", where, why, "use another topology"
        )
    return [list(column) for column in zip(*rows, strict=True)]


def port_matching(
    plane: Plane, columns: Sequence[Sequence[int]], matchings: Sequence[tuple[int, ...]]
) -> tuple[int, ...]:
    """Lift one node matching per column of `ports_by_rank` to the plane's ports, -1 for none.

    A node that is matched with itself has no circuit.
    """
    dst_ports = [-1] * plane.ports
    for column, matching in zip(columns, matchings, strict=True):
        for index, other in enumerate(matching):
            if other not in (-1, index):
                dst_ports[column[index]] = column[other]
    return tuple(dst_ports)


def alike(fabric: Fabric, where: str) -> dict[tuple[tuple[int, ...], bool], list[int]]:
    """Group the optical planes by the nodes they join (ascending) and whether both ways.

    Raises `UsageError` where there are none.
    """
    groups: dict[tuple[tuple[int, ...], bool], list[int]] = {}
    for k, plane in enumerate(fabric.planes):
        if plane.kind == "ocs":
            key = tuple(sorted(set(plane.node_of))), plane.duplex
            groups.setdefault(key, []).append(k)
    if not groups:
        why = "every plane is a packet switch"
        raise UsageError("there are no circuits to plan", where, why, "add an ocs plane")
    return groups


def _clashes(held: Sequence[set[int]], run: Sequence[int]) -> int:
    """Count the slots in which a run would hold a matching that is in use."""
    return sum(number in used for number, used in zip(run, held, strict=True))


def deal(
    fabric: Fabric,
    groups: Mapping[tuple[tuple[int, ...], bool], Sequence[int]],
    every: Callable[[tuple[int, ...], bool], Sequence[Matching]],
) -> dict[int, list[Matching]]:
    """Deal matchings to the planes' ports in runs: each plane's matchings of ports, in turn.

    `every` gives the matchings of the nodes of a group of `alike`. Where they do not fill the last
    run, the deal starts again with the first ones; a run is turned so that no other holds the same
    matchings at the same time, where that can be had. All planes get equally many: a shorter run is
    gone through again until the longest is over.
    """
    dealt: dict[int, list[Matching]] = {}
    for (members, duplex), planes in groups.items():
        matchings = every(members, duplex)
        if not matchings:
            continue
        columns = {k: ports_by_rank(fabric.planes[k], f"plane {k}") for k in planes}
        length = -(-len(matchings) // sum(len(c) for c in columns.values()))
        next_one = 0
        held: list[set[int]] = [set() for _ in range(length)]  # by slot, the matchings in use
        for k in planes:
            runs = []
            for _ in columns[k]:
                run = [(next_one + i) % len(matchings) for i in range(length)]
                run = min((run[r:] + run[:r] for r in range(length)), key=partial(_clashes, held))
                for slot, number in enumerate(run):
                    held[slot].add(number)
                runs.append([matchings[number] for number in run])
                next_one += length
            dealt[k] = [
                port_matching(fabric.planes[k], columns[k], [run[i] for run in runs])
                for i in range(length)
            ]
    longest = max((len(rows) for rows in dealt.values()), default=0)
    return {k: [rows[i % len(rows)] for i in range(longest)] for k, rows in dealt.items()}
