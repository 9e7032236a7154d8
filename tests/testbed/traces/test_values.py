"""The right values of real captures (VALUES.md): bytes, counts, groups, splits, clocks."""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from scheduler.model.workload import Collective, Compute, Workload
from testbed.traces import load_recordings, load_workload
from testbed.traces.assembly import Options
from testbed.traces.clocks import offsets
from testbed.traces.joining import one_per_rank
from topologies.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from testbed.traces.capture import Recording

DLRM_K = "kineto/dlrm8.kineto.tar.gz"
DLRM_E = "execution-trace/dlrm8.et.tar.gz"
A2A_OUT = [53952, 58048, 60096, 104128, 69824, 53952, 57024, 58560]


def totals(recording: Recording) -> dict[tuple[int, str], tuple[int, int, int]]:
    count: Counter[tuple[int, str]] = Counter()
    sent: Counter[tuple[int, str]] = Counter()
    received: Counter[tuple[int, str]] = Counter()
    for call in recording.calls:
        key = call.step, call.kind
        count[key] += 1
        sent[key] += call.in_bytes or 0
        received[key] += call.out_bytes or 0
    return {key: (count[key], sent[key], received[key]) for key in count}


def one(shared: Path, name: str) -> Recording:
    (recording,) = load_recordings([shared / name])
    return recording


def collectives(workload: Workload) -> list[Collective]:
    return [op for op in workload.operations if isinstance(op, Collective)]


@pytest.fixture(scope="module")
def dlrm(shared: Path) -> Workload:
    return load_workload([shared / DLRM_K, shared / DLRM_E])


@pytest.fixture(scope="module")
def dlrm_kineto(shared: Path) -> Workload:
    return load_workload(shared / DLRM_K)


@pytest.fixture(scope="module")
def dlrm_et(shared: Path) -> Workload:
    return load_workload(shared / DLRM_E)


@pytest.mark.parametrize("name", [DLRM_K, DLRM_E])
def test_dlrm_sizes_per_rank(shared: Path, name: str) -> None:
    listed = load_recordings([shared / name])
    recordings = {r.rank: r for r in listed if r.rank is not None}
    assert sorted(recordings) == list(range(8))
    for rank, recording in recordings.items():
        found = {kind: value for (_, kind), value in totals(recording).items()}
        assert found["all_reduce"] == (3, 2485252, 2485252)
        assert found["all_to_all"] == (5, 64448, A2A_OUT[rank])
        reduced = [c.in_bytes for c in recording.calls if c.kind == "all_reduce"]
        assert reduced == [1576964, 448, 907840]


def test_both_dlrm_captures_agree_on_every_rank_and_operation(
    dlrm_kineto: Workload, dlrm_et: Workload
) -> None:
    pairs = 0
    one_side, other = collectives(dlrm_kineto), collectives(dlrm_et)
    assert len(one_side) == len(other) == 8
    for ours, theirs in zip(one_side, other, strict=True):
        assert ours.kind == theirs.kind
        for rank in range(8):
            a, b = ours.ranks[rank], theirs.ranks[rank]
            assert (a.in_bytes, a.out_bytes) == (b.in_bytes, b.out_bytes)
            pairs += 1
    assert pairs == 64


def test_et_alone_has_no_times_and_no_compute(dlrm_et: Workload) -> None:
    assert not any(isinstance(op, Compute) for op in dlrm_et.operations)
    parts = [part for op in collectives(dlrm_et) for part in op.ranks.values()]
    assert all(part.arrive_ns is None and part.end_ns is None for part in parts)


def test_et_waits_order_collectives(dlrm_et: Workload) -> None:
    first, second, *_ = collectives(dlrm_et)
    assert second.ranks[0].deps == (first.id,)


def test_the_execution_trace_tells_kineto_what_was_awaited(shared: Path) -> None:
    recordings = one_per_rank(load_recordings([shared / DLRM_K, shared / DLRM_E]), Options())
    for recording in recordings.values():
        awaited = [call for call in recording.calls if call.awaited_ns is not None]
        assert [call.seq for call in awaited] == [147, 148]  # 152's thread numbers otherwise
        for call in awaited:
            assert call.issued_ns is not None
            assert call.awaited_ns is not None
            assert call.issued_ns < call.awaited_ns


