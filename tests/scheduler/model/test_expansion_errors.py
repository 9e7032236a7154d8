"""What cannot be expanded is refused in one sentence that names the operation and the remedy."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from scheduler.model.expansion import ExpansionOptions, expand
from scheduler.model.workload import Collective, Compute, Group
from topologies import FluxbedError, InputError, UsageError, rails

if TYPE_CHECKING:
    from collections.abc import Callable

FABRIC = rails(nodes=4)


def compute(number: int = 0, **fields: Any) -> Compute:
    return Compute(id=number, **({"stream": 0, "rank": 0, "dur_ns": 1, "iter": 0} | fields))


def reduce(bench: Any, **fields: Any) -> Collective:
    return bench.collective("all_reduce", [(8, 8)] * 4, **fields)


CASES: list[tuple[str, Callable[[Any], Any], type[FluxbedError], str]] = [
    (
        "unknown size",
        lambda b: b.workload(4, b.collective("all_gather", [(None, None)] * 4, number=17)),
        InputError,
        (
            "operation 17 (all_gather of group 'g'): its size is unknown, because the trace does "
            "not say how many bytes it moves: supply what each rank puts in, such as --size "
            "all_gather=4MiB"
        ),
    ),
    (
        "sizes disagree",
        lambda b: b.workload(4, b.collective("all_reduce", [(8, 8)] * 3 + [(12, 12)])),
        InputError,
        (
            "operation 0 (all_reduce): its members disagree on the size: 8, 12 bytes, because an "
            "all_reduce has one size for all: correct the sizes in the workload"
        ),
    ),
    (
        "negative size",
        lambda b: b.workload(4, b.collective("all_gather", [(-8, None)] * 4)),
        InputError,
        (
            "operation 0 (all_gather of group 'g'): its size is -8 bytes, because a size is from 0 "
            "to 1 PiB: correct it in the workload"
        ),
    ),
    (
        "size beyond 64 bits",
        lambda b: b.workload(4, b.collective("all_reduce", [(2**70, None)] * 4)),
        InputError,
        (
            "operation 0 (all_reduce of group 'g'): its size is 1180591620717411303424 bytes, "
            "because a size is from 0 to 1 PiB: correct it in the workload"
        ),
    ),
    (
        "splits of another group",
        lambda b: b.workload(
            4, b.collective("all_to_all", [(8, 8)] * 4, splits=dict.fromkeys(range(4), (1, 2)))
        ),
        InputError,
        (
            "operation 0 (all_to_all): rank 0 splits its data 2 ways, because its group has 4 "
            "members: correct its splits in the workload"
        ),
    ),
    (
        "absent rank",
        lambda b: b.workload(4, b.collective("all_reduce", [(8, 8)] * 3, ranks=(0, 1, 3))),
        InputError,
        (
            "operation 0 (all_reduce): a rank is missing, because rank 2 is a member and takes "
            "no part: add rank 2 to its ranks"
        ),
    ),
    (
        "stranger",
        lambda b: b.workload(4, reduce(b), groups={"g": Group(ranks=(0, 1, 2))}),
        InputError,
        (
            "operation 0 (all_reduce): 4 ranks take part, because its group has the members 0, "
            "1, 2: correct the group"
        ),
    ),
    (
        "rank outside the world",
        lambda b: dataclasses.replace(b.workload(4, reduce(b)), world=3),
        InputError,
        (
            "operation 0 (all_reduce): rank 3 takes part, because the ranks are 0 to 2: correct "
            "world or the group"
        ),
    ),
    (
        "computing rank outside the world",
        lambda b: b.workload(4, compute(5, rank=4)),
        InputError,
        (
            "operation 5 (compute): rank 4 takes part, because the ranks are 0 to 3: correct its "
            "rank or world"
        ),
    ),
    (
        "unknown group",
        lambda b: b.workload(4, reduce(b, group="h")),
        InputError,
        (
            "operation 0 (all_reduce): its group is 'h', because the workload has 1 groups and "
            "it is none of them: add the group to the header"
        ),
    ),
    (
        "unknown kind",
        lambda b: b.workload(4, b.collective("all_stars", [(8, 8)] * 4)),
        InputError,
        (
            "operation 0 (all_stars): its kind is 'all_stars', because the kinds of collective "
            "are all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, gather, "
            "scatter, barrier, send_recv: correct it in the workload"
        ),
    ),
    (
        "no root",
        lambda b: b.workload(4, b.collective("broadcast", [(8, 8)] * 4)),
        InputError,
        (
            "operation 0 (broadcast): its root is None, because its members are 0, 1, 2, 3: make "
            "one of them the root"
        ),
    ),
    (
        "send to oneself",
        lambda b: b.workload(4, b.collective("send_recv", [(8, 8)] * 4, root=1, peer=1)),
        InputError,
        (
            "operation 0 (send_recv): root is 1, peer 1, because it sends from one rank, root, "
            "to another, peer: correct them"
        ),
    ),
    (
        "two of one id",
        lambda b: b.workload(4, compute(3), compute(3)),
        InputError,
        (
            "made.workload.jsonl: two operations have the id 3, because dependencies name "
            "operations by id: give each its own"
        ),
    ),
    (
        "dangling dependency",
        lambda b: b.workload(4, compute(3, deps=(99,))),
        InputError,
        (
            "operation 3 of rank 0: it waits for operation 99, because there is no such "
            "operation: correct its deps in the workload"
        ),
    ),
    (
        "foreign dependency",
        lambda b: b.workload(
            4,
            b.collective("all_reduce", [(8, 8)] * 2, ranks=(1, 2), group="h"),
            compute(3, deps=(0,)),
            groups={"h": Group(ranks=(1, 2))},
        ),
        InputError,
        (
            "operation 3 of rank 0: it waits for operation 0, because rank 0 takes no part in "
            "that one: correct its deps in the workload"
        ),
    ),
    (
        "waits for itself",
        lambda b: b.workload(4, compute(3, deps=(4,)), compute(4)),
        InputError,
        (
            "made.workload.jsonl: operation 3 waits for itself, because its dependencies and the "
            "order of its streams form a circle through 3, 4: correct deps in the workload"
        ),
    ),
    (
        "negative duration",
        lambda b: b.workload(4, compute(3, dur_ns=-5)),
        InputError,
        (
            "operation 3 (compute): it lasts -5 ns on stream 0, because neither is negative, "
            "and an iteration has less than a year: correct it in the workload"
        ),
    ),
    (
        "no iteration",
        lambda b: b.workload(4, compute(), iterations=()),
        InputError,
        (
            "made.workload.jsonl: it has no iteration, because one iteration is what is "
            "replayed: list its iterations in the header"
        ),
    ),
    (
        "empty iteration",
        lambda b: b.workload(4, compute(iter=None)),
        InputError,
        (
            "made.workload.jsonl: iteration 0 has no operation, because an iteration is replayed "
            "by its operations: choose another iteration or correct the iter of the operations"
        ),
    ),
    (
        "scale",
        lambda b: b.workload(4, compute(), compute_scale=float("nan")),
        InputError,
        (
            "made.workload.jsonl: compute_scale is nan, because durations are multiplied by it: "
            "make it a number that is not negative"
        ),
    ),
    (
        "too many ranks",
        lambda b: b.workload(5, compute()),
        UsageError,
        (
            "fabric: 4 nodes for 5 ranks, because every rank needs a node: use nodes=5 or say "
            "which ranks share a node"
        ),
    ),
]


@pytest.mark.parametrize(
    ("make", "error", "sentence"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_bad_workloads(bench: Any, make: Any, error: type[FluxbedError], sentence: str) -> None:
    with pytest.raises(error) as refusal:
        expand(make(bench), FABRIC)
    assert str(refusal.value) == sentence


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"collectives": {"all_reduce": "snake"}},
            (
                "all_reduce: there is no algorithm 'snake', because the algorithms of all_reduce "
                "are ring, direct, halving-doubling, tree, hierarchical:GPUS: choose one of them"
            ),
        ),
        (
            {"collectives": {"allreduce@tp": "ring"}},
            (
                "allreduce@tp: there is no collective 'allreduce', because the kinds of "
                "collective are all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, "
                "reduce, gather, scatter, barrier, send_recv: did you mean all_reduce?"
            ),
        ),
        (
            {"collectives": {"all_reduce": "hierarchical:0"}},
            (
                "all_reduce: 'hierarchical:0' has no size, because a server has a number of "
                "GPUs: write hierarchical:8"
            ),
        ),
        (
            {"channels": 0},
            "expansion: channels=0, because the least possible is 1: correct channels",
        ),
        (
            {"split": "ports"},
            (
                "expansion: split='ports', because a message is split into a number of pieces, "
                "or into one per plane: write planes or a number"
            ),
        ),
        (
            {"protocol": "LL64"},
            (
                "expansion: there is no protocol 'LL64', because the protocols are Simple, LL, "
                "LL128: choose one of them"
            ),
        ),
        (
            {"sizes": {"all_gather": -1}},
            "all_gather: its size is -1 bytes, because a size is not negative: correct it",
        ),
    ],
)
def test_bad_options(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError) as refusal:
        ExpansionOptions(**options)
    assert str(refusal.value) == sentence


def test_algorithms_that_do_not_fit_a_group(bench: Any) -> None:
    with pytest.raises(UsageError, match="the group has 3 members, because it exchanges with"):
        bench.expand_one("all_reduce", [(8, 8)] * 3, "halving-doubling")
    with pytest.raises(UsageError, match="the group has 1 members in one server and 2 in another"):
        bench.expand_one("all_reduce", [(8, 8)] * 3, "hierarchical:2")
    with pytest.raises(UsageError, match="it is not known which ranks share a server"):
        bench.expand_one("all_reduce", [(8, 8)] * 4, "hierarchical")
    with pytest.raises(UsageError, match="there is no iteration 7"):
        expand(bench.workload(4, compute()), FABRIC, ExpansionOptions(iteration=7))
    with pytest.raises(UsageError, match="rank 1 is placed on node 4"):
        expand(bench.workload(2, compute()), FABRIC, rank_to_node=(0, 4))
    with pytest.raises(UsageError, match="1 ranks are placed"):
        expand(bench.workload(2, compute()), FABRIC, rank_to_node=(0,))


def test_more_messages_than_can_be_held(bench: Any) -> None:
    with pytest.raises(UsageError, match="one collective has 6000000000 messages"):
        bench.expand_one("all_reduce", [(10**9, 10**9)] * 4, chunk_bytes=1)
    with pytest.raises(UsageError, match="one collective has 24995000 messages"):
        bench.expand_one("all_gather", [(1, None)] * 5000)


def test_unknown_sizes_can_be_supplied_per_kind_and_per_group(bench: Any) -> None:
    groups = {name: Group(ranks=(0, 1)) for name in ("a", "b")}
    ops = [
        bench.collective(kind, [(None, None)] * 2, number=i, group=name, root=root, peer=peer)
        for i, (kind, name, root, peer) in enumerate(
            [
                ("all_gather", "a", None, None),
                ("all_gather", "b", None, None),
                ("all_to_all", "a", None, None),
                ("send_recv", "a", 0, 1),
                ("reduce_scatter", "a", None, None),
            ]
        )
    ]
    sizes = {
        "all_gather": 10,
        "all_gather@b": 70,
        "all_to_all": 6,
        "send_recv": 9,
        "reduce_scatter": 4,
    }
    expansion = expand(
        bench.workload(2, *ops, groups=groups), rails(nodes=2), ExpansionOptions(sizes=sizes)
    )
    graph = expansion.graph
    rows = graph.messages
    assert [int(graph.size_bytes[rows][graph.op[rows] == i].sum()) for i in range(5)] == [
        20, 140, 6, 9, 4,
    ]  # fmt: skip
    assert [(loss.what, loss.count) for loss in expansion.losses] == [("size assumed", 5)]


def test_known_sizes_are_not_overridden(bench: Any) -> None:
    expansion = bench.expand_one("all_gather", [(5, None)] * 2, sizes={"all_gather": 10})
    assert set(expansion.graph.size_bytes[expansion.graph.messages].tolist()) == {5}
    assert expansion.losses == ()


@pytest.mark.parametrize(
    ("kind", "sizes", "total"),
    [
        ("all_gather", [(None, 10)] * 2, 10),
        ("reduce_scatter", [(10, None)] * 2, 10),
        ("all_reduce", [(None, 10), (None, None)], 20),
        ("all_to_all", [(None, 10)] * 2, 10),
    ],
)
def test_one_side_is_enough(bench: Any, kind: str, sizes: Any, total: int) -> None:
    graph = bench.expand_one(kind, sizes).graph
    assert graph.size_bytes[graph.messages].sum() == total


def test_the_size_of_a_broadcast_is_its_roots(bench: Any) -> None:
    graph = bench.expand_one("broadcast", [(0, 0), (50, 50), (None, None)], root=1).graph
    assert graph.size_bytes[graph.messages].tolist() == [50, 50]


def test_a_chain_of_fifty_thousand_is_no_deeper_than_its_arrays(bench: Any) -> None:
    chain = [compute(i, deps=(i - 1,) if i else ()) for i in range(50_000)]
    graph = expand(bench.workload(2, *chain), rails(nodes=2)).graph
    assert graph.tasks == 50_000
    circle = [compute(0, deps=(49_999,)), *chain[1:]]
    with pytest.raises(
        InputError, match=r"operation 0 waits for itself.* through 0, 1, 2, 3, 4, \.\.\."
    ):
        expand(bench.workload(2, *circle), rails(nodes=2))
