"""Matchings that meet every pair of nodes: what demand-oblivious networks rotate through."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topologies.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from topologies.fabric import Plane

__all__ = ["node_matchings", "port_matching", "ports_by_rank"]


def node_matchings(count: int, *, duplex: bool) -> list[tuple[int, ...]]:
    """Return matchings of nodes 0..count-1 that together join every ordered pair exactly once.

    Row k gives each node's destination, -1 for none. Directed: the count-1 circulant shifts of
    RotorNet (Mellette et al., SIGCOMM 2017). Duplex: the rounds of a round-robin tournament by the
    circle method, count-1 of them for an even count and count for an odd one.

    >>> node_matchings(4, duplex=False)
    [(1, 2, 3, 0), (2, 3, 0, 1), (3, 0, 1, 2)]
    >>> node_matchings(3, duplex=True)
    [(-1, 2, 1), (2, -1, 0), (1, 0, -1)]
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
    """Lift one node matching per column of `ports_by_rank` to the plane's ports, -1 for none."""
    dst_ports = [-1] * plane.ports
    for column, matching in zip(columns, matchings, strict=True):
        for index, other in enumerate(matching):
            if other >= 0:
                dst_ports[column[index]] = column[other]
    return tuple(dst_ports)
