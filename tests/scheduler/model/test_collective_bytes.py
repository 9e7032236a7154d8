"""The table of expansions: how many bytes each rank sends, for any group and any size."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model.expansion import ExpansionOptions, expand, traffic_matrix
from scheduler.model.flows import divide
from topologies import rails

REFINEMENTS: list[dict[str, Any]] = [
    {},
    {"channels": 3},
    {"chunk_bytes": 700},
    {"split": "planes"},
    {"channels": 2, "chunk_bytes": 500, "split": 3, "eager_send": True, "reduce_bw_bps": 10**9},
]
members = st.integers(2, 9)
elements = st.integers(0, 3000)
refinement = st.sampled_from(REFINEMENTS)
few = settings(max_examples=40, deadline=None)


def parts(total: int, count: int, element: int = 4) -> np.ndarray:
    return divide(np.array([total]), count, element)[0]


@few
@given(n=members, count=elements, options=refinement)
def test_ring_all_reduce_sends_everything_but_two_chunks_to_the_next(
    bench: Any, n: int, count: int, options: dict[str, Any]
) -> None:
    size = 4 * count
    matrix = traffic_matrix(
        bench.expand_one("all_reduce", [(size, size)] * n, "ring", dtype="Float", **options).graph
    )
    chunk = parts(size, n)
    ranks = np.arange(n)
    after = (ranks + 1) % n  # in the first half r never sends chunk r, in the second chunk r+1
    expected = 2 * size - chunk - chunk[after]
    assert matrix[ranks, after].tolist() == expected.tolist()
    assert matrix.sum() == 2 * (n - 1) * size


@few
@given(n=members, count=elements, options=refinement)
def test_direct_all_reduce(bench: Any, n: int, count: int, options: dict[str, Any]) -> None:
    size = 4 * count
    matrix = traffic_matrix(
        bench.expand_one("all_reduce", [(size, size)] * n, "direct", dtype="Float", **options).graph
    )
    chunk = parts(size, n)
    expected = np.add.outer(chunk, chunk)
    np.fill_diagonal(expected, 0)
    assert matrix.tolist() == expected.tolist()
    assert matrix.sum() == 2 * (n - 1) * size


@few
@given(n=members, count=elements, options=refinement)
def test_double_tree_all_reduce(bench: Any, n: int, count: int, options: dict[str, Any]) -> None:
    size = 4 * count
    matrix = traffic_matrix(
        bench.expand_one("all_reduce", [(size, size)] * n, "tree", dtype="Float", **options).graph
    )
    assert (matrix == matrix.T).all()
    assert matrix.sum() == 2 * (n - 1) * size
    busiest = matrix.sum(axis=1).max()
    assert busiest <= 3 * (parts(size, 2)[0]) * 2


@few
@given(power=st.integers(1, 4), count=elements, options=refinement)
def test_halving_doubling(bench: Any, power: int, count: int, options: dict[str, Any]) -> None:
    n, size = 2**power, 4 * count
    graph = bench.expand_one(
        "all_reduce", [(size, size)] * n, "halving-doubling", dtype="Float", **options
    ).graph
    matrix = traffic_matrix(graph)
    assert matrix.sum() == 2 * (n - 1) * size
    chunk = parts(size, n)
    for rank in range(n):
        for step in range(power):
            distance = n >> (step + 1)
            partner = rank ^ distance
            theirs = partner // distance * distance
            mine = rank // distance * distance
            expected = chunk[theirs : theirs + distance].sum() + chunk[mine : mine + distance].sum()
            assert matrix[rank, partner] == expected


@pytest.mark.parametrize("algorithm", ["ring", "direct", "halving-doubling"])
@few
@given(
    power=st.integers(1, 3), shards=st.lists(elements, min_size=8, max_size=8), options=refinement
)
def test_all_gather_and_reduce_scatter_mirror_each_other(
    bench: Any, algorithm: str, power: int, shards: list[int], options: dict[str, Any]
) -> None:
    n = 2**power
    own = 4 * np.array(shards[:n])
    total = int(own.sum())
    gathered = bench.expand_one(
        "all_gather", [(int(s), total) for s in own], algorithm, dtype="Float", **options
    )
    scattered = bench.expand_one(
        "reduce_scatter", [(total, int(s)) for s in own], algorithm, dtype="Float", **options
    )
    out, back = traffic_matrix(gathered.graph), traffic_matrix(scattered.graph)
    assert out.sum() == back.sum() == (n - 1) * total
    assert out.sum(axis=0).tolist() == (total - own).tolist()  # all but one's own is received
    ranks = np.arange(n)
    after = (ranks + 1) % n
    if algorithm == "ring":
        assert out[ranks, after].tolist() == (total - own[after]).tolist()
        assert back[ranks, after].tolist() == (total - own).tolist()
    elif algorithm == "direct":
        assert all(
            out[i, j] == own[i] and back[i, j] == own[j] for i in ranks for j in ranks if i != j
        )
    else:
        assert (out == back.T).all()


@few
@given(
    n=members,
    data=st.lists(st.lists(st.integers(0, 5000), min_size=9, max_size=9), min_size=9, max_size=9),
    options=refinement,
)
def test_all_to_all_sends_the_splits_and_keeps_the_diagonal(
    bench: Any, n: int, data: list[list[int]], options: dict[str, Any]
) -> None:
    splits = {rank: tuple(data[rank][:n]) for rank in range(n)}
    sizes = [(sum(splits[r]), sum(splits[p][r] for p in range(n))) for r in range(n)]
    matrix = traffic_matrix(bench.expand_one("all_to_all", sizes, splits=splits, **options).graph)
    expected = np.array([splits[r] for r in range(n)])
    np.fill_diagonal(expected, 0)
    assert matrix.tolist() == expected.tolist()


@few
@given(n=members, size=st.integers(0, 10**5))
def test_even_all_to_all(bench: Any, n: int, size: int) -> None:
    matrix = traffic_matrix(bench.expand_one("all_to_all", [(size, size)] * n).graph)
    share = parts(size, n, 1)
    assert all(matrix[i, j] == share[j] for i in range(n) for j in range(n) if i != j)


@pytest.mark.parametrize(
    "way", list(itertools.product(["broadcast", "reduce"], ["ring", "chain", "tree", "direct"]))
)
@few
@given(n=members, place=st.integers(0, 8), size=st.integers(0, 10**5))
def test_broadcast_and_reduce_move_everything_over_n_minus_1_edges(
    bench: Any, way: tuple[str, str], n: int, place: int, size: int
) -> None:
    root = place % n
    kind, algorithm = way
    graph = bench.expand_one(kind, [(size, size)] * n, algorithm, root=root).graph
    matrix = traffic_matrix(graph)
    matrix = matrix if kind == "broadcast" else matrix.T
    everyone_else = [0 if rank == root else size for rank in range(n)]
    assert matrix.sum(axis=0).tolist() == everyone_else
    assert set(matrix[matrix > 0].tolist()) <= {size}


@pytest.mark.parametrize("kind", ["gather", "scatter"])
@few
@given(shards=st.lists(st.integers(0, 5000), min_size=2, max_size=9), root=st.integers(0, 8))
def test_gather_and_scatter(bench: Any, kind: str, shards: list[int], root: int) -> None:
    root %= len(shards)
    sizes = [(s, None) if kind == "gather" else (None, s) for s in shards]
    matrix = traffic_matrix(bench.expand_one(kind, sizes, root=root).graph)
    expected = np.array([0 if rank == root else s for rank, s in enumerate(shards)])
    moved = matrix[:, root] if kind == "gather" else matrix[root]
    assert moved.tolist() == expected.tolist()
    assert matrix.sum() == expected.sum()


@few
@given(hosts=st.integers(1, 4), gpus=st.integers(1, 4), count=elements, options=refinement)
def test_hierarchical_all_reduce_sends_between_servers_only(
    bench: Any, hosts: int, gpus: int, count: int, options: dict[str, Any]
) -> None:
    n, size = hosts * gpus, 4 * count
    if n < 2:
        return
    sizes = [(size, size)] * n
    algorithm = f"hierarchical:{gpus}"
    graph = bench.expand_one("all_reduce", sizes, algorithm, dtype="Float", **options).graph
    matrix = traffic_matrix(graph)
    assert matrix.sum() == 2 * (hosts - 1) * size
    server = np.arange(n) // gpus
    assert matrix[server[:, None] == server].sum() == 0
    if hosts > 1:
        share = size / gpus
        assert np.abs(matrix.sum(axis=1) - 2 * (hosts - 1) / hosts * share).max() <= 4 * 2 * 4


def test_hierarchical_all_gather_and_reduce_scatter(bench: Any) -> None:
    for kind, size in (("all_gather", (100, 600)), ("reduce_scatter", (600, 100))):
        graph = bench.expand_one(kind, [size] * 6, "hierarchical:3").graph
        assert traffic_matrix(graph).sum() == 6 * 100  # every shard crosses once


@pytest.mark.parametrize(("protocol", "total"), [("Simple", 3600), ("LL", 7200), ("LL128", 3840)])
def test_protocol_factor(bench: Any, protocol: str, total: int) -> None:
    graph = bench.expand_one("all_reduce", [(600, 600)] * 4, "ring", protocol=protocol).graph
    assert traffic_matrix(graph).sum() == total


@pytest.mark.parametrize("times", [1, 2])
def test_nic_records_of_a_double_tree_over_three_nodes(bench: Any, times: int) -> None:
    """8 MiB, 3 nodes: one pair carried 8 MiB each way, the others 4 MiB (NIC-level capture).

    Two all_reduces carried twice as much.
    """
    size = 8 * 2**20
    one = traffic_matrix(bench.expand_one("all_reduce", [(size, size)] * 3, "tree").graph)
    assert one.tolist() == [
        [0, size // 2, size],
        [size // 2, 0, size // 2],
        [size, size // 2, 0],
    ]
    ops = [bench.collective("all_reduce", [(size, size)] * 3, number) for number in range(times)]
    options = ExpansionOptions(collectives={"all_reduce": "tree"})
    both = expand(bench.workload(3, *ops), rails(nodes=3), options)
    assert traffic_matrix(both.graph).sum() == times * 33_554_432


def test_nic_records_of_a_tree_over_two_nodes(bench: Any) -> None:
    """8 MiB up and down the one edge there is: 8,388,608 bytes each way."""
    size = 8 * 2**20
    matrix = traffic_matrix(bench.expand_one("all_reduce", [(size, size)] * 2, "tree").graph)
    assert matrix.tolist() == [[0, size], [size, 0]]


def test_nic_records_of_a_ring_over_two_nodes(bench: Any) -> None:
    """8 MiB, 2 nodes: 8,388,608 bytes each way."""
    size = 8 * 2**20
    matrix = traffic_matrix(bench.expand_one("all_reduce", [(size, size)] * 2, "ring").graph)
    assert matrix.tolist() == [[0, size], [size, 0]]


@pytest.mark.parametrize(
    ("nodes", "gpus", "protocol", "recorded", "within"),
    [
        (2, 3, "Simple", (13_991_936, 13_975_552), 8e-4),
        (2, 3, "LL", (27_951_104, 27_983_872), 8e-4),
        (2, 3, "LL128", (15_011_840, 14_868_480), 7e-3),
        (3, 3, "Simple", (14_913_081,), 1e-6),  # what the formula says
        (3, 3, "Simple", (14_925_824, 14_909_440, 14_909_440), 9e-4),
    ],
)
def test_nic_records_of_rings_over_servers(
    bench: Any, *, nodes: int, gpus: int, protocol: str, recorded: tuple[int, ...], within: float
) -> None:
    """A ring crosses each server boundary once: 2(n-1)/n S, to the next server only."""
    n, size = nodes * gpus, 8 * 2**20
    op = bench.collective("all_reduce", [(size, size)] * n)
    placed = [rank // gpus for rank in range(n)]
    options = ExpansionOptions(protocol=protocol)
    expansion = expand(bench.workload(n, op), rails(nodes=nodes), options, rank_to_node=placed)
    matrix = traffic_matrix(expansion.graph)
    for node in range(nodes):
        sent = matrix[node, (node + 1) % nodes]
        assert list(recorded) == pytest.approx([sent] * len(recorded), rel=within)
        assert matrix[node].sum() == sent


@few
@given(total=st.integers(0, 10**6), count=st.integers(1, 64), element=st.sampled_from([1, 2, 4, 8]))
def test_divide_is_exact_and_even(total: int, count: int, element: int) -> None:
    cut = divide(np.array([total]), count, element)[0]
    assert cut.sum() == total
    grain = element if total % element == 0 else 1
    assert cut.max() - cut.min() <= grain
    assert (cut % grain == 0).all()


@few
@given(
    n=members, count=st.integers(1, 3000), chunk=st.integers(4, 5000), channels=st.integers(1, 4)
)
def test_no_message_is_larger_than_a_chunk(
    bench: Any, n: int, count: int, chunk: int, channels: int
) -> None:
    size = 4 * count
    graph = bench.expand_one(
        "all_reduce",
        [(size, size)] * n,
        "ring",
        dtype="Float",
        chunk_bytes=chunk,
        channels=channels,
    ).graph
    messages = graph.size_bytes[graph.messages]
    assert messages.max(initial=0) <= max(4, -(-chunk // 4) * 4)
