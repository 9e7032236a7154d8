"""Every verb, from files to files, as a user would chain them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

ROOT = Path(__file__).resolve().parents[3]
HEAVY = ["numba", "numpy", "polars", "plotly", "scapy", "pyroute2", "mininet", "matplotlib"]
FABRIC = "rails,planes=2,rate=400Gbps,delay=20us"


@pytest.mark.parametrize("words", [["--help"], ["simulate", "--help"], ["run", "--help"]])
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    program = (
        "import sys\nimport fluxbed\n"
        f"sys.argv = ['fluxbed', *{words!r}]\n"
        "try:\n    fluxbed.main()\nexcept SystemExit as ended:\n    assert not ended.code\n"
        f"print('heavy:', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(  # noqa: S603 (our own interpreter)
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.endswith("heavy: []\n")
    assert "Example: " in done.stdout or words == ["--help"]


def test_a_stranger_named_scheduler_is_refused(tmp_path: Path) -> None:
    (tmp_path / "scheduler.py").write_text("jobs = []\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "fluxbed", "--help"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 4
    assert done.stderr.startswith(
        f"fluxbed: the package 'scheduler' is not ours but {tmp_path / 'scheduler.py'}, because"
    )
    assert done.stderr.count("\n") == 1


def test_a_package_installed_over_ours_is_refused(tmp_path: Path) -> None:
    (tmp_path / "fluxbed.py").write_bytes((ROOT / "fluxbed.py").read_bytes())
    for room in ("topologies", "scheduler", "testbed"):
        (tmp_path / room).mkdir()
        text = '"""fluxbed: ours."""\n' if room != "scheduler" else '"""Job scheduling."""\n'
        (tmp_path / room / "__init__.py").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "fluxbed.py"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 4
    assert str(tmp_path / "scheduler" / "__init__.py") in done.stderr


def test_plan_check_simulate_compare_report(fluxbed: Any, step: Path, tmp_path: Path) -> None:
    plan, runs = tmp_path / "plan.json", tmp_path / "runs"
    code, out, _ = fluxbed("plan", step, "-t", FABRIC, "-o", plan, "--format", "json")
    assert code == 0
    promised = json.loads(out)[0]
    assert promised["lower_bound_ns"] <= promised["iteration_ns"]
    assert fluxbed("check", plan, step) == (0, "", f"{plan}: nothing is violated\n")

    code, out, _ = fluxbed(
        "simulate", step, "-t", FABRIC, "-p", plan, "-s", "rotor-direct", "-o", runs,
        "--format", "json",
    )  # fmt: skip
    assert code == 0
    rotor, planned = json.loads(out)
    assert planned["iteration_ns"] == promised["iteration_ns"]
    assert rotor["iteration_ns"] > planned["iteration_ns"]
    for run in (rotor, planned):
        assert fluxbed("check", run["run"])[0] == 0

    code, out, _ = fluxbed("compare", rotor["run"], planned["run"], "--format", "json")
    assert code == 0
    ratio = json.loads(out)[1]["iteration_ns_ratio"]
    assert ratio == planned["iteration_ns"] / rotor["iteration_ns"]

    page = runs / "plan" / "report.html"
    page.unlink()
    assert fluxbed("report", runs / "plan")[0] == 0
    assert page.is_file()
    assert fluxbed("inspect", plan)[0] == 0
    assert fluxbed("inspect", runs / "plan", "--format", "json")[0] == 0


def test_a_changed_run_fails_its_check(fluxbed: Any, step: Path, tmp_path: Path) -> None:
    assert fluxbed("simulate", step, "-t", FABRIC, "-s", "flux", "-o", tmp_path / "run")[0] == 0
    summary = tmp_path / "run" / "summary.json"
    summary.write_bytes(summary.read_bytes().replace(b'"lost_bytes": 0', b'"lost_bytes": 1'))
    code, out, err = fluxbed("check", tmp_path / "run")
    assert code == 3
    assert "it has changed since the run" in out
    assert err == f"{tmp_path / 'run'}: 1 violations\n"


def test_expand_writes_messages_and_dependencies(fluxbed: Any, step: Path, tmp_path: Path) -> None:
    code, _, err = fluxbed("expand", step, "-t", FABRIC, "-o", tmp_path / "messages.parquet")
    assert code == 0
    table = pl.read_parquet(tmp_path / "messages.parquet")
    assert f"{len(table)} messages" in err
    assert len(table) > 0


def test_convert_round_trips_through_chakra(fluxbed: Any, step: Path, tmp_path: Path) -> None:
    assert fluxbed("convert", step, "--to", "chakra", "-o", tmp_path / "et")[0] == 0
    assert fluxbed("convert", tmp_path / "et", "-o", tmp_path / "back.workload.jsonl")[0] == 0
    assert (tmp_path / "back.workload.jsonl").read_bytes() == step.read_bytes()


def test_convert_to_goal_keeps_every_message(fluxbed: Any, step: Path, tmp_path: Path) -> None:
    goal = tmp_path / "step.goal"
    code, _, err = fluxbed("convert", step, "--to", "goal", "-o", goal)
    assert code == 0
    assert goal.read_text("utf-8").startswith("num_ranks 4")
    assert "messages" in err


def test_synth_makes_what_simulate_takes(fluxbed: Any, tmp_path: Path) -> None:
    path = tmp_path / "mix.workload.jsonl.zst"
    words = ["--ep", 2, "--dp", 2, "--layers", 1, "--mfu", 0.4, "--seq", 2048]
    assert fluxbed("synth", "mixtral-8x7b", *words, "-o", path)[0] == 0
    code, out, _ = fluxbed("inspect", path, "--format", "csv")
    assert code == 0
    assert "all_to_all" in out


@pytest.mark.parametrize("verb", ["topologies", "schedulers"])
def test_lists_are_the_same_in_every_format(fluxbed: Any, verb: str) -> None:
    records = json.loads(fluxbed(verb, "--format", "json").out)
    table = fluxbed(verb).out.splitlines()
    assert len(table) == len(records) + 1
    assert [line.split()[0] for line in table[1:]] == [next(iter(r.values())) for r in records]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may run")
def test_run_without_root_prints_the_command_to_use(fluxbed: Any, step: Path) -> None:
    code, out, err = fluxbed("run", step, "-t", FABRIC, "-s", "flux")
    assert (code, out) == (4, "")
    assert "needs root, because running as user" in err
    assert ": run sudo " in err
