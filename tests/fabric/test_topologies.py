"""Topologies, run on the emulated fabric as a user runs it, to a check that passes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from testbed.files.verify import check_run_directory
from testbed.files.workload import write_workload
from testbed.synth import synth

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("step") / "step.workload.jsonl"
    write_workload(synth("llama3-8b", tp=2, dp=2, layers=1, seq=512, mfu=0.5), path)
    return path


def run(step: Path, topology: str, target: Path, *schedulers: str) -> list[dict[str, Any]]:
    """Run with `schedulers`, check every run's files, and return the rows."""
    chosen = [word for name in schedulers for word in ("-s", name)]
    command = ["run", step, "-t", topology, *chosen, "-n", "2", "-o", target, "--format", "json"]
    done = subprocess.run(  # noqa: S603 (our own interpreter)
        [sys.executable, "-m", "fluxbed", *map(str, command)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    for row in rows:
        assert row["status"] == "ok"
        assert row["lost_bytes"] == 0
        assert set(row["drops"].values()) == {0}
        assert check_run_directory(Path(row["run"])) == []
    return rows


@pytest.mark.parametrize(
    ("topology", "schedulers"),
    [
        ("single,ports=2,delay=50us", ("flux",)),
        ("torus,cube=2x2,delay=50us", ("flux",)),
        ("hybrid,planes=1,delay=50us", ("flux",)),
    ],
)
def test_a_topology_runs_to_a_check_that_passes(
    step: Path, tmp_path: Path, topology: str, schedulers: tuple[str, ...]
) -> None:
    rows = run(step, topology, tmp_path / "o", *schedulers)
    assert [row["scheduler"] for row in rows] == list(schedulers)
