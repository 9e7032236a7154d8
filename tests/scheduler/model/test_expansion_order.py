"""What waits for what: entries, exits, data, streams, iterations."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model.collectives import ALGORITHMS
from scheduler.model.expansion import ExpansionOptions, expand, messages_sha256, traffic_matrix
from scheduler.model.layout import INTERNAL_STREAM
from scheduler.model.taskgraph import COMPUTE, MARKER, MESSAGE, ORIGINS
from scheduler.model.workload import Collective, Compute, Group, Participation
from topologies import rails

WAYS = [
    *((kind, name) for kind, named in ALGORITHMS.items() for name in named if kind != "send_recv"),
    *((kind, "hierarchical:2") for kind in ALGORITHMS if kind != "send_recv"),
]
REFINEMENTS: list[dict[str, Any]] = [
    {},
    {"eager_send": True},
    {"channels": 2, "chunk_bytes": 300, "split": "planes"},
    {"reduce_bw_bps": 10**9, "scale_up_bps": 10**9, "split": 2},
]
EVERYONE = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"}


def sizes_of(kind: str, n: int, size: int) -> list[tuple[int, int]]:
    factor = {"all_gather": (1, n), "reduce_scatter": (n, 1), "gather": (1, n), "scatter": (n, 1)}
    into, out = factor.get(kind, (1, 1))
    return [(into * size, out * size)] * n


@pytest.mark.parametrize(("kind", "algorithm"), WAYS)
@pytest.mark.parametrize("options", REFINEMENTS)
@pytest.mark.parametrize("n", [2, 3, 4, 6, 8])
def test_a_rank_leaves_when_what_it_needs_can_have_come(
    bench: Any, kind: str, algorithm: str | None, options: dict[str, Any], n: int
) -> None:
    """An exit follows the entry of everybody whose data it needs, for any algorithm."""
    root = 1 if kind in ("broadcast", "reduce", "gather", "scatter") else None
    if (n % 2 and algorithm == "hierarchical:2") or (
        n & (n - 1) and algorithm == "halving-doubling"
    ):
        algorithm = "ring" if kind in ("all_reduce", "all_gather", "reduce_scatter") else None
    graph = bench.expand_one(kind, sizes_of(kind, n, 960), algorithm, root=root, **options).graph
    enters, leaves = bench.enters(graph), bench.leaves(graph)
    after = [bench.reach(graph, task) for task in enters]
    for source in range(n):
        for target in range(n):
            needs = (
                source == target
                or kind in EVERYONE
                or (kind in ("broadcast", "scatter") and source == root)
                or (kind in ("reduce", "gather") and target == root)
            )
            if needs:
                assert leaves[target] in after[source], (source, target)


@pytest.mark.parametrize(("kind", "algorithm"), WAYS)
def test_messages_wait_for_both_ends_and_eager_ones_for_the_sender(
    bench: Any, kind: str, algorithm: str
) -> None:
    root = 1 if kind in ("broadcast", "reduce", "gather", "scatter") else None
    for eager in (False, True):
        graph = bench.expand_one(
            kind, sizes_of(kind, 8, 960), algorithm, root=root, eager_send=eager
        ).graph
        after = [bench.reach(graph, task) for task in bench.enters(graph)]
        for message in graph.messages:
            assert message in after[graph.src[message]]
            assert eager or message in after[graph.dst[message]]
            for end in (graph.src[message], graph.dst[message]):
                assert bench.leaves(graph)[end] in bench.reach(graph, int(message))
    if kind == "broadcast":
        assert not all(m in after[graph.dst[m]] for m in graph.messages)


@pytest.mark.parametrize(
    ("kind", "algorithm", "steps"),
    [
        ("all_reduce", "ring", 14),
        ("all_reduce", "direct", 2),
        ("all_reduce", "halving-doubling", 14),  # 4+2+1+1+2+4 chunks
        ("all_reduce", "tree", 24),  # two trees side by side: up 3 and down 3 edges of 4 chunks
        ("all_gather", "ring", 7),
        ("all_gather", "direct", 1),
        ("reduce_scatter", "halving-doubling", 7),
        ("broadcast", "ring", 56),
        ("broadcast", "tree", 24),
        ("broadcast", "direct", 8),
        ("reduce", "tree", 24),
        ("all_to_all", "direct", 1),
        ("barrier", "direct", 0),
        ("all_reduce", "hierarchical:2", 24),  # 2*3 steps of S/2/4 = 4 chunks
    ],
)
def test_depth(bench: Any, kind: str, algorithm: str, steps: int) -> None:
    """The longest chain of bytes, in chunks of 1000, when nothing shares a port."""
    size = 1000 if kind in ("all_gather", "reduce_scatter") else 8000
    root = 0 if kind in ("broadcast", "reduce") else None
    graph = bench.expand_one(kind, sizes_of(kind, 8, size), algorithm, root=root).graph
    if algorithm == "hierarchical:2":
        assert bench.longest_ns(graph) == 2 * 3 * 8000 // 2 // 4
    else:
        assert bench.longest_ns(graph) == steps * 1000


def test_chunks_pipeline_a_chain(bench: Any) -> None:
    graph = bench.expand_one(
        "broadcast", [(8000, 8000)] * 5, "ring", root=0, chunk_bytes=1000
    ).graph
    assert len(graph.messages) == 8 * 4
    assert bench.longest_ns(graph) == 4 * 1000  # each chunk needs its own predecessor only


def test_reductions_take_time_where_data_are_added(bench: Any) -> None:
    sizes = [(4000, 4000)] * 4
    graph = bench.expand_one("all_reduce", sizes, "ring", reduce_bw_bps=8 * 10**9).graph
    adding = graph.kind == COMPUTE
    assert adding.sum() == 4 * 3  # n-1 steps at every rank
    assert set(graph.dur_ns[adding].tolist()) == {1000}
    assert set(graph.stream[adding].tolist()) == {INTERNAL_STREAM}
    assert bench.longest_ns(graph) == 6 * 1000 + 3 * 1000
    gathering = bench.expand_one("all_gather", [(10, 40)] * 4, reduce_bw_bps=10**9).graph
    assert not (gathering.kind == COMPUTE).any()


def test_transfers_inside_a_server_take_scale_up_time(bench: Any) -> None:
    sizes = [(8000, 8000)] * 4
    free = bench.expand_one("all_reduce", sizes, "hierarchical:2").graph
    timed = bench.expand_one("all_reduce", sizes, "hierarchical:2", scale_up_bps=8 * 10**9).graph
    assert bench.longest_ns(free) == 2 * 2000
    assert bench.longest_ns(timed) == 4000 + 2 * 2000 + 4000  # (g-1)/g S, ring over 2, (g-1)/g S
    assert messages_sha256(free) == messages_sha256(timed)


def test_direct_all_reduce_gates_each_chunk_on_its_own_inputs(bench: Any) -> None:
    graph = bench.expand_one("all_reduce", [(400, 400)] * 4, "direct").graph
    second = [m for m in graph.messages if graph.step[m] >= 3]
    for message in second:
        before = {
            int(m)
            for m in graph.messages
            if graph.step[m] < 3 and int(message) in bench.reach(graph, int(m))
        }
        assert {int(graph.dst[m]) for m in before} == {int(graph.src[message])}
        assert len(before) == 3


def test_groups_are_the_messages_of_one_step_and_lane(bench: Any) -> None:
    graph = bench.expand_one("all_reduce", [(960, 960)] * 4, "direct", channels=2).graph
    rows = graph.messages
    assert (graph.group[rows] >= 0).all()
    assert set(graph.group[graph.kind != MESSAGE].tolist()) == {-1}
    for group in np.unique(graph.group[rows]):
        together = rows[graph.group[rows] == group]
        assert len(together) == 4
        assert len(set(graph.src[together].tolist())) == len(set(graph.dst[together].tolist())) == 4
        assert len(set(graph.step[together].tolist())) == 1
    assert len(np.unique(graph.group[rows])) == 6 * 2


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_messages_are_numbered_by_step_and_steps_only_increase(bench: Any, data: Any) -> None:
    kind, algorithm = data.draw(st.sampled_from(WAYS))
    n = data.draw(st.sampled_from([2, 4, 8]))
    sizes = sizes_of(kind, n, data.draw(st.integers(0, 40)))
    root = 0 if kind in ("broadcast", "reduce", "gather", "scatter") else None
    graph = bench.expand_one(
        kind, sizes, algorithm, root=root, **data.draw(st.sampled_from(REFINEMENTS))
    ).graph
    graph.topological_order()
    rows = graph.messages
    assert (graph.size_bytes[rows] > 0).all()
    assert (graph.src[rows] != graph.dst[rows]).all()
    assert (np.diff(graph.step[rows]) >= 0).all()
    between = (graph.kind[graph.arcs.before] == MESSAGE) & (graph.kind[graph.arcs.after] == MESSAGE)
    before, after = graph.arcs.before[between], graph.arcs.after[between]
    assert (graph.step[before] < graph.step[after]).all()
    assert (graph.dst[before] == graph.src[after]).all()


def two_steps(bench: Any, **header: Any) -> Any:
    """Compute, all_reduce and compute on two ranks; the second computation on another stream."""
    reduce = bench.collective(
        "all_reduce", [(8, 8)] * 2, number=2, stream=1, deps={0: (0,), 1: (1,)}
    )
    later = [
        Compute(id=3 + rank, rank=rank, stream=0, dur_ns=70, iter=0, deps=(2,)) for rank in (0, 1)
    ]
    first = [Compute(id=rank, rank=rank, stream=0, dur_ns=100, iter=0) for rank in (0, 1)]
    return bench.workload(2, *first, reduce, *later, **header)


def test_streams_dependencies_and_the_next_iteration(bench: Any) -> None:
    graph = expand(two_steps(bench), rails(nodes=2)).graph
    arcs = {
        (int(graph.op[b]), int(graph.op[a]), ORIGINS[o], int(d))
        for b, a, o, d in zip(
            graph.arcs.before, graph.arcs.after, graph.arcs.origin, graph.arcs.distance, strict=True
        )
    }
    assert arcs == {
        (0, 2, "recorded", 0),
        (1, 2, "recorded", 0),
        (2, 3, "recorded", 0),
        (2, 4, "recorded", 0),
        (0, 3, "stream", 0),
        (1, 4, "stream", 0),
        (2, 2, "collective", 0),
        (3, 0, "iteration", 1),
        (4, 1, "iteration", 1),
        (2, 2, "iteration", 1),
    }
    wraps = graph.arcs.distance == 1
    assert (graph.kind[graph.arcs.before[wraps]] != MESSAGE).all()
    assert bench.longest_ns(graph) == 100 + 2 * 4 + 70
    positions = {
        (int(graph.op[t]), int(graph.rank[t])): int(graph.position[t])
        for t in range(graph.tasks)
        if graph.kind[t] == COMPUTE
    }
    assert positions == {(0, 0): 0, (1, 1): 0, (3, 0): 1, (4, 1): 1}


def test_compute_scale_multiplies_durations(bench: Any) -> None:
    graph = expand(two_steps(bench, compute_scale=0.25), rails(nodes=2)).graph
    assert sorted(graph.dur_ns[graph.kind == COMPUTE].tolist()) == [18, 18, 25, 25]


def test_starts_after_waits_for_the_start_and_not_the_end(bench: Any) -> None:
    first = Compute(id=0, rank=0, stream=0, dur_ns=100, iter=0)
    other = Compute(id=1, rank=0, stream=1, dur_ns=30, iter=0, starts_after=(0,))
    last = Compute(id=2, rank=0, stream=1, dur_ns=5, iter=0, deps=(0,))
    graph = expand(bench.workload(2, first, other, last), rails(nodes=2)).graph
    assert bench.longest_ns(graph) == 105
    assert sorted(graph.kind.tolist()) == [COMPUTE, COMPUTE, COMPUTE, MARKER]
    started = int(np.flatnonzero(graph.kind == MARKER)[0])
    assert graph.position[started] == 0
    assert graph.position[started + 1] == 1


def test_starts_after_a_collective_waits_for_its_entry(bench: Any) -> None:
    op = bench.collective("all_reduce", [(1000, 1000)] * 2)
    other = Compute(id=1, rank=0, stream=1, dur_ns=30, iter=0, starts_after=(0,))
    graph = expand(bench.workload(2, op, other), rails(nodes=2)).graph
    task = int(np.flatnonzero(graph.kind == COMPUTE)[0])
    before = graph.arcs.before[(graph.arcs.after == task) & (graph.arcs.distance == 0)]
    assert before.tolist() == [bench.enters(graph)[0]]


def test_the_last_iteration_is_taken_and_the_rest_counted(bench: Any) -> None:
    computes = [
        Compute(id=i, rank=0, stream=0, dur_ns=10 * i + 1, iter=iteration, deps=deps)
        for i, (iteration, deps) in enumerate([(None, ()), (5, ()), (6, (1,)), (6, (2,))])
    ]
    workload = bench.workload(2, *computes, iterations=(5, 6))
    expansion = expand(workload, rails(nodes=2))
    assert expansion.graph.dur_ns.tolist() == [21, 31]
    assert {loss.what: loss.count for loss in expansion.losses} == {
        "operation outside every iteration": 1,
        "dependency of another iteration": 1,
    }
    earlier = expand(workload, rails(nodes=2), ExpansionOptions(iteration=5))
    assert earlier.graph.dur_ns.tolist() == [11]


def test_ranks_that_share_a_node_send_nothing_to_each_other(bench: Any) -> None:
    op = bench.collective("all_reduce", [(400, 400)] * 4)
    expansion = expand(bench.workload(4, op), rails(nodes=2), rank_to_node=(0, 0, 1, 1))
    graph = expansion.graph
    assert traffic_matrix(graph).tolist() == [[0, 600], [600, 0]]
    leaves = (graph.position == 1) & (graph.stream >= 0)
    for task in np.flatnonzero((graph.position == 0) & (graph.stream >= 0)):
        assert set(np.flatnonzero(leaves).tolist()) <= bench.reach(graph, int(task))


def test_a_group_of_one_and_an_empty_collective_move_nothing(bench: Any) -> None:
    alone = bench.collective("all_reduce", [(400, 400)], group="one", ranks=[0])
    groups = {"one": Group(ranks=(0,)), "g": Group(ranks=(0, 1))}
    nothing = bench.collective("all_to_all", [(0, 0)] * 2, number=1)
    graph = expand(bench.workload(2, alone, nothing, groups=groups), rails(nodes=2)).graph
    assert len(graph.messages) == 0
    assert graph.tasks == 2 + 4


def test_send_recv_goes_from_root_to_peer(bench: Any) -> None:
    part = {1: Participation(in_bytes=None, out_bytes=77, stream=3)}
    part[2] = Participation(in_bytes=77, out_bytes=None, stream=4)
    op = Collective(id=9, kind="send_recv", group="g", ranks=part, iter=0, root=2, peer=1)
    graph = expand(bench.workload(4, op), rails(nodes=4)).graph
    assert traffic_matrix(graph)[2, 1] == traffic_matrix(graph).sum() == 77


def test_choices_for_one_group_and_recorded_algorithms(bench: Any) -> None:
    groups = {name: Group(ranks=(0, 1, 2, 3)) for name in ("a", "b", "c")}
    ops = [
        bench.collective("all_reduce", [(40, 40)] * 4, number=i, group=name, algo=algo)
        for i, (name, algo) in enumerate([("a", None), ("b", None), ("c", "TREE"), ("c", "NVLS")])
    ]
    options = ExpansionOptions(collectives={"all_reduce@a": "direct"})
    graph = expand(bench.workload(4, *ops, groups=groups), rails(nodes=4), options).graph
    messages = np.bincount(graph.op[graph.messages])
    assert messages.tolist() == [24, 24, 12, 24]
    assert bench.longest_ns(graph) == 2 * 10 + 6 * 10 + 4 * 20 + 6 * 10


def test_recorded_hosts_are_servers(bench: Any) -> None:
    op = bench.collective("all_reduce", [(400, 400)] * 4)
    placement = {0: "x", 1: "y", 2: "x", 3: "y"}
    options = ExpansionOptions(collectives={"all_reduce": "hierarchical"})
    graph = expand(bench.workload(4, op, placement=placement), rails(nodes=4), options).graph
    matrix = traffic_matrix(graph)
    assert matrix[0, 2] == matrix[1, 3] == 0
    assert matrix.sum() == 2 * 400


def test_the_hash_depends_on_messages_only(bench: Any) -> None:
    sizes = [(960, 960)] * 4
    base = bench.expand_one("all_reduce", sizes)
    assert base.sha256 == bench.expand_one("all_reduce", sizes).sha256
    assert base.sha256 == bench.expand_one("all_reduce", sizes, eager_send=True).sha256
    others = [
        bench.expand_one("all_reduce", sizes, "direct").sha256,
        bench.expand_one("all_reduce", sizes, protocol="LL").sha256,
        bench.expand_one("all_reduce", sizes, split="planes").sha256,
        bench.expand_one("all_reduce", [(964, 964)] * 4).sha256,
    ]
    assert len({base.sha256, *others}) == 5


def test_the_hash_is_of_little_endian_columns(bench: Any) -> None:
    expansion = bench.expand_one("all_reduce", [(4, 4)] * 2)
    # two chunks of 2 bytes; enter markers are tasks 0 and 1, messages 2 to 5
    columns = [[2, 4], [2, 3, 4, 5], [0] * 4, [0, 1] * 2, [1, 0] * 2, [2] * 4, [0, 0, 1, 1]]
    numbers = [number for column in columns for number in column]
    assert expansion.sha256 == hashlib.sha256(struct.pack("<26q", *numbers)).hexdigest()
