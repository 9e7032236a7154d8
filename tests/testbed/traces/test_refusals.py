"""Bad input: one golden sentence each, naming the file, the place and the remedy."""

from __future__ import annotations

import gzip
import io
import json
import sys
import tarfile
import zipfile
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kineto_maker import collective, compute, event, plain, step, trace

from scheduler.model.workload import Collective, Compute
from testbed.traces import load_workload, parallel
from testbed.traces.sources import open_sources
from topologies.errors import FluxbedError, InputError, UsageError

if TYPE_CHECKING:
    from pathlib import Path


def put(directory: Path, *traces: Any) -> list[Path]:
    paths = []
    for place, content in enumerate(traces):
        path = directory / f"t{place}.json"
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        paths.append(path)
    return paths


def refusal(directory: Path, *traces: Any, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        load_workload(put(directory, *traces), **options)
    assert caught.value.exit_code == 5
    return str(caught.value).replace(f"{directory}/", "")


def test_two_plain_ranks_load(tmp_path: Path) -> None:
    workload = load_workload(put(tmp_path, plain(1, late=30), plain(0)), strict=False)
    assert workload.world == 2
    work = {
        rank: [o.dur_ns for o in workload.operations if isinstance(o, Compute) and o.rank == rank]
        for rank in (0, 1)
    }
    # rank 0 waited 30 us longer; both have 1 us of launch gap before and 98 us of host after
    assert work == {0: [101_000, 149_000], 1: [131_000, 149_000]}
    (reduce,) = [op for op in workload.operations if isinstance(op, Collective)]
    second = [op for op in workload.operations if isinstance(op, Compute)][2:]
    assert all(op.deps == (reduce.id,) for op in second)
    assert not workload.losses


def test_asynchronous_collectives_keep_their_overlap(tmp_path: Path) -> None:
    def overlapped(rank: int) -> dict[str, Any]:
        return trace(
            rank,
            [
                step(0, 0, 1000),
                *compute(10, 90, 1),
                *collective("allreduce", 101, 300, 2),
                *compute(102, 400, 3, launched=50),  # beside it
                event("user_annotation", "Optimizer.step#SGD.step", 510, 100),
                *compute(520, 80, 4, launched=515),
            ],
        )

    workload = load_workload(put(tmp_path, overlapped(0), overlapped(1)))
    mine = [op for op in workload.operations if isinstance(op, Compute) and op.rank == 0]
    (reduce,) = [op for op in workload.operations if isinstance(op, Collective)]
    assert [op.dur_ns for op in mine] == [101_000, 419_000, 480_000]
    assert [op.deps for op in mine] == [(), (), (reduce.id,)]
    assert reduce.ranks[0].deps == (mine[0].id,)
    assert reduce.ranks[0].stream != mine[0].stream


GOLDEN = {
    "cut": (
        "t1.json: this is not a Kineto trace, because the JSON ends early: copy or write the file "
        "again, completely"
    ),
    "text": (
        "t1.json: this is no trace fluxbed knows, because it begins with b'hello': give one of: "
    ),
    "empty": "t1.json: this is no trace fluxbed knows, because it is empty: give one of: ",
    "nan": (
        "t1.json: this is not a Kineto trace, because it is not JSON: invalid character (byte 55): "
        "give the file as it was written"
    ),
    "infinity": (
        "t1.json: this is not a Kineto trace, because it is not JSON: invalid character (byte 55): "
        "give the file as it was written"
    ),
    "unknown collective": (
        "t1.json: rank 1 lacks the all_reduce numbered 0 of group [0, 1], step 3, because rank 0 "
        "has 1 collectives there and rank 1 has 0: give the traces of the same steps of every "
        "rank, complete"
    ),
    "no kernels": (
        "t0.json, t1.json: no collective is left to replay, because none is recorded in the chosen "
        "steps by all its members: record a distributed run, every rank of it"
    ),
    "two documents": (
        "t1.json: this is not a Kineto trace, because it is not JSON: trailing characters "
        "(byte 1214): give the file as it was written"
    ),
    "deep": (
        "t1.json: this is not a Kineto trace, because it is nested too deeply to be one: "
        "write it again"
    ),
    "metadata only": (
        "t1.json: no operations are recorded, because it holds metadata only: export the trace "
        "after at least one profiled step"
    ),
    "missing": (
        "t0.json, t1.json: ranks 2, 3 are missing, because the world has 4 ranks and the files "
        "hold 2: give the traces of all ranks, or choose some with --ranks"
    ),
    "duplicate": (
        "t1.json: rank 0 appears twice, because t0.json is of the same rank and steps: "
        "give each rank once"
    ),
    "absent": (
        "t1.json: rank 1 lacks the all_reduce numbered 1 of group [0, 1], step 0, because rank 0 "
        "has 2 collectives there and rank 1 has 1: give the traces of the same steps of every "
        "rank, complete"
    ),
    "kinds": (
        "t1.json: collective number 0 of group [0, 1] in step 0 differs between ranks, because it "
        "is all_reduce on rank 0 and broadcast on rank 1: give the traces of the same steps of "
        "every rank, complete"
    ),
    "sizes": (
        "t1.json: all_reduce number 0 of group [0, 1] in step 0 has different sizes on different "
        "ranks, because 16 and 32 bytes are contributed: give traces of one run, none of them "
        "sampled down"
    ),
    "worlds": (
        "t1.json: it is of a run with 4 ranks, because t0.json is of one with 2: give traces of "
        "one run"
    ),
    "a million": (
        "t0.json: the run has 1000000 ranks, because fluxbed counts to 262144: correct the number "
        "of ranks"
    ),
    "many alike": (
        "t0.json: 262144 ranks like rank 0 need about 1.285 GB of memory, because at most 840 MB "
        "is taken unasked: choose some ranks with --ranks, best those of whole groups, or ask for "
        "all with --ranks 0-262143"
    ),
    "steps": (
        "t0.json, t1.json: no step is recorded by every rank, because the ranks' steps are [3], "
        "[4]: profile the same steps on every rank"
    ),
    "rank unknown": (
        "t0.json: the file does not say its rank, because distributedInfo is missing: profile "
        "after torch.distributed is initialised"
    ),
    "no collective": (
        "t0.json, t1.json: no collective is left to replay, because none is recorded in the chosen "
        "steps by all its members: record a distributed run, every rank of it"
    ),
    "windows": (
        "t0.json: rank 0 has 2 profiler windows, because none is chosen of 0 (steps 3 to 3), 1 "
        "(steps 4 to 4): choose one with --window"
    ),
    "strict": (
        "t0.json, t1.json: something was lost or inferred: files without ProfilerStep marks: taken "
        "as one iteration (2), because --strict allows nothing of the kind: record it, or load "
        "without --strict"
    ),
}


def test_golden_sentences(tmp_path: Path) -> None:
    def reduced(rank: int, *names: str, elements: int = 4) -> dict[str, Any]:
        calls = [collective(n, 100 * i + 50, 9, i, elements) for i, n in enumerate(names)]
        return trace(rank, [step(0, 0, 900), *chain.from_iterable(calls)])

    text = json.dumps(plain(1)).encode()
    not_a_number = b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "ts": NaN}]}'
    deep = b'{"schemaVersion":' + b"[" * 50_000 + b"]" * 50_000 + b"}"
    good = plain(0)
    without_kernels = [step(3, 4000, 400), event("cpu_op", "aten::mm", 4001, 50)]
    no_info = {"traceEvents": reduced(0, "allreduce")["traceEvents"], "schemaVersion": 1}
    wide = plain(0)
    wide["distributedInfo"]["world_size"] = 2**18
    unmarked = [trace(rank, collective("allreduce", 50, 9, 1)) for rank in (0, 1)]
    said = {
        "cut": refusal(tmp_path, good, text[:-40]),
        "text": refusal(tmp_path, good, b"hello"),
        "empty": refusal(tmp_path, good, b""),
        "nan": refusal(tmp_path, good, not_a_number),
        "infinity": refusal(tmp_path, good, not_a_number.replace(b"NaN", b"Infinity")),
        "unknown collective": refusal(
            tmp_path, good, trace(1, [step(3, 4000, 400), *collective("frobnicate", 4101, 9, 2)])
        ),
        "no kernels": refusal(tmp_path, *(trace(r, without_kernels) for r in (0, 1))),
        "two documents": refusal(tmp_path, good, text + text),
        "deep": refusal(tmp_path, good, deep),
        "metadata only": refusal(tmp_path, good, trace(1, [])),
        "missing": refusal(tmp_path, *(trace(r, [step(0, 0, 9)], world=4) for r in (0, 1))),
        "duplicate": refusal(tmp_path, good, plain(0)),
        "absent": refusal(
            tmp_path, reduced(0, "allreduce", "allreduce"), reduced(1, "allreduce")
        ),
        "kinds": refusal(tmp_path, reduced(0, "allreduce"), reduced(1, "broadcast")),
        "sizes": refusal(
            tmp_path, reduced(0, "allreduce"), reduced(1, "allreduce", elements=8)
        ),
        "worlds": refusal(tmp_path, good, trace(1, [step(0, 0, 9)], world=4)),
        "a million": refusal(tmp_path, trace(0, [step(0, 0, 9)], world=10**6)),
        "many alike": refusal(tmp_path, wide),
        "steps": refusal(tmp_path, good, plain(1, number=4)),
        "rank unknown": refusal(tmp_path, no_info, no_info),
        "no collective": refusal(tmp_path, reduced(0), reduced(1)),
        "windows": refusal(tmp_path, good, plain(0, number=4), plain(1)),
        "strict": refusal(tmp_path, *unmarked, strict=True),
    }  # fmt: skip
    for name in ("text", "empty"):
        said[name] = said[name].partition("give one of: ")[0] + "give one of: "
    assert said == GOLDEN


