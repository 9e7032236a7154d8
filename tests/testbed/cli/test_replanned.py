"""`simulate --replan`: what planning anew would bring, told beside the run; `run` cannot."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from testbed.files.rundir import read_run
from testbed.files.verify import check_run_directory

if TYPE_CHECKING:
    from pathlib import Path

WORDS = ["-t", "rails,planes=2,delay=10us", "-s", "flux", "--budget", "20ms", "-n", "6"]
SLOW = ["--straggler", "1=3"]


def test_a_straggler_is_planned_for_and_the_run_keeps_its_own_plan(
    fluxbed: Any, step: Path, tmp_path: Path
) -> None:
    asked = [*WORDS, *SLOW, "--replan", "10%", "--replan-time", "1us", "--format", "json"]
    plain = json.loads(
        fluxbed("simulate", step, *WORDS, *SLOW, "--format", "json", "-o", tmp_path / "a").out
    )
    code, out, _ = fluxbed("simulate", step, *asked, "-o", tmp_path / "b")
    assert code == 0
    (row,), (before,) = json.loads(out), plain
    assert row["iterations_ns"] == before["iterations_ns"]
    found = row["replanning"]
    assert (found["threshold"], found["planning_ns"]) == (0.1, 1000)
    assert len(found["takeovers"]) == 1
    first = found["takeovers"][0]
    assert found["iterations_ns"][: first - 1] == row["iterations_ns"][: first - 1]
    assert found["iteration_ns"] == sum(found["iterations_ns"][2:]) / 4
    summary = read_run(row["run"]).summary
    assert summary.replanning is not None
    assert summary.replanning.takeovers == [first]
    assert before["replanning"] is None
    assert check_run_directory(tmp_path / "b") == []


def test_nothing_drifts_and_nothing_is_planned_anew(
    fluxbed: Any, step: Path, tmp_path: Path
) -> None:
    code, out, _ = fluxbed(
        "simulate", step, *WORDS, "--replan", "10%", "--format", "json", "-o", tmp_path / "a"
    )
    assert code == 0
    (row,) = json.loads(out)
    assert row["replanning"]["planning_ns"] == 20_000_000  # the budget
    assert row["replanning"]["takeovers"] == []
    assert row["replanning"]["iterations_ns"] == row["iterations_ns"]


def test_what_has_no_order_is_not_planned_anew(fluxbed: Any, step: Path, tmp_path: Path) -> None:
    words = ["-t", "rails,delay=10us", "-s", "greedy", "-n", "3", "--replan", "10%"]
    code, _, err = fluxbed("simulate", step, *words, "-o", tmp_path / "a")
    assert code == 0
    assert "greedy: nothing is planned anew, because it does not plan an order of messages" in err
    assert read_run(tmp_path / "a").summary.replanning is None


def test_a_plan_from_a_file_has_nobody_to_plan_anew(
    fluxbed: Any, step: Path, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.json"
    assert fluxbed("plan", step, "-t", "rails,delay=10us", "-s", "static", "-o", plan).code == 0
    code, out, err = fluxbed(
        "simulate", step, "-p", plan, "-n", "3", "--replan", "10%", "-o", tmp_path / "a"
    )
    assert (code, out) == (2, "")
    assert "--replan is given, because it is a file, and nobody is there to plan anew" in err


def test_an_emulated_run_says_that_it_cannot(fluxbed: Any, step: Path) -> None:
    code, out, err = fluxbed("run", step, "-t", "rails,delay=10us", "-s", "flux", "--replan", "10%")
    assert (code, out) == (2, "")
    assert err == (
        "--replan: an emulated run cannot plan anew, because its engine executes one plan, which "
        "is written before it starts: use fluxbed simulate --replan\n"
    )
