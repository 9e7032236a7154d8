from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model import _kernels_nic, nic
from scheduler.model.nic import account_nics, wire_ns
from scheduler.model.taskgraph import MESSAGE, Arcs, TaskGraph
from scheduler.model.timeline import NONE, Circuits, Timeline, Transfers
from topologies import Fabric, FabricError, Plane

if TYPE_CHECKING:
    from scheduler.model.nic import Injection

Execution: TypeAlias = tuple[TaskGraph, Fabric, Timeline]
EMPTY = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Moved:
    """One transfer, by hand."""

    task: int
    plane: int
    start: int
    size: int
    hop: int = 0
    via: tuple[int, int] | None = None


def fabric(nodes: int, *rates_bps: int, latency_ns: int = 0) -> Fabric:
    planes = tuple(Plane(node_of=tuple(range(nodes)), rate_bps=rate) for rate in rates_bps)
    return Fabric(nodes=nodes, planes=planes, latency_ns=latency_ns)


def messages(nodes: int, *triples: tuple[int, int, int]) -> TaskGraph:
    src, dst, size = (np.array(column, np.int64) for column in zip(*triples, strict=True))
    none = np.full(len(src), NONE, np.int64)
    return TaskGraph(
        nodes=nodes,
        kind=np.full(len(src), MESSAGE, np.int64),
        op=none,
        rank=none,
        stream=none,
        position=none,
        src=src,
        dst=dst,
        size_bytes=size,
        dur_ns=np.zeros(len(src), np.int64),
        group=none,
        step=none,
        arcs=Arcs(before=EMPTY, after=EMPTY, distance=EMPTY, origin=EMPTY),
    )


def timeline(graph: TaskGraph, on: Fabric, ready: list[int], moved: list[Moved]) -> Timeline:
    moved = sorted(moved, key=lambda m: m.start)
    plane = np.array([m.plane for m in moved], np.int64)
    size = np.array([m.size for m in moved], np.int64)
    start = np.array([m.start for m in moved], np.int64)
    ends = [m.via or (int(graph.src[m.task]), int(graph.dst[m.task])) for m in moved]
    transfers = Transfers(
        task=np.array([m.task for m in moved], np.int64),
        hop=np.array([m.hop for m in moved], np.int64),
        from_node=np.array([e[0] for e in ends], np.int64),
        to_node=np.array([e[1] for e in ends], np.int64),
        plane=plane,
        circuit=np.full(len(moved), NONE, np.int64),
        size_bytes=size,
        start_ns=start,
        end_ns=start + wire_ns(on, plane, size) + on.latency_ns,
    )
    return Timeline(
        iterations=1,
        ready_ns=np.array(ready, np.int64),
        start_ns=np.array(ready, np.int64),
        end_ns=np.array(ready, np.int64),
        transfers=transfers,
        circuits=Circuits(**dict.fromkeys(Circuits.__slots__, EMPTY)),
    )


