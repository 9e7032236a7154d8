"""How topologies are spelt, and what a wrong spelling is told."""

from __future__ import annotations

import pytest

from topologies import FabricError, UsageError, build_fabric, rails
from topologies.registry import BUILDERS, describe, options_of, parse_spec
from topologies.servers import servers
from topologies.torus import torus


def test_units_numbers_and_truth() -> None:
    spec = "rails, nodes=4,planes=3,rate=1.5Tbps,delay=10us,duplex=yes,control=2us"
    fabric = build_fabric(spec)
    expected = rails(
        nodes=4, planes=3, rate_bps=1500 * 10**9, delay_ns=10**4, duplex=True, control_ns=2000
    )
    assert fabric.planes == expected.planes
    assert (fabric.control_ns, fabric.name) == (2000, spec)


@pytest.mark.parametrize(
    ("spec", "world", "nodes"),
    [
        ("rails", 8, 8),
        ("rails,nodes=4", 8, 4),
        ("servers,gpus=4", 8, 2),
        ("servers,gpus=4", 10, 3),
        ("servers", 64, 8),
        ("servers,gpus=1", 8, 8),
        ("torus,cube=2x2x2", 16, 16),
    ],
)
def test_nodes_default_to_what_holds_the_ranks(spec: str, world: int, nodes: int) -> None:
    assert build_fabric(spec, world).nodes == nodes


def test_every_option_of_a_builder_can_be_spelt() -> None:
    spec = "servers,nodes=4,gpus=2,planes=3,rate=1Gbps,scale_up=2Gbps,delay=1us,duplex=no"
    spec += ",all_stop=yes,control=1ns,notify=2ns,latency=3ns"
    expected = servers(
        nodes=4, gpus=2, planes=3, rate_bps=10**9, scale_up_bps=2 * 10**9, delay_ns=1000,
        all_stop=True, control_ns=1, notify_ns=2, latency_ns=3,
    )  # fmt: skip
    fabric = build_fabric(spec)
    assert fabric.planes == expected.planes
    assert (fabric.gpus_per_node, fabric.scale_up_bps) == (2, 2 * 10**9)
    assert build_fabric("torus,nodes=8,cube=4x2").planes == torus(nodes=8, cube="4x2").planes
    assert len(parse_spec(spec, "topology")[1]) == len(options_of("servers"))


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (
            "donut",
            ("donut: there is no topology 'donut', because the topologies are rails, single, "
            "servers, hybrid, rotor, torus: choose one of them, or write my_fabric.py:function"),
        ),
        (
            "hybrid,packets=1Gbps",
            ("hybrid,packets=1Gbps: there is no option 'packets', because the options of hybrid "
            "are nodes, planes, rate, packet_rate, delay, duplex, all_stop, control, notify, "
            "latency: did you mean packet_rate?"),
        ),
        (
            "rails,delay=100",
            ("rails,delay=100: delay='100' has no unit, because the units of a duration "
             "are ns, us, µs, ms, s: write 100us"),
        ),
        ("rails,planes", ("rails,planes: 'planes' is not key=value, because a topology is written "
         "name,key=value,...: correct it")),
        ("rails,planes=2,planes=3", ("rails,planes=2,planes=3: 'planes' appears twice, because "
         "each option can be given once: remove one")),
        ("rails,planes=two", ("rails,planes=two: planes='two', because it must be a whole number "
         "below a million: write planes=2")),
        ("rails,duplex=maybe", ("rails,duplex=maybe: duplex='maybe', because it must be yes or no: "
         "write duplex=yes")),
        ("rails", ("rails: nodes is missing, because no workload says how many nodes there are: "
         "add nodes=8")),
    ],
)  # fmt: skip
def test_a_wrong_spelling_gets_one_sentence(spec: str, sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        build_fabric(spec)
    assert str(refused.value) == sentence


def test_a_server_that_holds_all_ranks_leaves_nothing_to_join() -> None:
    with pytest.raises(UsageError) as refused:
        build_fabric("servers", world=8)
    assert str(refused.value) == (
        "servers: one server of 8 GPUs holds all 8 ranks, because a fabric joins two nodes or "
        "more: add gpus=4"
    )


def test_an_impossible_fabric_is_refused_by_its_reason() -> None:
    with pytest.raises(FabricError, match="6 nodes, because a cube of 2x2 has 4"):
        build_fabric("torus", world=6)


def test_every_topology_has_one_line_that_says_what_it_is() -> None:
    lines = describe()
    assert lines.keys() == BUILDERS.keys()
    assert all(line.endswith(".") and len(line) < 100 for line in lines.values())
    assert len(set(lines.values())) == len(lines)
