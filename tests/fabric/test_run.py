"""`fluxbed run` as a user starts it: to its end, interrupted, and killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from output_schemas import conforms

from testbed.emulator.registry import RUNS
from testbed.files.rundir import read_run
from testbed.files.verify import check_run_directory
from testbed.files.workload import write_workload
from testbed.synth import synth

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parents[2]
FABRIC = "rails,planes=2,rate=400Gbps,delay=50us"
LONG = "200"  # iterations: half a minute on the wall, never reached
DEADLINE_S = 240.0
SCHEDULERS = ("flux", "rotor-direct", "packet-ideal", "docs/my_flux.py:MyFlux")


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("step") / "step.workload.jsonl"
    write_workload(synth("llama3-8b", tp=2, dp=2, layers=1, seq=1024, mfu=0.5), path)
    return path


def words(*more: object) -> list[str]:
    return [sys.executable, "-m", "fluxbed", *map(str, more)]


def start(arguments: Sequence[object], errors: Path) -> subprocess.Popen[bytes]:
    with errors.open("wb") as stream:
        return subprocess.Popen(  # noqa: S603 (our own interpreter)
            words(*arguments), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=stream
        )


def executing(process: subprocess.Popen[bytes]) -> bool:
    """Whether a thread of the process is real-time: that is the engine's."""
    threads = Path(f"/proc/{process.pid}/task").iterdir()
    return any(os.sched_getscheduler(int(thread.name)) == os.SCHED_FIFO for thread in threads)


def wait_until_executing(process: subprocess.Popen[bytes], path: Path, errors: Path) -> None:
    """Wait for the run's directory, made after all calibration, and then for its engine."""
    deadline = time.monotonic() + DEADLINE_S
    while not ((path / "workload.jsonl").is_file() and executing(process)):
        assert process.poll() is None, errors.read_text("utf-8")
        assert time.monotonic() < deadline, errors.read_text("utf-8")
        time.sleep(0.05)


def records(process: subprocess.Popen[bytes]) -> set[str]:
    """What is recorded of this very run: its id ends with its process."""
    return {path.name for path in RUNS.glob(f"*-{process.pid}.json")}


@pytest.fixture
def long_run(step: Path, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A run in the midst of its execution, and its directory."""
    target, errors = tmp_path / "run", tmp_path / "errors"
    arguments = ["run", step, "-t", FABRIC, "-s", "rotor-direct", "-n", LONG, "-o", target]
    process = start(arguments, errors)
    try:
        wait_until_executing(process, target, errors)
        yield process, target
    finally:
        process.kill()
        process.wait()


def test_run_measures_what_was_predicted(step: Path, tmp_path: Path) -> None:
    chosen = [word for name in SCHEDULERS for word in ("-s", name)]
    done = subprocess.run(  # noqa: S603 (our own interpreter)
        words("run", step, "-t", FABRIC, *chosen, "-o", tmp_path / "o", "--format", "json"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    conforms("run", rows)
    assert [row["scheduler"] for row in rows] == list(SCHEDULERS)
    for row in rows:
        assert row["status"] == "ok"
        assert row["lost_bytes"] == 0
        assert row["drops"] == {"dark": 0, "unconnected": 0, "conflict": 0, "queue": 0}
        assert 0.9 < row["iteration_ns"] / row["predicted_iteration_ns"] < 1.5
        assert check_run_directory(Path(row["run"])) == []
        assert (Path(row["run"]) / "report.html").is_file()


def test_repeats_and_failures_have_their_rows(step: Path, tmp_path: Path) -> None:
    chosen = ["-s", "static", "-s", "flux", "--repeat", 2]  # one plane: static lacks a circuit
    done = subprocess.run(  # noqa: S603 (our own interpreter)
        words(
            *("run", step, "-t", "rails,planes=1,rate=400Gbps,delay=50us", *chosen),
            *("-o", tmp_path / "o", "--format", "json"),
        ),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    rows = json.loads(done.stdout)
    conforms("run", rows)
    assert [row["status"] for row in rows] == ["failed", "ok"]
    assert len(rows[1]["executions"]) == 2


def test_a_dry_run_measures_nothing(step: Path, tmp_path: Path) -> None:
    target = tmp_path / "o"
    done = subprocess.run(  # noqa: S603 (our own interpreter)
        words(
            "run", step, "-t", FABRIC, "-s", "flux", "--dry-run", "-o", target, "--format", "json"
        ),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    rows = json.loads(done.stdout)
    conforms("run", rows)
    (row,) = rows
    assert row["expected_wall_s"] > 0
    assert row["predicted_iteration_ns"] > 0
    assert not target.exists()


def test_interrupted_runs_clean_up_and_keep_their_files(
    long_run: tuple[subprocess.Popen[bytes], Path],
) -> None:
    process, target = long_run
    assert len(records(process)) == 1
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    assert process.wait(DEADLINE_S) == 130
    assert not records(process)
    run = read_run(target)
    assert run.manifest.status == "interrupted"
    assert run.summary.iteration_ns is None
    assert (target / "plan.json").is_file()
    assert (target / "transfers.parquet").is_file()
    assert run.manifest.files["plan.json"]


def test_after_a_killed_run_clean_removes_what_is_left(
    long_run: tuple[subprocess.Popen[bytes], Path],
) -> None:
    process, target = long_run
    process.kill()
    process.wait()
    assert read_run(target).manifest.status == "interrupted"
    (left,) = records(process)
    done = subprocess.run(  # noqa: S603 (our own interpreter)
        words("clean", "--format", "json"), cwd=ROOT, capture_output=True, text=True, check=True
    )
    rows = json.loads(done.stdout)
    conforms("clean", rows)
    removed = [row["removed"] for row in rows]
    assert any(line.endswith(left) for line in removed)
    assert not records(process)


def test_what_the_engine_cannot_do_is_refused_before_anything_is_built(step: Path) -> None:
    done = subprocess.run(  # noqa: S603 (our own interpreter)
        words("run", step, "-t", "hybrid", "-s", "rotor-direct"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (
        2,
        (
            "engine: plane 2 is a packet switch, because the fair shares of a rotation's queues on "
            "a packet plane are computed, not sent: simulate it instead, or leave out its packet "
            "planes\n"
        ),
    )


def test_two_runs_at_once_both_end_well_and_leave_nothing(step: Path, tmp_path: Path) -> None:
    running = {}
    for name, scheduler in (("one", "flux"), ("other", "greedy")):
        target = tmp_path / name
        arguments = ["run", step, "-t", FABRIC, "-s", scheduler, "-n", "2", "-o", target]
        running[name] = start([*arguments, "--dilation", "100"], tmp_path / f"{name}.errors")
    for name, process in running.items():
        try:
            assert process.wait(DEADLINE_S) == 0, (tmp_path / f"{name}.errors").read_text("utf-8")
        finally:
            process.kill()
        assert not records(process)
    cores = []
    for name in running:
        run = read_run(tmp_path / name)
        assert run.manifest.status == "ok"
        assert run.summary.lost_bytes == 0
        assert check_run_directory(tmp_path / name) == []
        cores.append(run.manifest.engine_core)
    assert len(set(cores)) == min(len(os.sched_getaffinity(0)), len(cores))
