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