def test_recorded_splits_transpose(dlrm: Workload) -> None:
    exchanged = [op for op in collectives(dlrm) if op.kind == "all_to_all"]
    assert len(exchanged) == 5
    for op in exchanged:
        assert op.splits is not None
        for j in range(8):
            assert sum(op.splits[i][j] for i in range(8)) == op.ranks[j].out_bytes
    uneven = exchanged[3]
    assert uneven.splits is not None
    assert uneven.splits[0] == tuple(4 * n for n in (96, 224, 288, 1664, 592, 96, 192, 240))


@pytest.mark.parametrize("which", ["dlrm", "dlrm_kineto", "dlrm_et"])
def test_off_diagonal_total(which: str, request: pytest.FixtureRequest) -> None:
    workload: Workload = request.getfixturevalue(which)
    total = 0
    for op in collectives(workload):
        if op.kind == "all_reduce":
            total += 2 * 7 * (op.ranks[0].in_bytes or 0)
        else:
            assert op.splits is not None
            total += sum(n for i, row in op.splits.items() for j, n in enumerate(row) if i != j)
    assert total == 35_244_664


def test_waiting_is_no_compute(dlrm_kineto: Workload) -> None:
    # steps last 12.5 to 19.9 ms; without the wait for the last rank they are nearly equal
    work = Counter[int]()
    for op in dlrm_kineto.operations:
        if isinstance(op, Compute):
            work[op.rank] += op.dur_ns
    assert all(9_000_000 < work[rank] < 12_600_000 for rank in range(8))


def shifted(shared: Path, directory: Path, rank: int, by_us: int) -> Path:
    with tarfile.open(shared / DLRM_K) as archive:
        for member in archive.getmembers():
            stream = archive.extractfile(member)
            if stream is None:
                continue
            trace: dict[str, Any] = json.load(stream)
            if trace["distributedInfo"]["rank"] == rank:
                for event in trace["traceEvents"]:
                    if "ts" in event:
                        event["ts"] += by_us
            name = f"x{trace['distributedInfo']['rank'] * 3 % 8}.json"  # ranks shuffled
            (directory / name).write_text(json.dumps(trace))
    return directory


def test_a_clock_3_ms_ahead_is_recovered(
    shared: Path, tmp_path: Path, dlrm_kineto: Workload
) -> None:
    workload = load_workload(shifted(shared, tmp_path, 3, 3000))
    pairs = zip(collectives(workload), collectives(dlrm_kineto), strict=True)
    for moved, original in pairs:
        for rank in range(8):
            ours, theirs = moved.ranks[rank].end_ns, original.ranks[rank].end_ns
            assert ours is not None
            assert theirs is not None
            assert abs(ours - theirs) < 10_000
    aligned = [loss for loss in workload.losses if loss.what.startswith("clocks")]
    assert aligned[0].count == 1
    assert aligned[0].example is not None
    named, found_ns = aligned[0].example.removesuffix(" ns").split(": ")
    assert named == "rank 3"
    assert abs(int(found_ns) - 3_000_000) < 10_000


def test_aligned_clocks_stay(dlrm_kineto: Workload) -> None:
    assert not [loss for loss in dlrm_kineto.losses if loss.what.startswith("clocks")]
    assert offsets([]) == {}


def test_resnet_has_full_metadata(shared: Path) -> None:
    recording = one(shared, "kineto/resnet50-ddp-rank0of2.json.gz")
    assert (recording.kernels, len(recording.transport)) == (2700, 21)
    for step in (4, 5, 6):
        assert totals(recording)[step, "all_reduce"] == (5, 102228128, 102228128)
        assert totals(recording)[step, "broadcast"] == (2, 212904, 212904)
    assert {call.members for call in recording.calls} == {(0, 1)}
    first = [c.in_bytes for c in recording.calls if (c.step, c.kind) == (4, "all_reduce")]
    assert first == [8_196_000, 31_502_336, 26_255_360, 26_550_272, 9_724_160]


