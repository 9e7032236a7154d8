from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from testbed.files.compare import compare_runs
from testbed.files.rundir import read_run
from testbed.files.summary import Summary
from topologies import UsageError

if TYPE_CHECKING:
    from testbed.files.rundir import Run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, make_run: Any) -> list[Run]:
    home = tmp_path_factory.mktemp("runs")
    return [read_run(make_run(home / kind, kind)) for kind in ("in-order", "rotating")]


def test_ratios_are_to_the_first(runs: list[Run]) -> None:
    first, second = compare_runs(runs)
    assert first.ratios["iteration_ns"] == 1
    mine, other = runs[1].summary.iteration_ns, runs[0].summary.iteration_ns
    assert mine is not None
    assert other is not None
    assert second.ratios["iteration_ns"] == mine / other > 1
    assert second.predicted_ns is None
    assert second.off is None


def copy(run: Run, home: Path, **fields: Any) -> Run:
    path = Path(shutil.copytree(run.path, home / "copy"))
    document = msgspec.json.decode((path / "manifest.json").read_bytes())
    (path / "manifest.json").write_bytes(msgspec.json.encode({**document, **fields}))
    return read_run(path)


def test_a_measured_run_is_held_against_the_simulated_one(runs: list[Run], tmp_path: Path) -> None:
    measured = copy(runs[0], tmp_path, origin="emulated")
    assert measured.summary.iteration_ns is not None
    measured.summary.iteration_ns *= 1.01
    second = compare_runs([runs[0], measured])[1]
    assert second.predicted_ns == runs[0].summary.iteration_ns
    assert second.off == pytest.approx(0.01)


def test_peaks_of_different_windows_have_no_ratio(runs: list[Run], tmp_path: Path) -> None:
    window = {"kind": "eager", "feedback_ns": 1, "mtu_bytes": 1}
    second = compare_runs([runs[0], copy(runs[0], tmp_path, injection=window)])[1]
    assert second.ratios["nic_peak_bytes_paced"] is None
    assert second.ratios["iteration_ns"] == 1


def test_a_run_that_failed_has_a_place_and_no_numbers(runs: list[Run], tmp_path: Path) -> None:
    failed = copy(runs[0], tmp_path, status="failed")
    failed = dataclasses.replace(failed, summary=Summary.unfinished("in-order", "failed"))
    first, second = compare_runs([failed, runs[1]])
    assert first.failure == "failed"
    assert set(first.values.values()) == set(first.ratios.values()) == {None}
    assert (first.reference, second.reference) == (False, True)
    assert second.ratios["iteration_ns"] == 1


def test_runs_that_cannot_be_compared_are_refused(runs: list[Run], tmp_path: Path) -> None:
    error = {"exit": 6, "what": "message 3 waits", "where": "rank 1", "why": "dark", "fix": "x"}
    failed = copy(runs[0], tmp_path / "a", status="stalled", error=error)
    with pytest.raises(UsageError) as refused:
        compare_runs([failed, failed])
    assert str(refused.value) == (
        f"compare: no run ended well, because {failed.path} stalled: message 3 waits (dark): name "
        "a finished run"
    )
    other = msgspec.structs.replace(runs[0].manifest.expansion, sha256="0" * 64)
    estranged = copy(runs[0], tmp_path / "b", expansion=msgspec.to_builtins(other))
    with pytest.raises(UsageError, match="its messages differ from those of"):
        compare_runs([runs[0], estranged])
    with pytest.raises(UsageError, match="no run is given"):
        compare_runs([])
