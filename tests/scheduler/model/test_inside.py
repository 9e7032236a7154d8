"""Collectives inside one node: fewer tasks, and every member leaves when it would."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.dispatch.simulator import simulate
from scheduler.model.collectives import ALGORITHMS, Demand
from scheduler.model.expansion import expand
from scheduler.model.flows import Flows, duration_ns
from scheduler.model.inside import condensed
from scheduler.model.options import ExpansionOptions
from scheduler.model.problem import Problem
from scheduler.model.workload import Group
from scheduler.policies.registry import find
from topologies.servers import servers

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

RATE_BPS = 8 * 10**9
CASES = [
    (kind, name)
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
    for name in ALGORITHMS[kind]
    if name != "hierarchical"
]


def lasting_ns(flows: Flows) -> Any:
    """How long each row takes inside a node."""
    return np.where(
        flows.is_message, flows.dur_ns + duration_ns(flows.size_bytes, RATE_BPS), flows.dur_ns
    )


def exits_ns(flows: Flows, entries_ns: Sequence[int], *, eager: bool) -> list[int]:
    """When each member leaves, task by task in plain Python."""
    members = len(entries_ns)
    before: dict[int, list[int]] = {}
    for first, then in flows.local_arcs(members, eager_send=eager).tolist():
        before.setdefault(then, []).append(first)
    dur_ns = [0] * members + lasting_ns(flows).tolist() + [0] * members
    known: dict[int, int] = {}

    def end_ns(task: int) -> int:
        if task not in known:
            ready = max((end_ns(other) for other in before.get(task, [])), default=0)
            known[task] = dur_ns[task] + (entries_ns[task] if task < members else ready)
        return known[task]

    return [end_ns(members + flows.rows + member) for member in range(members)]


@settings(deadline=None)  # the first case loads the kernels
@given(
    case=st.sampled_from(CASES),
    entries_ns=st.lists(st.integers(0, 3000), min_size=2, max_size=8),
    sizes=st.lists(st.integers(0, 4000), min_size=8, max_size=8),
    lanes=st.integers(1, 3),
    eager=st.booleans(),
    reduced=st.booleans(),
)
def test_members_leave_when_all_transfers_say(
    case: tuple[str, str],
    entries_ns: list[int],
    sizes: list[int],
    lanes: int,
    *,
    eager: bool,
    reduced: bool,
) -> None:
    kind, name = case
    members = len(entries_ns)
    if name == "halving-doubling":
        members = 1 << (members.bit_length() - 1)
    data = np.array(sizes[:1] if kind == "broadcast" else sizes[:members], np.int64)
    flows = ALGORITHMS[kind][name](Demand(np.broadcast_to(data, members).copy())).lanes(lanes, 1)
    flows = flows.without_empty()
    flows = (flows.reduced(RATE_BPS) if reduced else flows).ordered()
    short = condensed(flows, members, lasting_ns(flows), eager_send=eager)
    assert short.rows <= flows.rows
    if short is not flows:
        assert not short.is_message.any()
    expected = exits_ns(flows, entries_ns[:members], eager=eager)
    assert exits_ns(short, entries_ns[:members], eager=eager) == expected


def test_a_ring_of_eight_is_a_few_tasks() -> None:
    flows = ALGORITHMS["all_reduce"]["ring"](Demand(np.full(8, 4000))).lanes(4, 1).ordered()
    short = condensed(flows, 8, lasting_ns(flows), eager_send=False)
    assert flows.rows == 4 * 8 * 14
    assert short.rows <= 8 * 8


def test_what_is_no_less_is_left_as_it_is() -> None:
    flows = ALGORITHMS["all_gather"]["direct"](Demand(np.array([1000, 2000])))
    assert condensed(flows, 2, lasting_ns(flows), eager_send=False) is flows


def test_an_iteration_ends_when_it_would_transfer_by_transfer(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fabric = servers(nodes=2, gpus=4, scale_up_bps=RATE_BPS)
    parts = {"g": range(8), "first": range(4), "second": range(4, 8)}
    workload = bench.workload(
        8,
        bench.collective("all_reduce", [(4096, 4096)] * 4, 0, range(4), group="first"),
        bench.collective("all_reduce", [(8192, 8192)] * 4, 1, range(4, 8), group="second"),
        bench.collective("all_reduce", [(4096, 4096)] * 8, 2),
        groups={name: Group(ranks=tuple(ranks)) for name, ranks in parts.items()},
        iterations=(0,),
    )
    ends_ns, tasks = [], []
    for shorten in (True, False):
        if not shorten:
            monkeypatch.setattr("scheduler.model.layout.condensed", lambda flows, *_, **__: flows)
        graph = expand(workload, fabric, ExpansionOptions(channels=2)).graph
        program = find("greedy").plan(Problem(graph=graph, fabric=fabric))
        timeline = simulate(graph, fabric, program, iterations=3)
        ends_ns.append(timeline.iteration_ends_ns.tolist())
        tasks.append(graph.tasks)
    assert ends_ns[0] == ends_ns[1]
    assert tasks[0] < tasks[1]
