"""`torus`: cubes of nodes with fixed links inside, and optical switches between their faces."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Final

from topologies.errors import FabricError
from topologies.fabric import Fabric, Plane

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["torus"]

_MOST_DIMENSIONS: Final = 4
_MOST_DIGITS: Final = 3


def torus(
    *,
    nodes: int,
    cube: str = "2x2",
    rate_bps: int = 800 * 10**9,
    delay_ns: int = 100_000,
    all_stop: bool = False,
    control_ns: int = 0,
    notify_ns: int = 0,
    latency_ns: int = 0,
) -> Fabric:
    """Cubes of nodes with fixed links inside, and optical switches that join cubes face to face.

    After TPU v4 (Jouppi et al., ISCA 2023), whose cubes are 4x4x4. Node n is place n % size of cube
    n // size; places count along the cube's first dimension first. For every line of nodes
    through a cube there is one optical switch (duplex), where cube c's line has two ports: 2c at
    its low end and 2c + 1 at its high one. High joined to the own low end closes a ring, to
    another cube's a longer line. Those planes come first. Each fixed link is a plane of its own, a
    packet switch of two ports: a cable, both ways, which nothing else shares and nothing darkens.

    Limits: a message goes one hop, so only neighbours talk, and ends of the same line of two cubes:
    let groups be lines of the torus (`cube=4x2` suits TP 4 x DP 2 on 8 nodes). Nothing here keeps a
    switch from joining two low ends, which the TPU's wiring excludes.

    >>> [len(torus(nodes=8, cube=shape).planes) for shape in ("2x2x2", "4x2", "4x1")]
    [24, 16, 11]
    """
    shape = _shape(cube)
    size = math.prod(shape)
    if nodes % size:
        why = f"a cube of {cube} has {size}"
        raise FabricError(
            f"{nodes} nodes", "torus", why, f"use a multiple of {size} or another cube"
        )
    switches = [
        Plane(
            node_of=tuple(
                c * size + end for c in range(nodes // size) for end in (line[0], line[-1])
            ),
            rate_bps=rate_bps,
            delay_ns=delay_ns,
            duplex=True,
            all_stop=all_stop,
        )
        for line in _lines(shape)
    ]
    cables = [
        Plane(node_of=(c * size + a, c * size + b), rate_bps=rate_bps, kind="eps")
        for c in range(nodes // size)
        for line in _lines(shape)
        for a, b in itertools.pairwise(line)
    ]
    return Fabric(
        nodes=nodes,
        planes=(*switches, *cables),
        control_ns=control_ns,
        notify_ns=notify_ns,
        latency_ns=latency_ns,
    )


def _shape(cube: str) -> tuple[int, ...]:
    parts = cube.split("x")
    sound = all(p.isascii() and p.isdecimal() and len(p) <= _MOST_DIGITS and int(p) for p in parts)
    if not sound or len(parts) > _MOST_DIMENSIONS:
        why = f"a cube is written as its 1 to {_MOST_DIMENSIONS} extents"
        raise FabricError(f"cube={cube!r}", "torus", why, "write cube=4x4x4")
    return tuple(map(int, parts))


def _lines(shape: tuple[int, ...]) -> Iterator[list[int]]:
    """Yield the places along every line of a cube, dimension by dimension."""
    steps = [math.prod(shape[:d]) for d in range(len(shape))]
    for dimension, extent in enumerate(shape):
        others = [range(n) if d != dimension else (0,) for d, n in enumerate(shape)]
        for place in itertools.product(*reversed(others)):
            first = sum(i * step for i, step in zip(reversed(place), steps, strict=True))
            yield [first + i * steps[dimension] for i in range(extent)]