def test_a_single_rank_of_several_is_derived_or_refused(tmp_path: Path) -> None:
    workload = load_workload(put(tmp_path, plain(0)))
    assert workload.synthesised_ranks == (1,)
    lonely = trace(0, [step(0, 0, 900), *collective("send", 50, 9, 1, **{"Dst Rank": 1})])
    assert "the pattern of sends of other ranks is not known" in refusal(tmp_path, lonely)


def test_windows_ranks_and_iterations(tmp_path: Path) -> None:
    paths = put(tmp_path, *(plain(r, number=n) for r in (0, 1) for n in (3, 4)))
    assert load_workload(paths, window=1).iterations == (4,)
    assert "there is no 2" in refusal(tmp_path, plain(0), plain(0, number=4), plain(1), window=2)
    pair = put(tmp_path, plain(0), plain(1))
    assert load_workload(pair, iteration=3, compute_scale=0.5).compute_scale == 0.5
    with pytest.raises(InputError, match="iteration 9 is not recorded"):
        load_workload(pair, iteration=9)
    with pytest.raises(UsageError, match="no importer is called 'nothing'"):
        load_workload(pair, importer="nothing")


@pytest.mark.parametrize("form", ["dir", "tar", "tar.gz", "zip", "gz", "zst", "stdin"])
def test_every_packaging(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = load_workload(put(tmp_path, plain(0), plain(1)))
    inside = tmp_path / "inside"
    inside.mkdir()
    files = {f"{r}.json": json.dumps(plain(r)).encode() for r in (0, 1)}
    for name, content in files.items():
        (inside / name).write_bytes(content)
    given: list[Path | str] = [inside]
    (inside / "README.md").write_text("not a trace")
    if form.startswith("tar"):
        given = [tmp_path / "traces.bin"]
        with tarfile.open(given[0], "w:gz" if form.endswith("gz") else "w") as tar:
            for name, content in {"._0.json": b"junk", **files}.items():
                member = tarfile.TarInfo(f"deep/{name}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    elif form == "zip":
        given = [tmp_path / "traces.bin"]
        with zipfile.ZipFile(given[0], "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
            archive.writestr("__MACOSX/._0.json", b"junk")
    elif form in ("gz", "zst"):
        given = []
        for name, content in files.items():
            packed = tmp_path / f"{name}.{form}"
            packed.write_bytes(gzip.compress(content) if form == "gz" else zstandard(content))
            given.append(packed)
    elif form == "stdin":
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for name in files:
                tar.add(inside / name, name)
        buffer.seek(0)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(buffer))
        given = ["-"]
    assert load_workload(given).operations == whole.operations
    assert load_workload([inside], importer="kineto").operations == whole.operations


def zstandard(content: bytes) -> bytes:
    from testbed.files.codec import zstd

    return zstd.compress(content)


def test_damaged_archives(tmp_path: Path) -> None:
    packed = gzip.compress(json.dumps(plain(0)).encode())
    assert refusal(tmp_path, packed[:-20]) == (
        "t0.json: the compressed data is damaged, because compressed file ended before the "
        "end-of-stream marker was reached: copy the file again, completely"
    )
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="there is no trace to load"):
        load_workload(tmp_path / "empty")
    with pytest.raises(InputError, match="cannot be read, because no such file"):
        load_workload(tmp_path / "none.json")


def test_odd_events_are_counted_not_fatal(tmp_path: Path) -> None:
    odd = [
        7, None, "x", {"ph": "X"},
        event("kernel", "gemm", "17", 1), event("kernel", "gemm", 2**70, 1),
        {"ph": "X", "cat": "cpu_op", "name": 5, "ts": 1, "dur": 2},
        {"ph": "X", "cat": "cpu_op", "name": "a", "ts": {}, "dur": 2},
    ]  # fmt: skip
    first = plain(0)
    first["traceEvents"] += odd
    workload = load_workload(put(tmp_path, first, plain(1)))
    counts = {loss.what: loss.count for loss in workload.losses}
    assert counts == {
        "events that are not what Kineto writes": 4,
        "events without a usable time or name": 3,
    }


def test_large_files_are_read_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = put(tmp_path, plain(0), gzip.compress(json.dumps(plain(1)).encode()))
    alone = load_workload(paths)
    monkeypatch.setattr(parallel, "_LARGE_BYTES", 10)
    assert parallel.large_files(open_sources(paths)) == [str(path) for path in paths]
    assert load_workload(paths) == alone
    assert refusal(tmp_path, plain(0), json.dumps(plain(1)).encode()[:-40]) == GOLDEN["cut"]


def test_times_written_as_text_are_counted(tmp_path: Path) -> None:
    odd = plain(1)
    odd["traceEvents"].append(event("kernel", "gemm", "17", 1))
    workload = load_workload(put(tmp_path, plain(0), odd))
    assert workload.operations == load_workload(put(tmp_path, plain(0), plain(1))).operations
    (loss,) = workload.losses
    assert (loss.what, loss.count) == ("events without a usable time or name", 1)


def test_a_world_of_one_has_nothing_to_replay(tmp_path: Path) -> None:
    alone = trace(0, [step(0, 0, 90), *compute(10, 20, 1)], world=1)
    assert refusal(tmp_path, alone) == (
        "t0.json: no collective is left to replay, because none is recorded in the chosen steps by "
        "all its members: record a distributed run, every rank of it"
    )


def execution_trace(rank: int, parents: dict[int, int]) -> dict[str, Any]:
    """An ExecutionTrace of one all_reduce among others' operators, with these parents."""
    tensors = [[9, 8, 0, 16, 4, "cuda:0"]]
    values = [tensors, [1, False], ["0", "default_pg"], rank, "allreduce", [], [], 0, 1, 2]
    row = {
        "id": 7, "name": "record_param_comms", "outputs": {"values": []}, "ctrl_deps": 1,
        "inputs": {
            "values": values,
            "shapes": [], "types": ["GenericList[Tensor(float)]"],
        },
    }  # fmt: skip
    others = [
        {"id": n, "name": "aten::mm", "ctrl_deps": parent, "inputs": {"values": []}}
        for n, parent in parents.items()
    ]
    return {"schema": "1.1.1-chakra.0.0.4", "pid": 4, "nodes": [row, *others]}


DEEP = {n: n - 1 for n in range(10, 50_010)}


@pytest.mark.parametrize(
    "parents", [{8: 4000}, {8: 9, 9: 8}, {8: 2**70}, DEEP], ids=["none", "circle", "huge", "deep"]
)
def test_parents_of_any_kind(tmp_path: Path, parents: dict[int, int]) -> None:
    """Nobody waits for a parent: dangling, circular and deep ones change nothing."""
    for rank in (0, 1):
        path = tmp_path / f"et_rank{rank}.json"
        path.write_text(json.dumps(execution_trace(rank, parents)))
    (reduce,) = load_workload(tmp_path).operations
    assert isinstance(reduce, Collective)
    assert (reduce.kind, sorted(reduce.ranks)) == ("all_reduce", [0, 1])
    assert {part.in_bytes for part in reduce.ranks.values()} == {64}


@pytest.mark.parametrize("place", ["ts", "dur", "pid", "tid", "correlation", "step", "base"])
def test_integers_beyond_64_bits_are_counted(tmp_path: Path, place: str) -> None:
    large = 2**70
    odd, extra = plain(1), event("kernel", "gemm", 4010, 1)
    if place == "step":
        extra = step(large, 4000, 400)
    elif place == "base":
        odd["baseTimeNanoseconds"] = large
    elif place == "correlation":
        extra["args"]["correlation"] = large
    else:
        extra[place] = large
    odd["traceEvents"].append(extra)
    workload = load_workload(put(tmp_path, plain(0), odd))
    counts = {loss.what: loss.count for loss in workload.losses}
    told = {
        "ts": "events without a usable time or name",
        "dur": "events without a usable time or name",
        "base": "times counted from an unusable base: taken as from 0",
    }
    assert place not in told or counts[told[place]] == 1
    assert [op.kind for op in workload.operations if isinstance(op, Collective)] == ["all_reduce"]


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_mutations_load_or_are_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("mutated")
    content = bytearray(json.dumps(plain(0)).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        width = data.draw(st.integers(0, 6))
        content[at : at + width] = data.draw(
            st.sampled_from([b"", b"0", b"-1", b"null", b"[", b'"', b"9e99"])
        )
    try:
        load_workload(put(directory, bytes(content), plain(1)))
    except FluxbedError as error:
        assert ", because " in str(error)  # noqa: PT017 (loading is right as well)
