"""What holds for every fabric that can be named, and what sets each topology apart."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topologies import Circuit, Fabric, FabricError, Plane
from topologies.hybrid import hybrid
from topologies.rails import rails
from topologies.registry import BUILDERS
from topologies.rotor import rotor
from topologies.servers import servers
from topologies.single import single
from topologies.torus import torus

if TYPE_CHECKING:
    from collections.abc import Callable

SMALL = st.integers(1, 5)
COMMON = {
    "rate_bps": st.integers(1, 10**13),
    "delay_ns": st.integers(0, 10**9),
    "control_ns": st.integers(0, 10**6),
    "notify_ns": st.integers(0, 10**6),
    "latency_ns": st.integers(0, 10**6),
}
OWN: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "rails": {"planes": SMALL, "duplex": st.booleans(), "all_stop": st.booleans()},
    "single": {"ports": SMALL, "duplex": st.booleans(), "all_stop": st.booleans()},
    "servers": {"planes": SMALL, "gpus": SMALL, "scale_up_bps": st.integers(1, 10**13)},
    "hybrid": {"planes": SMALL, "packet_rate_bps": st.integers(1, 10**13)},
    "rotor": {"matchings": SMALL, "duplex": st.booleans()},
    "torus": {"all_stop": st.booleans()},
}
CUBES = st.lists(st.integers(1, 4), min_size=1, max_size=3)


@st.composite
def arguments(draw: st.DrawFn, name: str) -> dict[str, Any]:
    """What the builder called `name` can be called with."""
    chosen = draw(st.fixed_dictionaries(COMMON | OWN[name]))
    if name != "torus":
        return chosen | {"nodes": draw(st.integers(2, 24))}
    shape = draw(CUBES)
    cubes = draw(st.integers(1 if math.prod(shape) > 1 else 2, 3))
    return chosen | {"nodes": cubes * math.prod(shape), "cube": "x".join(map(str, shape))}


def joined(fabric: Fabric) -> set[tuple[int, int]]:
    """Return the pairs of nodes that some plane has ports of."""
    pairs: set[tuple[int, int]] = set()
    for plane in fabric.planes:
        pairs |= set(itertools.permutations(set(plane.node_of), 2))
    return pairs


def component(fabric: Fabric, start: int = 0) -> set[int]:
    """Return the nodes that can be reached from `start`, however many hops it takes."""
    pairs, seen, ahead = joined(fabric), {start}, [start]
    while ahead:
        at = ahead.pop()
        for a, b in pairs:
            if a == at and b not in seen:
                seen.add(b)
                ahead.append(b)
    return seen


def test_every_topology_is_tested_here() -> None:
    assert OWN.keys() == BUILDERS.keys()


@pytest.mark.parametrize("name", BUILDERS)
@given(data=st.data())
def test_every_port_has_an_owner_and_every_node_a_way(name: str, data: st.DataObject) -> None:
    chosen = data.draw(arguments(name))
    fabric = BUILDERS[name](**chosen)
    assert fabric.nodes == chosen["nodes"]
    for key in ("control_ns", "notify_ns", "latency_ns"):
        assert getattr(fabric, key) == chosen[key]
    for number, plane in enumerate(fabric.planes):
        owned = [p for node in range(fabric.nodes) for p in fabric.ports_of(number, node)]
        assert sorted(owned) == list(range(plane.ports))
        assert plane.delay_ns == (chosen["delay_ns"] if plane.kind == "ocs" else 0)
    if name != "torus":
        assert len(joined(fabric)) == fabric.nodes * (fabric.nodes - 1)  # in one hop
    assert component(fabric) == set(range(fabric.nodes))


@given(nodes=st.integers(2, 30), ports=st.integers(1, 8))
def test_a_single_switch_gives_each_node_its_ports(nodes: int, ports: int) -> None:
    (plane,) = single(nodes=nodes, ports=ports).planes
    assert plane.node_of[:nodes] == tuple(range(nodes))
    assert set(Counter(plane.node_of).values()) == {ports}


@given(nodes=st.integers(2, 30), gpus=st.integers(1, 9))
def test_servers_have_a_rail_per_gpu_unless_told_otherwise(nodes: int, gpus: int) -> None:
    fabric = servers(nodes=nodes, gpus=gpus)
    assert (len(fabric.planes), fabric.gpus_per_node) == (gpus, gpus)
    assert fabric.scale_up_bps == 3600 * 10**9
    assert len(servers(nodes=nodes, gpus=gpus, planes=3).planes) == 3


def test_a_hybrid_is_rails_and_one_packet_plane_with_its_own_rate() -> None:
    fabric = hybrid(nodes=6, planes=3, packet_rate_bps=7, delay_ns=5)
    assert fabric.planes[:3] == rails(nodes=6, planes=3, delay_ns=5).planes
    assert fabric.planes[3] == Plane(node_of=(0, 1, 2, 3, 4, 5), rate_bps=7, kind="eps")


@given(nodes=st.integers(2, 40), matchings=st.integers(1, 40), duplex=st.booleans())
def test_rotors_suffice_for_every_matching_and_not_one_less(
    nodes: int, matchings: int, *, duplex: bool
) -> None:
    from topologies.matchings import node_matchings

    fabric = rotor(nodes=nodes, matchings=matchings, duplex=duplex)
    every, planes = len(node_matchings(nodes, duplex=duplex)), len(fabric.planes)
    assert (planes - 1) * matchings < every <= planes * matchings
    assert all(plane.all_stop for plane in fabric.planes)
    own = [plane.matchings or () for plane in fabric.planes]
    assert {len(rows) for rows in own} == {-(-every // planes)}
    assert {row for rows in own for row in rows} == set(node_matchings(nodes, duplex=duplex))


ROWS = {"node_of": (0, 1, 2, 3), "rate_bps": 1, "all_stop": True}


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"matchings": ()}, "it has 0 fixed matchings"),
        ({"matchings": ((1, 0, 3, 2),), "all_stop": False}, "that is all_stop"),
        ({"matchings": ((1, 0, 3, 2),), "kind": "eps"}, "of an optical switch"),
        ({"matchings": ((1, 0, 3, 2), (1, 1, -1, -1))}, "matching 1 is none"),
        ({"matchings": ((0, 1, 2, 3),)}, "matching 0 is none"),
        ({"matchings": ((1, 0, 3),)}, "gives every one of 4 ports another"),
        ({"matchings": ((1, 0, 4, -1),)}, "matching 0 is none"),
        ({"matchings": ((1, 2, 3, 0),), "duplex": True}, "matching 0 is not symmetric"),
    ],
)
def test_fixed_matchings_are_matchings(changed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FabricError, match=re.escape(sentence)):
        Plane(**(ROWS | changed))


def test_a_switch_knows_its_matchings_and_their_parts() -> None:
    plane = Plane(**ROWS, matchings=((1, 0, 3, 2), (2, 3, -1, -1)))
    assert plane.knows([])
    assert plane.knows([Circuit(3, 2), Circuit(0, 1)])
    assert plane.knows([Circuit(0, 2), Circuit(1, 3)])
    assert not plane.knows([Circuit(0, 1), Circuit(1, 3)])
    assert not plane.knows([Circuit(2, 0)])


@given(shape=CUBES, cubes=st.integers(1, 3))
def test_a_torus_has_the_links_and_switches_of_its_lines(shape: list[int], cubes: int) -> None:
    size = math.prod(shape)
    if cubes * size < 2:
        return
    fabric = torus(nodes=cubes * size, cube="x".join(map(str, shape)))
    switches = [plane for plane in fabric.planes if plane.kind == "ocs"]
    cables = [plane for plane in fabric.planes if plane.kind == "eps"]
    assert len(switches) == sum(size // extent for extent in shape)
    assert len(cables) == cubes * sum(size // extent * (extent - 1) for extent in shape)
    assert all(plane.duplex and plane.ports == 2 * cubes for plane in switches)
    assert len({plane.node_of for plane in cables}) == len(cables)

    def coordinates(node: int) -> list[int]:
        place, found = node % size, []
        for extent in shape:
            place, coordinate = divmod(place, extent)
            found.append(coordinate)
        return found

    for a, b in (plane.node_of for plane in cables):
        assert a // size == b // size
        steps = [y - x for x, y in zip(coordinates(a), coordinates(b), strict=True)]
        assert sorted(steps) == [*[0] * (len(shape) - 1), 1]
    for plane in switches:
        for low, high in zip(plane.node_of[::2], plane.node_of[1::2], strict=True):
            ends = zip(coordinates(low), coordinates(high), shape, strict=True)
            differs = [(x, y, n) for x, y, n in ends if x != y]
            assert all((x, y) == (0, n - 1) for x, y, n in differs)
            assert len(differs) <= 1


def test_four_by_four_by_four_is_the_tpu_s() -> None:
    fabric = torus(nodes=128, cube="4x4x4")
    kinds = Counter(plane.kind for plane in fabric.planes)
    assert kinds == {"ocs": 48, "eps": 2 * 144}  # 48 switches: Jouppi et al., 2023


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (
            lambda: torus(nodes=6, cube="2x2"),
            "torus: 6 nodes, because a cube of 2x2 has 4: use a multiple of 4 or another cube",
        ),
        (
            lambda: torus(nodes=8, cube="2x0"),
            "torus: cube='2x0', because a cube is written as its 1 to 4 extents: write cube=4x4x4",
        ),
        (
            lambda: torus(nodes=8, cube="2x2x1x1x2"),
            (
                "torus: cube='2x2x1x1x2', because a cube is written as its 1 to 4 extents: "
                "write cube=4x4x4"
            ),
        ),
        (
            lambda: rotor(nodes=8, matchings=0),
            (
                "rotor: matchings=0, because a rotor switch has one matching at least: "
                "correct matchings"
            ),
        ),
        (
            lambda: single(nodes=8, ports=0),
            "plane: the plane has ports=0, because the least possible is 2: correct ports",
        ),
        (
            lambda: servers(nodes=8, gpus=0, planes=1),
            (
                "fabric: the fabric has gpus_per_node=0, because the least possible is 1: "
                "correct gpus_per_node"
            ),
        ),
        (
            lambda: servers(nodes=8, scale_up_bps=0),
            (
                "fabric: the fabric has scale_up_bps=0, because the least possible is 1: "
                "correct scale_up_bps"
            ),
        ),
    ],
)
def test_an_impossible_fabric_gets_one_sentence(build: Callable[[], Fabric], sentence: str) -> None:
    with pytest.raises(FabricError) as refused:
        build()
    assert str(refused.value) == sentence
