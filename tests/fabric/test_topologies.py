"""Topologies, run on the emulated fabric as a user runs it, to a check that passes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from testbed.files.rundir import read_run
from testbed.files.verify import check_run_directory
from testbed.files.workload import write_workload
from testbed.synth import synth

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("step") / "step.workload.jsonl"
    write_workload(synth("llama3-8b", tp=2, dp=2, layers=1, seq=512, mfu=0.5), path)
    return path


def run(
    step: Path, topology: str, target: Path, *schedulers: str, options: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Run with `schedulers`, check every run's files, and return the rows."""
    chosen = [word for name in schedulers for word in ("-s", name)]
    command = ["run", step, "-t", topology, *chosen, "-n", "2", "-o", target, "--format", "json"]
    command += options
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
        ("servers,gpus=2,delay=50us", ("flux",)),
        ("rotor,matchings=2,delay=50us", ("rotorlb",)),
    ],
)
def test_a_topology_runs_to_a_check_that_passes(
    step: Path, tmp_path: Path, topology: str, schedulers: tuple[str, ...]
) -> None:
    rows = run(step, topology, tmp_path / "o", *schedulers)
    assert [row["scheduler"] for row in rows] == list(schedulers)


OWN = """
latency = "500ns"
nodes = 4

[[planes]]
rate = "400Gbps"
delay = "50us"
node_of = [0, 0, 1, 2, 3]

[[planes]]
kind = "eps"
rate = "200Gbps"

[[planes]]
rate = "100Gbps"
delay = "20us"
duplex = true
all_stop = true
"""


def test_a_topology_of_one_s_own_runs_to_a_check_that_passes(step: Path, tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(OWN, encoding="utf-8")
    (row,) = run(step, str(path), tmp_path / "o", "flux")
    fabric = read_run(Path(row["run"])).manifest.fabric
    assert [plane.kind for plane in fabric.planes] == ["ocs", "eps", "ocs"]
    assert fabric.latency_ns == 500


@pytest.mark.parametrize(
    ("scheduler", "size"),
    [
        ("flux", 400_000_000),  # its order needs room for a large message and those before it
        ("greedy", 4_000_000),
        ("rotor-direct", 4_000_000),
        ("rotor-vlb", 4_000_000),
    ],
)
def test_a_finite_nic_buffer_holds(step: Path, tmp_path: Path, scheduler: str, size: int) -> None:
    """It is less than most of these would fill, so that messages have to wait for room."""
    options = ("--dilation", "50", "--nic-buffer", f"{size}B")
    (row,) = run(step, "rails,delay=50us", tmp_path / "o", scheduler, options=options)
    found = read_run(Path(row["run"]))
    assert found.summary.nic_buffer_bytes == size
    peak = row["nic_peak_bytes_eager"]
    if scheduler != "rotor-vlb":  # what a relay keeps for others has room of its own
        assert (0 if scheduler == "flux" else size / 2) < peak <= size
    assert row["iteration_ns"] == pytest.approx(row["predicted_iteration_ns"], rel=0.1)