def test_resnet_is_expanded_by_symmetry(shared: Path) -> None:
    workload = load_workload(shared / "kineto/resnet50-ddp-rank0of2.json.gz")
    assert (workload.world, workload.synthesised_ranks) == (2, (1,))
    assert workload.iterations == (4, 5, 6)
    for op in collectives(workload):
        assert op.ranks[0].in_bytes == op.ranks[1].in_bytes


def test_unknown_sizes_stay_unknown(shared: Path) -> None:
    recording = one(shared, "kineto/ddp-rank1of2-no-sizes.json.gz")
    assert Counter(call.step for call in recording.calls) == dict.fromkeys(range(2, 7), 404)
    assert {(c.kind, c.in_bytes, c.out_bytes) for c in recording.calls} == {
        ("all_reduce", None, None)
    }
    assert recording.kernels == 19370


def test_torchrec_0_of_16(shared: Path) -> None:
    recording = one(shared, "kineto/torchrec-rank0of16.json.gz")
    assert (recording.kernels, len(recording.transport)) == (6080, 80)
    found = totals(recording)
    assert found[551, "all_to_all"] == (9, 31458420, 29235576)
    assert found[551, "reduce_scatter"] == (2, 117440512, 14680064)
    assert found[551, "all_gather"] == (2, 14680064, 117440512)
    assert found[551, "all_reduce"] == (2, 1793158928, 1793158928)
    sent = [found[step, "all_to_all"][1] for step in range(550, 555)]
    assert sent == [31593312, 31458420, 31596132, 31579540, 31646160]
    assert recording.losses.counts["calls that launched no kernel: nothing to send"] == 10


def test_torchrec_0_of_128(shared: Path) -> None:
    found = totals(one(shared, "kineto/torchrec-rank0of128-sampled.json.gz"))
    assert found[551, "all_reduce"][1] == 186295372
    assert found[552, "all_reduce"][1] == 127900336
    assert found[551, "all_to_all"][1:] == (419433472, 382135296)
    assert found[552, "all_to_all"][1:] == (430817280, 392617984)
    assert found[551, "all_gather"][1:] == (16777216, 1073741824)


def test_torchrec_3_of_8(shared: Path) -> None:
    recording = one(shared, "kineto/torchrec-rank3of8.json.gz")
    found = totals(recording)
    sent = [found[step, "all_to_all"][1] for step in range(1009, 1015)]
    assert sent == [644246048, 644205552, 644167140, 644115604, 644166356, 644288708]
    for step in range(1009, 1015):
        assert found[step, "all_reduce"] == (3, 200037204, 200037204)
    received = {c.out_bytes for c in recording.calls if c.kind == "all_to_all"}
    assert received == {None}  # not in the file, so not 0


def test_gloo_without_gpu(shared: Path) -> None:
    recording = one(shared, "kineto/gloo-cpu-only-rank34of300.json.gz")
    assert (recording.rank, recording.world, recording.on_gpu) == (34, 300, False)
    for step in range(551, 556):
        assert totals(recording)[step, "all_reduce"] == (2, 9614728, 9614728)


def test_integers_beyond_64_bits(shared: Path) -> None:
    recording = one(shared, "kineto/large-integer-rank70.json.gz")
    assert [call.kind for call in recording.calls] == ["all_reduce"]


def test_execution_trace_1_1_0(shared: Path) -> None:
    recording = one(shared, "execution-trace/resnet50-2gpu-1.1.0.json.gz")
    assert (recording.rank, recording.world) == (1, 2)
    found = totals(recording)
    assert sum(found[step, "all_reduce"][1] for step in (4, 5, 6)) == 306684384
    assert sum(found[step, "broadcast"][1] for step in (4, 5, 6)) == 638712
    assert sum(call.awaited_ns is not None for call in recording.calls) == 6


