"""A fabric as a picture for terminals, and what it has in common with the SVG (`topologies.svg`).

Nodes are columns and planes bars across them, with a dot for every port. A packet plane of two
ports is a fixed link, told under the nodes.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from topologies.units import format_duration, format_rate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from topologies.fabric import Fabric, Plane

__all__ = ["Layout", "headline", "layout", "planes_in_words", "text"]

_COLUMNS_PER_BLOCK: Final = 16
_WIDTH: Final = 100
_CABLE_PORTS: Final = 2
_MOST_MATCHINGS: Final = 4
_MOST_CIRCUITS: Final = 4


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things are: `rows` of switches that do not overlap, top to bottom, and fixed `links`.

    A switch is (plane, first node, last node), a link (plane, lower node, higher node).
    """

    rows: tuple[tuple[tuple[int, int, int], ...], ...]
    links: tuple[tuple[int, int, int], ...]


def layout(fabric: Fabric) -> Layout:
    """Put planes that share no column beside each other, in order; packet planes come last."""
    switches: list[tuple[int, int, int]] = []
    links: list[tuple[int, int, int]] = []
    for number, plane in enumerate(fabric.planes):
        span = (number, min(plane.node_of), max(plane.node_of))
        (links if _is_link(plane) else switches).append(span)
    rows: list[list[tuple[int, int, int]]] = []
    for span in sorted(switches, key=lambda s: (fabric.planes[s[0]].kind == "eps", s[0])):
        for row in rows:
            alike = fabric.planes[row[-1][0]].kind == fabric.planes[span[0]].kind
            if alike and row[-1][2] < span[1]:
                row.append(span)
                break
        else:
            rows.append([span])
    return Layout(tuple(map(tuple, rows)), tuple(links))


def _is_link(plane: Plane) -> bool:
    return plane.kind == "eps" and plane.ports == _CABLE_PORTS and len(set(plane.node_of)) > 1


def headline(fabric: Fabric) -> str:
    """Say what a fabric is, in one line.

    >>> from topologies import build_fabric
    >>> headline(build_fabric("servers,nodes=4,gpus=2,control=5us"))
    '4 servers of 2 GPUs (scale-up 3.6 Tbps) on 2 planes, control 5 us'
    """
    nodes = f"{fabric.nodes} nodes"
    if fabric.gpus_per_node > 1:
        rate = fabric.scale_up_bps
        inside = format_rate(rate) if rate is not None else "in no time"
        nodes = f"{fabric.nodes} servers of {fabric.gpus_per_node} GPUs (scale-up {inside})"
    times = {
        "control": fabric.control_ns,
        "notify": fabric.notify_ns,
        "latency": fabric.latency_ns,
    }
    planes = f"{len(fabric.planes)} plane{'s' if len(fabric.planes) > 1 else ''}"
    words = [f"{nodes} on {planes}"]
    words += [f"{name} {format_duration(value)}" for name, value in times.items() if value]
    return ", ".join(words)


def planes_in_words(fabric: Fabric) -> list[tuple[str, str]]:
    """Describe neighbouring planes that are alike as (their numbers, what they are).

    >>> from topologies import build_fabric
    >>> planes_in_words(build_fabric("hybrid,nodes=8,planes=3"))[0]
    ('p0-p2', 'optical, 8 ports of 800 Gbps, dark 100 us')
    """
    found: list[tuple[int, int, str]] = []
    for number, plane in enumerate(fabric.planes):
        words = _in_words(plane)
        if found and found[-1][2] == words:
            found[-1] = (found[-1][0], number, words)
        else:
            found.append((number, number, words))
    return [(f"p{a}" if a == b else f"p{a}-p{b}", words) for a, b, words in found]


