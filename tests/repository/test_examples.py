"""The example scheduler schedules, and the example figure is drawn from what a run leaves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
TRACE = REPOSITORY / "examples/traces/llama-tp4-dp2"
FABRIC = "rails,planes=2,rate=800Gbps,delay=10us"


def python(*arguments: str | Path) -> str:
    done = subprocess.run(  # noqa: S603 (our own commands)
        [sys.executable, *map(str, arguments)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Simulate the bundled trace under two schedulers, all ranks of a group sending to all."""
    meta = json.loads((TRACE / "meta.json").read_text())
    direct = [f"--collective={kind}=direct" for kind in ("all_gather", "reduce_scatter")]
    chosen = ["-s", "docs/my_flux.py:MyFlux,patience=5us", "-s", "rotor-direct"]
    output = tmp_path_factory.mktemp("runs") / "both"
    scale = f"--compute-scale={meta['compute_scale']}"
    many: list[str | Path] = ["-n", "4", "--format", "json", "-o", output]
    python("-m", "fluxbed", "simulate", TRACE, "-t", FABRIC, *chosen, *direct, scale, *many)
    found = [path.parent for path in output.glob("*/summary.json")]
    return {json.loads((path / "summary.json").read_text())["scheduler"]: path for path in found}


def test_my_flux_beats_a_rotor(runs: dict[str, Path]) -> None:
    times = {
        name: json.loads((path / "summary.json").read_text())["iteration_ns"]
        for name, path in runs.items()
    }
    (mine,) = (ns for name, ns in times.items() if "MyFlux" in name or name == "my-flux")
    assert mine < times["rotor-direct"]


def test_runs_can_be_drawn(runs: dict[str, Path], tmp_path: Path) -> None:
    figure = tmp_path / "figure.png"
    assert str(figure) in python("examples/draw_runs.py", *runs.values(), "-o", figure)
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_an_importer_of_ones_own(tmp_path: Path) -> None:
    rows = ["rank,operation,value,group"]
    for rank in (0, 1):
        rows += [f"{rank},compute,1000,", f"{rank},all_reduce,4096,0 1", f"{rank},compute,500,"]
    (tmp_path / "steps.csv").write_text("\n".join(rows))
    workload = tmp_path / "steps.workload.jsonl"
    reader = "docs/my_trace.py:CsvTrace"
    python("-m", "fluxbed", "convert", "--from", reader, tmp_path / "steps.csv", "-o", workload)
    operations = [json.loads(line) for line in workload.read_text().splitlines()[1:]]
    (collective,) = (one for one in operations if one["op"] == "comm")
    assert collective["ranks"]["1"]["in_bytes"] == 4096
    computations = [one for one in operations if one["op"] == "compute"]
    assert [(one["rank"], one["dur_ns"]) for one in computations] == [
        (0, 1000), (1, 1000), (0, 500), (1, 500),
    ]  # fmt: skip
    assert all(one["deps"] == [collective["id"]] for one in computations[2:])


def test_a_topology_of_ones_own() -> None:
    spec = "docs/my_fabric.py:pods,nodes=8,pod_nodes=4,spine_delay=1ms"
    picture = python("-m", "fluxbed", "topologies", "show", spec)
    assert "8 nodes on 3 planes" in picture
    assert "dark 1 ms" in picture
