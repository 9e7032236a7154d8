"""Matchings of nodes, lifted to the ports of planes: what oblivious networks rotate through."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topologies.errors import UsageError
from topologies.matchings import deal_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from topologies.fabric import Fabric, Plane

__all__ = ["alike", "deal", "in_step", "port_matching", "ports_by_rank"]

Matching = tuple[int, ...]


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


def deal(
    fabric: Fabric,
    groups: Mapping[tuple[tuple[int, ...], bool], Sequence[int]],
    every: Callable[[tuple[int, ...], bool], Sequence[Matching]],
) -> dict[int, list[Matching]]:
    """Deal matchings to the planes' ports in runs: each plane's matchings of ports, in turn.

    `every` gives the matchings of the nodes of a group of `alike`, dealt as `deal_runs` says. All
    planes get equally many: a shorter run is gone through again until the longest is over.
    """
    dealt: dict[int, list[Matching]] = {}
    for (members, duplex), planes in groups.items():
        matchings = every(members, duplex)
        if not matchings:
            continue
        columns = {k: ports_by_rank(fabric.planes[k], f"plane {k}") for k in planes}
        runs = iter(deal_runs(len(matchings), sum(len(c) for c in columns.values())))
        for k in planes:
            own = [[matchings[number] for number in next(runs)] for _ in columns[k]]
            dealt[k] = [
                port_matching(fabric.planes[k], columns[k], turn) for turn in zip(*own, strict=True)
            ]
    return in_step(dealt)


def in_step(rotations: Mapping[int, Sequence[Matching]]) -> dict[int, list[Matching]]:
    """Make all planes' rotations as long as the longest: a shorter one is gone through again."""
    longest = max((len(rows) for rows in rotations.values()), default=0)
    return {k: [rows[i % len(rows)] for i in range(longest)] for k, rows in rotations.items()}