def _in_words(plane: Plane) -> str:
    rate = format_rate(plane.rate_bps)
    if _is_link(plane):
        return f"fixed link, {rate} each way"
    if plane.kind == "eps":
        return f"packet switch, {plane.ports} ports of {rate}"
    words = f"optical, {plane.ports} ports of {rate}, dark {format_duration(plane.delay_ns)}"
    words += ", duplex circuits" if plane.duplex else ""
    if plane.matchings is not None:
        many = len(plane.matchings)
        words += f", {many} fixed matching{'s' if many > 1 else ''}: "
        words += ", ".join(_matching_in_words(row) for row in plane.matchings[:_MOST_MATCHINGS])
        words += ", ..." if many > _MOST_MATCHINGS else ""
    return words + (", all ports at every change" if plane.all_stop else "")


def _matching_in_words(row: Sequence[int]) -> str:
    """Write a shift as one number, other matchings by their circuits.

    >>> _matching_in_words((2, 3, 0, 1)), _matching_in_words((1, 0, -1))
    ('i->i+2', '0->1 1->0')
    """
    shifts = {(dst - src) % len(row) for src, dst in enumerate(row) if dst != -1}
    if len(shifts) == 1 and -1 not in row:
        return f"i->i+{shifts.pop()}"
    lit = [f"{src}->{dst}" for src, dst in enumerate(row) if dst != -1]
    return " ".join(lit[:_MOST_CIRCUITS] + ["..."] * (len(lit) > _MOST_CIRCUITS))


def text(fabric: Fabric) -> str:
    """Draw `fabric` for a terminal, 16 nodes side by side; a digit stands for that many ports.

    >>> from topologies import build_fabric
    >>> print(text(build_fabric("hybrid,nodes=3,planes=1")))
    hybrid,nodes=3,planes=1
    3 nodes on 2 planes
    <BLANKLINE>
      p0  optical, 3 ports of 800 Gbps, dark 100 us
      p1  packet switch, 3 ports of 100 Gbps
    <BLANKLINE>
      p0  ──●───●───●─
      p1  ══●═══●═══●═
           h0  h1  h2
    """
    words = planes_in_words(fabric)
    wide = max(len(numbers) for numbers, _ in words)
    lines = [*([fabric.name] if fabric.name else []), headline(fabric), ""]
    lines += [f"  {numbers.ljust(wide)}  {what}" for numbers, what in words]
    place = layout(fabric)
    for first in range(0, fabric.nodes, _COLUMNS_PER_BLOCK):
        columns = range(first, min(first + _COLUMNS_PER_BLOCK, fabric.nodes))
        lines += ["", *_block(fabric, place, columns)]
    if place.links:
        joined = "  ".join(f"h{a}─h{b}" for _, a, b in place.links)
        lines += ["", "  fixed links"]
        lines += textwrap.wrap(joined, _WIDTH, initial_indent="  ", subsequent_indent="  ")
    return "\n".join(lines)


def _block(fabric: Fabric, place: Layout, columns: Sequence[int]) -> Iterator[str]:
    """Yield the lines of the nodes in `columns`: a row of switches each, then their names."""
    rows = [[s for s in row if s[1] <= columns[-1] and s[2] >= columns[0]] for row in place.rows]
    names = [",".join(f"p{plane}" for plane, _, _ in row) for row in rows]
    wide = max((len(name) for name in names), default=0)
    cell = max(4, len(f"h{fabric.nodes - 1}") + 1)
    for name, row in zip(names, rows, strict=True):
        if row:
            drawn = "".join(_cell(fabric, row, node, cell) for node in columns)
            yield f"  {name.ljust(wide)}  {drawn}".rstrip()
    heads = "".join(f"h{node}".center(cell) for node in columns)
    yield f"  {' ' * wide}  {heads}".rstrip()


def _cell(fabric: Fabric, row: Sequence[tuple[int, int, int]], node: int, cell: int) -> str:
    for number, first, last in row:
        if first <= node <= last:
            plane = fabric.planes[number]
            line = "─" if plane.kind == "ocs" else "═"
            ports = Counter(plane.node_of)[node]
            dot = line if ports == 0 else "●" if ports == 1 else str(ports)
            left, right = (cell - 1) // 2 + (cell + 1) % 2, (cell - 1) // 2
            return line * left + dot + line * right
    return " " * cell
