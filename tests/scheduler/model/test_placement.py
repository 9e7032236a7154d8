"""Which node a rank is on, what servers keep off the planes, and what is said about both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.dispatch.simulator import simulate
from scheduler.model.expansion import ExpansionOptions, expand
from scheduler.model.placement import place, sharing_note
from scheduler.model.problem import Problem
from scheduler.model.taskgraph import COMPUTE, MESSAGE
from scheduler.policies.registry import find
from topologies import UsageError, build_fabric, rails
from topologies.servers import servers

SIZE = 8 * 10**6


def reduced(bench: Any, ranks: int = 8, **header: Any) -> Any:
    return bench.workload(
        ranks, bench.collective("all_reduce", [(SIZE, SIZE)] * ranks), iterations=(0,), **header
    )


@given(nodes=st.integers(2, 9), gpus=st.integers(1, 9), data=st.data())
def test_ranks_fill_nodes_in_order(bench: Any, nodes: int, gpus: int, data: st.DataObject) -> None:
    world = data.draw(st.integers(2, nodes * gpus))
    placement = place(bench.workload(world), servers(nodes=nodes, gpus=gpus))
    assert placement == tuple(rank // gpus for rank in range(world))


def test_too_many_ranks_are_told_how_many_nodes_they_need(bench: Any) -> None:
    with pytest.raises(UsageError) as refused:
        place(bench.workload(9), build_fabric("servers,nodes=2,gpus=4"))
    assert str(refused.value) == (
        "servers,nodes=2,gpus=4: 2 nodes for 9 ranks, 4 on each, because every rank needs a node: "
        "use nodes=3 or say which ranks share a node"
    )


def test_a_ring_over_two_servers_crosses_the_planes_at_two_places_only(bench: Any) -> None:
    fabric = servers(nodes=2, gpus=4, scale_up_bps=10**12)
    graph = expand(reduced(bench), fabric).graph
    messages = graph.messages
    assert set(zip(graph.src[messages].tolist(), graph.dst[messages].tolist(), strict=True)) == {
        (0, 1),
        (1, 0),
    }
    assert len(messages) == 2 * 14  # of 8 ring places, over 2 (8 - 1) steps
    inside = np.flatnonzero((graph.kind == COMPUTE) & (graph.op == 0))
    assert len(inside) == 6 * 14
    assert set(graph.dur_ns[inside].tolist()) == {SIZE // 8 * 8 // 1000}  # 1 MB at 1 Tbps, in ns


@pytest.mark.parametrize("algorithm", ["ring", "hierarchical", "hierarchical:4"])
def test_a_slower_scale_up_link_makes_a_longer_iteration(bench: Any, algorithm: str) -> None:
    took = []
    for rate_bps in (10**10, 10**12, 10**14):
        fabric = servers(nodes=2, gpus=4, scale_up_bps=rate_bps)
        options = ExpansionOptions(collectives={"all_reduce": algorithm})
        graph = expand(reduced(bench), fabric, options).graph
        program = find("static").plan(Problem(graph=graph, fabric=fabric))
        took.append(simulate(graph, fabric, program, iterations=4).iteration_ns(skip=1))
    assert took[0] > took[1] > took[2]


def test_hierarchical_alone_takes_the_servers_of_the_fabric(bench: Any) -> None:
    fabric = servers(nodes=2, gpus=4)
    hashes = [
        expand(
            reduced(bench, placement=dict.fromkeys(range(8), "elsewhere")),
            fabric,
            ExpansionOptions(collectives={"all_reduce": algorithm}),
        ).sha256
        for algorithm in ("hierarchical", "hierarchical:4", "ring")
    ]
    assert hashes[0] == hashes[1] != hashes[2]
    with pytest.raises(UsageError, match="neither the workload nor the topology says"):
        expand(
            reduced(bench),
            rails(nodes=8),
            ExpansionOptions(collectives={"all_reduce": "hierarchical"}),
        )


def test_the_option_prevails_over_the_fabric_and_no_rate_means_no_time(bench: Any) -> None:
    fabric = servers(nodes=2, gpus=4, scale_up_bps=10**12)
    slow = expand(reduced(bench), fabric, ExpansionOptions(scale_up_bps=10**11)).graph
    assert slow.dur_ns.max() == SIZE // 8 * 8 // 100
    free = expand(reduced(bench), rails(nodes=2), rank_to_node=[0, 0, 0, 0, 1, 1, 1, 1]).graph
    assert free.dur_ns.max() == 0
    assert np.count_nonzero(free.kind == MESSAGE) == np.count_nonzero(slow.kind == MESSAGE)


@pytest.mark.parametrize(
    ("hosts", "fabric", "note"),
    [
        ("aaaabbbb", rails(nodes=8), "servers,gpus=4 keeps it off them"),
        ("aaaaaaaa", rails(nodes=8), "up to 8 ranks of the trace ran on one host"),
        ("aaaabbbb", servers(nodes=4, gpus=2), "puts them on several nodes"),
        ("abababab", servers(nodes=2, gpus=4), "up to 4 ranks"),
        ("aaaabbbb", servers(nodes=2, gpus=4), None),
        ("aabbccdd", servers(nodes=2, gpus=4), None),
        ("abcdefgh", rails(nodes=8), None),
        ("", rails(nodes=8), None),
        ("aaaabbbb", rails(nodes=4), None),  # expand refuses it for another reason
    ],
)
def test_shared_hosts_that_are_taken_apart_are_told(
    bench: Any, hosts: str, fabric: Any, note: str | None
) -> None:
    workload = bench.workload(8, placement=dict(enumerate(hosts)) or None)
    said = sharing_note(workload, fabric)
    if note is None:
        assert said is None
    else:
        assert said is not None
        assert note in said
        assert "\n" not in said
    if hosts == "aaaaaaaa":
        assert said is not None
        assert "gpus=" not in said  # one server of all leaves nothing to join
