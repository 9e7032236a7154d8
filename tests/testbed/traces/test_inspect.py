from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kineto_maker import plain

from testbed.cli.inspect import command
from testbed.files.workload import write_workload
from testbed.traces import load_workload
from testbed.traces.inspect import RankTimes, inspect

FILES = {
    "nccl_data": "kineto/resnet50-ddp-rank0of2.json.gz",
    "df_index_resolver": "kineto/ddp-rank1of2-no-sizes.json.gz",
    "negative_queue": "kineto/torchrec-rank0of16.json.gz",
    "sampled_rank0_of128": "kineto/torchrec-rank0of128-sampled.json.gz",
    "trace_diff_control": "kineto/torchrec-rank3of8.json.gz",
}


@pytest.fixture(scope="module")
def expected(shared: Path) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads((shared / "expected.json").read_text())
    return answer


def agrees(times: RankTimes, right: dict[str, Any]) -> None:
    assert times.rank == right["rank"]
    assert times.kernels == right["n_kernels"]
    assert times.communication_kernels == right["n_comm_kernels"]
    for ours, theirs in (
        (times.span_ns, right["span_us"]),
        (times.busy_ns, right["busy_us"]),
        (times.compute_ns, right["compute_us"]),
        (times.communication_ns, right["comm_us"]),
        (times.overlap_ns, right["overlap_us"]),
    ):
        assert ours == pytest.approx(theirs * 1000, abs=100)  # expected.json adds floats


@pytest.mark.parametrize("name", FILES)
def test_times_of_single_ranks(shared: Path, expected: dict[str, Any], name: str) -> None:
    found = inspect(shared / FILES[name])
    right = expected[name]
    (times,) = found.times
    agrees(times, right)
    assert (found.world, found.ranks) == (right["world"], (right["rank"],))
    assert [f"ProfilerStep#{number}" for number in found.iterations] == [
        step for step, _ in right["steps"]
    ]
    for step, kinds in right["per_step"].items():
        if step == "nolaunch":
            continue
        number = int(step.removeprefix("ProfilerStep#"))
        counts = {c.kind: c for c in found.operations if c.iteration == number}
        assert set(counts) == set(kinds)
        for kind, figures in kinds.items():
            assert counts[kind].calls == figures["n"]
            assert (counts[kind].in_bytes or 0) == figures["in_bytes"]
            assert (counts[kind].out_bytes or 0) == figures["out_bytes"]


def test_times_of_all_dlrm_ranks(shared: Path, expected: dict[str, Any]) -> None:
    found = inspect(shared / "kineto/dlrm8.kineto.tar.gz")
    for rank, times in enumerate(found.times):
        agrees(times, expected[f"dlrm8_rank{rank}"])
    assert found.missing == ()
    assert found.groups["world"].origin == "default"
    assert found.dependency_depth is not None
    assert found.dependency_depth[10] > 8


def test_missing_is_said(shared: Path) -> None:
    found = inspect(shared / FILES["df_index_resolver"])
    assert found.dependency_depth is None
    assert any("only rank 1 of 2 is recorded" in text for text in found.missing)
    assert any("groups are unknown" in text for text in found.missing)
    assert found.missing[-1].startswith("2020 calls have no size")


def test_a_workload_is_inspected_alike(shared: Path, tmp_path: Path) -> None:
    trace = shared / "kineto/dlrm8.kineto.tar.gz"
    path = tmp_path / "dlrm.workload.jsonl.gz"
    write_workload(load_workload(trace), path)
    ours, theirs = inspect(path), inspect(trace)
    assert ours.format == "fluxbed-workload"
    assert ours.operations == theirs.operations
    assert ours.dependency_depth == theirs.dependency_depth
    for workload, capture in zip(ours.times, theirs.times, strict=True):
        assert workload.communication_ns == capture.communication_ns


def test_one_window_of_several(tmp_path: Path) -> None:
    """Each rank was profiled twice: steps 3 and 4."""
    for rank in (0, 1):
        for number in (3, 4):
            (tmp_path / f"{rank}.{number}.json").write_text(json.dumps(plain(rank, number=number)))
    unchosen, chosen = inspect(tmp_path), inspect(tmp_path, window=1)
    assert unchosen.dependency_depth is None
    assert "has 2 profiler windows" in unchosen.missing[0]
    assert chosen.missing == ()
    assert chosen.dependency_depth is not None
    assert set(chosen.dependency_depth) == {4}
    assert (unchosen.iterations, chosen.iterations) == ((3, 4), (4,))
    assert chosen.operations == tuple(c for c in unchosen.operations if c.iteration == 4)
    assert {Path(times.path).name for times in chosen.times} == {"0.4.json", "1.4.json"}
    assert len(unchosen.times) == 2 * len(chosen.times)
    done = CliRunner().invoke(command, [str(tmp_path), "--window", "1", "--format", "json"])
    assert done.exit_code == 0
    told = json.loads(done.stdout)
    assert told["dependency_depth"] == {"4": chosen.dependency_depth[4]}
    neither = inspect(tmp_path, window=2)
    assert "there is no 2" in neither.missing[0]
    assert neither.operations == unchosen.operations
