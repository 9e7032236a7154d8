"""Jitter, stragglers and skew from the command line: recorded, checked, and refused if absurd."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from testbed.files.rundir import read_run
from testbed.files.verify import check_run_directory

if TYPE_CHECKING:
    from pathlib import Path

FABRIC = "rails,planes=2,delay=10us"
ASKED = ["--jitter", "10%", "--jitter-seed", "3", "--straggler", "1=1.5"]


def test_a_perturbed_run_says_so_and_checks(fluxbed: Any, step: Path, tmp_path: Path) -> None:
    common = ["-t", FABRIC, "-s", "rotor-direct", "-s", "static", "-n", "4", "--format", "json"]
    code, out, _ = fluxbed("simulate", step, *common, *ASKED, "-o", tmp_path / "o")
    assert code == 0
    plain = json.loads(fluxbed("simulate", step, *common, "-o", tmp_path / "p").out)
    for row, undisturbed in zip(json.loads(out), plain, strict=True):
        assert row["perturbed"] is True
        assert undisturbed["perturbed"] is False
        assert row["iterations_ns"] != undisturbed["iterations_ns"]
        run = read_run(row["run"])
        assert run.manifest.jitter is not None
        recorded = run.manifest.jitter
        assert (recorded.spread, recorded.seed, recorded.stragglers) == (0.1, 3, {"1": 1.5})
        assert read_run(undisturbed["run"]).manifest.jitter is None
        assert check_run_directory(run.path) == []


def test_another_seed_than_the_recorded_one_is_caught(
    fluxbed: Any, step: Path, tmp_path: Path
) -> None:
    words = ["-t", FABRIC, "-s", "rotor-direct", "-n", "3", "--jitter", "0.1", "-o", tmp_path / "o"]
    assert fluxbed("simulate", step, *words).code == 0
    path = tmp_path / "o" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["jitter"]["seed"] = 1
    path.write_text(json.dumps(manifest))
    assert "tables describe the workload" in {v.rule for v in check_run_directory(tmp_path / "o")}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--jitter", "much"], "'much' is no part of one: write 0.1 or 10%."),
        (["--jitter", "-5%"], ("perturbation: jitter=-0.05, because a spread lies between 0 and "
         "10, 1000 %: write jitter=0.1")),
        (["--straggler", "2"], ("straggler: '2', because a straggler is a rank and how many "
         "times as long it takes: write 3=1.5")),
        (["--straggler", "7=2"], ("perturbation: there is no rank 7, because the world has 4 "
         "ranks: name one of them")),
        (["--skew", "0.2"], ("perturbation: skew=0.2, because the workload has no all_to_all to "
         "skew: leave it out, or use one with experts")),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_sentence(
    fluxbed: Any, step: Path, words: list[str], sentence: str
) -> None:
    code, out, err = fluxbed("simulate", step, "-t", FABRIC, "-s", "static", *words)
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1