@pytest.mark.parametrize("form", ["kineto", "et"])
def test_captured_gloo_sizes(shared: Path, form: str) -> None:
    for recording in load_recordings(sorted((shared / "captured-gloo-4rank").glob(f"{form}_*"))):
        found = totals(recording)
        for step in (2, 3, 4):
            assert found[step, "all_reduce"][:2] == (4, 1310720)
            assert found[step, "reduce_scatter"] == (1, 524288, 262144)
            assert found[step, "all_to_all"] == (2, 262144, 262144)
            assert found[step, "all_gather"] == (1, 262144, 524288)
            assert found[step, "barrier"][0] == 1
            pair = found.get((step, "send")) or found[step, "recv"]
            assert pair[0] == 1
            assert pair[1] + pair[2] == 131072


def test_captured_gloo_groups_are_inferred(shared: Path) -> None:
    workload = load_workload(sorted((shared / "captured-gloo-4rank").glob("kineto_*")))
    assert workload.placement == dict.fromkeys(range(4), "vm")
    members = {name: group.ranks for name, group in workload.groups.items()}
    for step in (2, 3, 4):
        used = [
            (op.kind, members[op.group], op.ranks[min(op.ranks)].in_bytes)
            for op in collectives(workload)
            if op.iter == step and op.kind != "send_recv"
        ]
        count = Counter(used)
        for pair in ((0, 1), (2, 3)):  # tensor parallel
            assert count["all_reduce", pair, 131072] == 2
        for pair in ((0, 2), (1, 3)):  # data parallel
            assert count["all_reduce", pair, 524288] == 2
            assert count["all_gather", pair, 262144] == 1
            assert count["reduce_scatter", pair, 524288] == 1
        assert count["all_to_all", (0, 1, 2, 3), 131072] == 2
        assert count["barrier", (0, 1, 2, 3), None] == 1
        pairs = {
            (op.root, op.peer)
            for op in collectives(workload)
            if op.iter == step and op.kind == "send_recv"
        }
        assert pairs == {(0, 2), (1, 3)}
    inferred = [loss for loss in workload.losses if "inferred" in loss.what]
    assert inferred[0].count == 108


def test_captured_gloo_splits(shared: Path) -> None:
    workload = load_workload(sorted((shared / "captured-gloo-4rank").glob("kineto_*")))
    dispatch = next(op for op in collectives(workload) if op.kind == "all_to_all")
    assert dispatch.splits is not None
    rows = [(16, 32, 48, 32), (32, 16, 32, 48), (48, 32, 16, 32), (32, 48, 32, 16)]
    assert [dispatch.splits[r] for r in range(4)] == [tuple(n * 1024 for n in r) for r in rows]


def test_bundled_example(bundled: Path) -> None:
    workload = load_workload(bundled)
    assert workload.world == 8
    assert workload.iterations == (2, 3)
    assert not workload.losses
    last = [op for op in workload.operations if op.iter == 3]
    count = Counter(op.kind for op in last if isinstance(op, Collective))
    assert count == {"all_gather": 42, "reduce_scatter": 28, "all_reduce": 22}
    meta = json.loads((bundled / "meta.json").read_text())
    work = Counter[int]()
    for op in last:
        if isinstance(op, Compute):
            work[op.rank] += op.dur_ns
    for rank, expected in enumerate(meta["captured_compute_ns_by_rank"]):
        assert work[rank] == pytest.approx(expected, rel=0.02)


def test_execution_traces_of_one_gpu(shared: Path) -> None:
    path = shared / "execution-trace/linear-1.0.1.json.gz"
    assert load_recordings([path])[0].schema == "1.0.1"
    with pytest.raises(InputError, match="no collective is left to replay, because"):
        load_workload(path)
    recording = one(shared, "execution-trace/resnet50-1gpu-1.0.1.json.gz")
    assert recording.schema == "1.1.0-chakra.0.0.4"  # whatever its name says
    for step in (6, 7, 8):
        assert totals(recording)[step, "all_reduce"] == (5, 102228128, 102228128)
        assert totals(recording)[step, "broadcast"] == (2, 212904, 212904)


def test_the_packed_chakra_trace_is_the_plain_one(shared: Path) -> None:
    packed, plain = (
        one(shared, f"chakra/{name}") for name in ("feeder_tests_trace.tar.gz", "resnet50.0.et")
    )
    assert len(packed.calls) == len(plain.calls) == 7
    assert totals(packed) == totals(plain)