def brute_force(  # noqa: C901, PLR0912, PLR0915 (a twin is one plain walk)
    graph: TaskGraph, on: Fabric, run: Timeline, injection: Injection, *, feedback: int, mtu: int
) -> tuple[dict[tuple[int, int], list[int]], list[int], int]:
    """Walk ns by ns, in nanobits: per (node, dst) what is held at the begin and the end of each.

    Also the peaks per node, in bytes, and how many ns that were.
    """
    unit = 8 * 10**9
    moved, late = run.transfers, on.latency_ns
    rows = range(len(moved.task))
    rate = [on.planes[int(p)].rate_bps for p in moved.plane]
    left = [int(b) * unit for b in moved.size_bytes]
    inbound = list(left)
    total = sum(left)
    slowest = min(plane.rate_bps for plane in on.planes)
    horizon = int(max(run.ready_ns.max(), moved.start_ns.max())) + total // slowest + late + 3
    unsent = [int(b) * unit for b in graph.size_bytes]
    outside = list(unsent)
    aggregate = [sum(p.rate_bps for p in on.planes for n in p.node_of if n == node)
                 for node in range(on.nodes)]  # fmt: skip
    held: dict[tuple[int, int], int] = {}
    level: dict[tuple[int, int], list[int]] = {}
    for node in range(on.nodes):
        for dst in range(on.nodes):
            held[node, dst] = 0
            level[node, dst] = []
    order = sorted(range(len(graph.size_bytes)), key=lambda m: (run.ready_ns[m], m))

    def look(now: int, window: dict[tuple[int, int], int]) -> None:
        for at, have in held.items():
            own = have
            if injection == "paced" and at in window:
                ready = sum(unsent[m] for m in order if run.ready_ns[m] <= now
                            and (graph.src[m], graph.dst[m]) == at)  # fmt: skip
                own += min(window[at] + mtu * unit, ready)
            level[at].append(own)

    def serving(now: int) -> list[int]:
        return [r for r in rows if moved.start_ns[r] <= now and left[r] > 0]

    for now in range(horizon):
        window: dict[tuple[int, int], int] = {}
        for r in serving(now):
            if moved.hop[r] == 0:
                at = int(moved.from_node[r]), int(graph.dst[moved.task[r]])
                window[at] = window.get(at, 0) + rate[r] * feedback
        look(now, window)
        need: dict[int, int] = {}
        for r in serving(now):
            m = int(moved.task[r])
            amount = min(rate[r], left[r])
            left[r] -= amount
            at = int(moved.from_node[r]), int(graph.dst[m])
            if moved.hop[r] == 0:
                need[m] = need.get(m, 0) + amount
            else:
                held[at] -= amount
        for r in rows:
            m = int(moved.task[r])
            relayed = moved.hop[r] == 0 and moved.to_node[r] != graph.dst[m]
            if relayed and moved.start_ns[r] + late <= now and inbound[r] > 0:
                amount = min(rate[r], inbound[r])
                inbound[r] -= amount
                held[int(moved.to_node[r]), int(graph.dst[m])] += amount
        spare = list(aggregate)
        for m, amount in need.items():
            entering = min(outside[m], amount)
            outside[m] -= entering
            unsent[m] -= amount
            spare[graph.src[m]] -= entering
            if injection == "eager":
                held[int(graph.src[m]), int(graph.dst[m])] += entering - amount
        if injection == "eager":
            for m in order:
                if m not in need and run.ready_ns[m] <= now:
                    entering = max(0, min(outside[m], spare[graph.src[m]]))
                    outside[m] -= entering
                    spare[graph.src[m]] -= entering
                    held[int(graph.src[m]), int(graph.dst[m])] += entering
        look(now, window)
    peaks = [
        max(sum(level[node, dst][t] for dst in range(on.nodes)) for t in range(2 * horizon))
        for node in range(on.nodes)
    ]
    return level, [-(-p // unit) for p in peaks], horizon


@st.composite
def executions(draw: st.DrawFn) -> Execution:
    """Random messages on up to three planes of odd rates, in pieces and over relays."""
    nodes = 4
    rates = draw(st.lists(st.sampled_from([8, 12, 20, 56, 100]), min_size=1, max_size=3))
    on = fabric(nodes, *(r * 10**9 for r in rates), latency_ns=draw(st.sampled_from([0, 3])))
    pairs = st.tuples(st.integers(0, 3), st.integers(0, 3)).filter(lambda p: p[0] != p[1])
    triples = draw(
        st.lists(st.tuples(pairs, st.integers(1, 40)).map(lambda t: (*t[0], t[1])), min_size=1,
                 max_size=4)
    )  # fmt: skip
    graph = messages(nodes, *triples)
    free: dict[tuple[str, int, int], int] = {}
    ready, moved = [], []
    for m, (src, dst, size) in enumerate(triples):
        ready.append(draw(st.integers(0, 40)))
        at = ready[-1]
        left = size
        while left > 0:
            piece = draw(st.integers(1, left)) if draw(st.booleans()) else left
            relays = [n for n in range(nodes) if n not in (src, dst)]
            via = draw(st.sampled_from([dst, dst, *relays]))
            hops = [(src, via), (via, dst)] if via != dst else [(src, dst)]
            earliest = at
            for hop, (a, b) in enumerate(hops):
                plane = draw(st.integers(0, len(rates) - 1))
                keys = ("out", plane, a), ("in", plane, b)
                start = max(earliest + draw(st.integers(0, 9)), *(free.get(k, 0) for k in keys))
                took = on.planes[plane].transfer_ns(piece)
                for key in keys:
                    free[key] = start + took
                moved.append(Moved(m, plane, start, piece, hop, (a, b)))
                earliest = start + took + on.latency_ns
            left -= piece
            if draw(st.booleans()):
                at = moved[-1].start
    return graph, on, timeline(graph, on, ready, moved)


@pytest.mark.parametrize("injection", ["eager", "paced"])
@settings(max_examples=40, deadline=None)
@given(executions(), st.integers(0, 6), st.integers(1, 30))
def test_accounting_equals_a_walk_ns_by_ns(
    injection: Injection, execution: Execution, feedback: int, mtu: int
) -> None:
    graph, on, run = execution
    account = account_nics(graph, on, run, injection, feedback_ns=feedback, mtu_bytes=mtu)
    level, peaks, _ = brute_force(graph, on, run, injection, feedback=feedback, mtu=mtu)
    assert account.peak_bytes.tolist() == peaks
    for node, when in enumerate(account.peak_ns.tolist()):
        around = [2 * when, max(0, 2 * when - 1)]  # from the right, from the left
        totals = [sum(level[node, dst][k] for dst in range(on.nodes)) for k in around]
        assert peaks[node] in [-(-total // (8 * 10**9)) for total in totals]
    for (node, dst), amounts in level.items():
        mine = (account.node == node) & (account.dst == dst)
        if not mine.any():
            assert max(amounts) == 0
            continue
        times, values = account.t_ns[mine], account.bytes[mine]
        assert (np.diff(times) >= 0).all()
        for time, value in zip(times.tolist(), values.tolist(), strict=True):
            around = [amounts[2 * time], amounts[2 * time - 1] if time else 0]
            assert value in [-(-amount // (8 * 10**9)) for amount in around]
        assert values.max() == -(-max(amounts) // (8 * 10**9))
        changes = [k for k in range(1, len(amounts)) if amounts[k] != amounts[k - 1]]
        turns = [
            (later // 2, amounts[later - 1])
            for earlier, later in pairwise(changes)
            if amounts[earlier - 1] < amounts[later - 1] > amounts[later]
        ]
        points = set(zip(times.tolist(), values.tolist(), strict=True))
        assert {(t, -(-amount // (8 * 10**9))) for t, amount in turns} <= points


@pytest.mark.parametrize("injection", ["eager", "paced"])
@settings(max_examples=15, deadline=None)
@given(execution=executions())
def test_compiled_and_uncompiled_accounts_agree(injection: Injection, execution: Execution) -> None:
    graph, on, run = execution
    with pytest.MonkeyPatch.context() as patch:
        compiled = account_nics(graph, on, run, injection)
        patch.setattr(_kernels_nic, "account_node", vars(_kernels_nic)["account_node"].py_func)
        plain = account_nics(graph, on, run, injection)
    for name in ("peak_bytes", "peak_ns", "transit_peak_bytes", "node", "dst", "t_ns", "bytes"):
        assert np.array_equal(getattr(compiled, name), getattr(plain, name)), name


def test_a_message_that_leaves_at_once_never_waits() -> None:
    on = fabric(2, 800 * 10**9, 800 * 10**9)
    graph = messages(2, (0, 1, 10_000))
    run = timeline(graph, on, [0], [Moved(0, 0, 0, 10_000)])
    assert account_nics(graph, on, run).peak_bytes.tolist() == [0, 0]


def test_an_eager_message_waits_for_its_circuit_in_the_nic() -> None:
    on = fabric(2, 800 * 10**9, 800 * 10**9)
    graph = messages(2, (0, 1, 10_000))
    run = timeline(graph, on, [100], [Moved(0, 0, 120, 10_000)])  # 20 ns at 200 bytes per ns
    account = account_nics(graph, on, run)
    assert account.peak_bytes.tolist() == [4_000, 0]
    assert account.peak_ns.tolist() == [120, 0]
    points = list(zip(account.t_ns.tolist(), account.bytes.tolist(), strict=True))
    assert points == [(0, 0), (100, 0), (120, 4_000), (180, 4_000), (220, 0)]


def test_a_paced_queue_holds_its_window_only_while_served() -> None:
    on = fabric(2, 800 * 10**9)
    graph = messages(2, (0, 1, 1_000_000))
    run = timeline(graph, on, [0], [Moved(0, 0, 50_000, 1_000_000)])
    account = account_nics(graph, on, run, "paced")
    window = 100 * 2_000 + 4_096
    assert account.peak_bytes.tolist() == [window, 0]
    assert account.peak_ns.tolist() == [50_000, 0]
    assert account.t_ns.tolist() == [
        0,
        50_000,
        50_000,
        50_000 + (1_000_000 - window) // 100,
        60_000,
    ]
    assert account.bytes.tolist() == [0, 0, window, 204_196 - 100, 0]


def test_transit_waits_at_the_relay_and_late_pieces_wait_at_the_receiver() -> None:
    on = fabric(3, 8 * 10**9, 8 * 10**9)  # 1 byte per ns
    graph = messages(3, (0, 2, 100))
    moved = [
        Moved(0, 0, 0, 60, 0, (0, 1)),
        Moved(0, 0, 200, 60, 1, (1, 2)),
        Moved(0, 0, 60, 40, 0, (0, 2)),
    ]
    account = account_nics(graph, on, timeline(graph, on, [0], moved))
    assert account.transit_peak_bytes.tolist() == [0, 60, 0]
    assert account.peak_bytes.tolist()[1] == 60
    assert account.reorder_peak_bytes.tolist() == [0, 0, 40]


def test_bytes_in_the_order_they_left_are_never_out_of_order() -> None:
    on = fabric(3, 8 * 10**9, 8 * 10**9)
    graph = messages(3, (0, 2, 100))
    moved = [Moved(0, 0, 0, 60, 0, (0, 1)), Moved(0, 0, 60, 60, 1, (1, 2)),
             Moved(0, 1, 130, 40, 0, (0, 2))]  # fmt: skip
    account = account_nics(graph, on, timeline(graph, on, [0], moved))
    assert account.reorder_peak_bytes.tolist() == [0, 0, 0]


def test_a_message_never_sent_stays_in_the_nic() -> None:
    on = fabric(2, 8 * 10**9)
    graph = messages(2, (0, 1, 500), (0, 1, 7))
    run = timeline(graph, on, [10, 10], [Moved(1, 0, 20, 7)])
    account = account_nics(graph, on, run)
    assert account.peak_bytes.tolist() == [500, 0]
    unreached = replace(run, ready_ns=np.array([NONE, 10]))
    assert account_nics(graph, on, unreached).peak_bytes.tolist() == [7, 0]


def test_rates_without_a_common_unit_are_refused() -> None:
    on = fabric(2, 123_456_789)
    graph = messages(2, (0, 1, 10**9))
    run = timeline(graph, on, [0], [Moved(0, 0, 0, 10**9)])
    with pytest.raises(FabricError, match="use rates in whole Mbps"):
        account_nics(graph, on, run)


def test_wire_times_agree_with_the_plane() -> None:
    on = fabric(2, 800 * 10**9, 123_456_789)
    sizes = np.array([1, 99, 12_345_678, 1], np.int64)
    planes = np.array([0, 0, 1, 1], np.int64)
    expected = [on.planes[p].transfer_ns(int(b)) for p, b in zip(planes, sizes, strict=True)]
    assert wire_ns(on, planes, sizes).tolist() == expected
    assert nic.FEEDBACK_NS == 2_000


def test_times_rounded_to_whole_ns_do_not_serve_two_queues_at_once() -> None:
    on = fabric(3, 800 * 10**9)
    graph = messages(3, (0, 1, 999_950), (0, 2, 999_950))
    apart = timeline(graph, on, [0, 0], [Moved(0, 0, 0, 999_950), Moved(1, 0, 10_000, 999_950)])
    close = timeline(graph, on, [0, 0], [Moved(0, 0, 0, 999_950), Moved(1, 0, 9_999, 999_950)])
    one = np.zeros(2, np.int64)
    columns = dict.fromkeys(Circuits.__slots__, one)
    circuits = Circuits(**{**columns, "dst_port": np.array([1, 2])})
    peaks = []
    for run in (apart, close):
        transfers = replace(run.transfers, circuit=np.array([0, 1]))
        run = replace(run, transfers=transfers, circuits=circuits)  # noqa: PLW2901 (on circuits)
        peaks.append(account_nics(graph, on, run, "paced").peak_bytes.tolist())
    assert peaks[0] == peaks[1] == [204_096, 0, 0]
