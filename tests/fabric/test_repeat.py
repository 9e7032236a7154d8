"""`fluxbed run` several times, again from its directory, and far too fast, as a user starts it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from testbed.files.rundir import read_run
from testbed.files.workload import write_workload
from testbed.synth import synth

ROOT = Path(__file__).resolve().parents[2]
FABRIC = "rails,planes=2,rate=400Gbps,delay=50us"


def run(*words: object) -> tuple[int, list[dict[str, Any]], str]:
    done = subprocess.run(  # noqa: S603 (our own interpreter)
        [sys.executable, "-m", "fluxbed", "run", *map(str, words), "--format", "json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, json.loads(done.stdout or "[]"), done.stderr


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("step") / "step.workload.jsonl"
    write_workload(synth("llama3-8b", tp=2, dp=2, layers=1, seq=512, mfu=0.5), path)
    return path


@pytest.fixture(scope="module")
def repeated(step: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Two executions with a captured host, and their row."""
    target = tmp_path_factory.mktemp("out") / "o"
    more = ("-n", 2, "--repeat", 2, "--pcap", "h1", "-o", target)
    code, rows, errors = run(step, "-t", FABRIC, "-s", "static", *more)
    assert code == 0, errors
    assert "h1.pcap: " in errors
    return target, rows[0]


def test_each_execution_keeps_its_directory(repeated: tuple[Path, dict[str, Any]]) -> None:
    target, row = repeated
    executions = row["executions"]
    assert [Path(one["run"]) for one in executions] == [target / "static-1", target / "static-2"]
    times = sorted(one["iteration_ns"] for one in executions)
    assert times[0] <= row["iteration_ns"] <= times[1]
    assert row["interval_ns"] is None  # of two there is none


def test_the_manifest_says_what_the_machine_was(repeated: tuple[Path, dict[str, Any]]) -> None:
    target, _ = repeated
    manifest = read_run(target / "static-1").manifest
    assert "root: ok" in (manifest.capabilities or [])
    assert {"sleep_late_p99_ns", "resolution_ns"} <= (manifest.clock_test or {}).keys()
    calibration = manifest.calibration or {}
    assert (calibration["frames_per_s"] or 0) > 0
    assert {"hop_mean_ns", "hop_p50_ns", "hop_p99_ns"} <= calibration.keys()
    assert manifest.engine_core is not None
    assert manifest.expected_wall_s
    assert manifest.measures["wall_s"]
    assert manifest.measures["cpu_share"]
    assert manifest.measures["pcap_h1_lost_frames"] == 0
    assert manifest.overload is not None
    assert manifest.files["h1.pcap"]


def test_a_run_is_done_again(repeated: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    source = repeated[0] / "static-1"
    code, rows, errors = run("--from", source, "-o", tmp_path / "again")
    assert code == 0, errors
    before, after = read_run(source).manifest, read_run(tmp_path / "again").manifest
    for name in (
        "scheduler", "topology", "fabric", "rank_to_node", "expansion", "iterations", "skip",
        "lookahead_ns", "dilation", "bytes_per_wall_byte", "quantum_bytes", "guard_ns",
    ):  # fmt: skip
        assert getattr(after, name) == getattr(before, name), name
    for name in ("plan.json", "workload.jsonl"):
        assert after.files[name] == before.files[name]
    assert rows[0]["predicted_iteration_ns"] == repeated[1]["predicted_iteration_ns"]


def test_a_host_that_is_not_there_is_refused(step: Path, tmp_path: Path) -> None:
    code, rows, errors = run(
        step, "-t", FABRIC, "-s", "static", "--pcap", "h9", "-o", tmp_path / "o"
    )
    assert (code, rows) == (2, [])
    assert errors == (
        "--pcap: there is no host 'h9', because the hosts are h0 to h3: name one, or all\n"
    )
    assert not (tmp_path / "o").exists()


def test_a_known_overload_shows(step: Path, tmp_path: Path) -> None:
    """At a factor of 0.1 a reconfiguration is 5 us on the wall: no machine's hop is shorter."""
    target = tmp_path / "o"
    code, rows, errors = run(
        step, "-t", FABRIC, "-s", "flux", "-n", 2, "--dilation", "0.1", "-o", target
    )
    manifest = read_run(target).manifest
    assert manifest.overload, errors
    assert "did not keep up" in errors
    assert (manifest.measures["hop_p99_us"] or 0) > 2.5
    if code == 0:
        assert rows[0]["overload"] == manifest.overload
    else:
        assert manifest.status != "ok"
