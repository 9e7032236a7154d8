"""`sweep` and `figure` as a user chains them, and what they refuse."""

from __future__ import annotations

import contextlib
import json
import re
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from topologies.errors import MachineError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EXPERIMENT = """
format = "fluxbed-experiment"
version = 1
title = "Two schedulers, two delays"
schedulers = ["rotor-direct", "greedy", "static"]
budget = "1s"
phases = 4

[workload]
path = "step.workload.jsonl"

[topology]
name = "rails"
planes = 1
delay = ["10us", "1ms"]

[expansion]
algorithm = "direct"
"""


@pytest.fixture(scope="session")
def experiment(step: Path) -> Path:
    path = step.parent / "two.toml"
    path.write_text(EXPERIMENT, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def table(experiment: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a finished sweep of `experiment`."""
    from testbed.cli.evaluation import simulate_point
    from testbed.sweep import Store, read_experiment, sweep

    points = read_experiment(experiment).points(experiment)
    store = Store(tmp_path_factory.mktemp("sweep") / "two", experiment.read_bytes())
    sweep(points, simulate_point, store, None)
    store.write_table(points)
    return store.path


def test_a_sweep_is_what_simulate_says_point_by_point(
    fluxbed: Any, step: Path, table: Path, tmp_path: Path
) -> None:
    frame = pl.read_parquet(table / "table.parquet")
    assert frame["scheduler"].to_list() == ["rotor-direct", "greedy", "static"] * 2
    assert frame["status"].to_list() == ["ok", "ok", "failed"] * 2
    code, out, _ = fluxbed(
        "simulate", step, "-t", "rails,planes=1,delay=10us", "-s", "rotor-direct", "-s", "greedy",
        "--collective", "all_reduce=direct", "--collective", "all_gather=direct", "--collective",
        "reduce_scatter=direct", "-o", tmp_path / "runs", "--format", "json",
    )  # fmt: skip
    assert code == 0
    for row, record in zip(frame.rows(named=True), json.loads(out), strict=False):
        for key in ("iteration_ns", "nic_peak_bytes_eager", "reconfigurations", "exposed_comm_ns"):
            assert row[key] == record[key], key
    rotor = frame.row(0, named=True)
    assert rotor["iteration_least_ns"] <= rotor["iteration_ns"] <= rotor["iteration_most_ns"]
    assert frame["iteration_mean_ns"].is_null().to_list() == [False, True, True] * 2


def test_a_sweep_is_resumed_and_tells_its_failures(
    fluxbed: Any, experiment: Path, tmp_path: Path
) -> None:
    words = ["sweep", experiment, "-o", tmp_path / "s", "-j", 1]
    code, out, err = fluxbed(*words, "--only", "topology.delay=10us", "--format", "json")
    assert code == 0
    assert [(r["scheduler"], r["points"], r["failed"], r["best"]) for r in json.loads(out)] == [
        ("rotor-direct", 1, 0, 0),
        ("greedy", 1, 0, 1),
        ("static", 1, 1, 0),
    ]
    lines = err.splitlines()
    assert lines[0] == f"{tmp_path / 's' / 'table.parquet'}: 3 points; asked for 3"
    assert lines[1].startswith("1 failed: static: node ")
    assert fluxbed(*words, "--only", "topology.delay=10us")[0] == 0
    assert len(pl.read_parquet(tmp_path / "s" / "table.parquet")) == 3
    code, out, err = fluxbed(*words)
    assert code == 0
    assert err.splitlines()[0].endswith(": 6 points; asked for 6, 3 of them known before")
    assert [line.split()[:3] for line in out.splitlines()[1:]] == [
        ["rotor-direct", "2", "0"],
        ["greedy", "2", "0"],
        ["static", "2", "2"],
    ]


def test_a_sweep_shows_how_far_it_is_and_the_time_left(
    fluxbed: Any, experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []

    @contextlib.contextmanager
    def line() -> Iterator[Any]:
        yield shown.append

    monkeypatch.setattr("testbed.cli.sweep.progress_line", line)
    assert fluxbed("sweep", experiment, "-o", tmp_path / "s", "-j", 1)[0] == 0
    assert shown[0] == "simulate: 0 of 6 points"
    for number, text in enumerate(shown[1:], 1):
        failed = r", [12] failed" if "failed" in text else ""
        assert re.fullmatch(rf"simulate: {number} of 6 points{failed}, 0:\d\d:\d\d left", text)
    assert shown[-1] == "simulate: 6 of 6 points, 2 failed, 0:00:00 left"


def test_a_sweep_in_which_all_fails_fails(fluxbed: Any, experiment: Path, tmp_path: Path) -> None:
    words = ["sweep", experiment, "-o", tmp_path / "s", "-j", 1, "--only", "scheduler=static"]
    assert fluxbed(*words)[0] == 1


@pytest.mark.parametrize("kind", ["svg", "pdf", "png"])
def test_a_figure_says_what_it_shows(fluxbed: Any, table: Path, tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"f.{kind}"
    code, out, err = fluxbed(
        "figure", table, "-x", "topology.delay", "-y", "iteration_ns", "-o", path
    )
    assert (code, err) == (0, f"written: {path}\n")
    assert out == (
        "Iteration time against reconfiguration delay τ, by scheduler. Workload: "
        "step.workload.jsonl. Topology: rails, planes 1. Collectives: direct. Planning: budget "
        "1s, seed 0, phases 4. Simulated. Injection: unlimited NIC buffers, which never change "
        "timing. Window: iterations 3 to 12, circuits carried over. Points without a result, not "
        "shown: 2.\n"
    )
    data = path.read_bytes()
    assert data.startswith({"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG"}[kind])
    if kind == "svg":
        text = data.decode()
        for word in (
            "rotor-direct",
            "greedy",
            "reconfiguration delay τ (µs)",
            "iteration time (ms)",
        ):
            assert f">{word}<" in text
        assert ">static<" not in text


def test_nothing_to_compare_with_is_said(fluxbed: Any, table: Path, tmp_path: Path) -> None:
    path = tmp_path / "f.svg"
    code, out, err = fluxbed(
        "figure", table, "-x", "topology.delay", "-y", "iteration_ns", "-o", path,
        "--relative-to", "bvn",
    )  # fmt: skip
    assert (code, out) == (2, "")
    assert err == (
        "figure: there is no scheduler 'bvn', because there are rotor-direct, greedy: "
        "choose one of them\n"
    )


WRONG = {
    "a column that is not there": (
        ["-x", "topology.colour", "-y", "iteration_ns", "-o", "f.svg"],
        "figure: there is no column 'topology.colour', because the columns are point, ",
    ),
    "words instead of numbers": (
        ["-x", "topology.delay", "-y", "status", "-o", "f.svg"],
        "figure: 'status' has no numbers, because it is of type String: choose another -y\n",
    ),
    "another kind of file": (
        ["-x", "topology.delay", "-y", "iteration_ns", "-o", "f.doc"],
        "f.doc: it is no kind of figure, because figures are .pdf, .svg, .png: name a .pdf file\n",
    ),
    "no condition": (
        ["-x", "topology.delay", "-y", "iteration_ns", "-o", "f.svg", "--where", "flux"],
        (
            "--where: 'flux' is no condition, because a condition is COLUMN=VALUE: write "
            "scheduler=flux\n"
        ),
    ),
    "nothing left": (
        ["-x", "topology.delay", "-y", "iteration_ns", "-o", "f.svg", "--where", "scheduler=x"],
        (
            "figure: nothing is left to draw, because no row has all that is asked for: ask for "
            "less with --where\n"
        ),
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_figure_is_one_sentence(fluxbed: Any, table: Path, case: str) -> None:
    words, sentence = WRONG[case]
    code, out, err = fluxbed("figure", table, *words)
    assert (code, out) == (2, "")
    assert err.startswith(sentence)
    assert err.count("\n") == 1


def test_what_is_no_sweep_is_named(fluxbed: Any, tmp_path: Path) -> None:
    code, out, err = fluxbed("figure", tmp_path, "-x", "a", "-y", "b", "-o", tmp_path / "f.svg")
    assert (code, out) == (5, "")
    assert err.startswith(
        f"{tmp_path / 'table.parquet'}: this is not the table of a sweep, because"
    )
    assert err.count("\n") == 1


def test_only_names_a_setting(fluxbed: Any, experiment: Path, tmp_path: Path) -> None:
    words = ["sweep", experiment, "-o", tmp_path / "s", "--only"]
    assert fluxbed(*words, "colour=1") == (
        2,
        "",
        (
            "--only: 'colour=1' is not SETTING=VALUE, because the settings are mode, "
            "workload.path, topology.name, topology.planes, topology.delay, expansion.algorithm, "
            "budget, seed, scheduler, iterations, skip, phases: write scheduler=flux\n"
        ),
    )
    assert fluxbed(*words, "seed=7") == (
        2,
        "",
        (
            "--only: no point is left, because no combination has seed=7: "
            "see the experiment's lists\n"
        ),
    )


MIXED = (
    EXPERIMENT.replace('"rotor-direct", "greedy", "static"', '"greedy"').replace(
        '["10us", "1ms"]', '"10us"'
    )
    + '[[grids]]\n[[grids]]\nmode = "run"\nlabel = "on packets"\n'
    '[[figures]]\nname = "both"\nx = "mode"\ny = "iteration_ns"\n'
    '[[figures]]\nname = "none"\nx = "mode"\ny = "iteration_ns"\nwhere = { mode = ["x"] }\n'
)


@pytest.fixture
def mixed(step: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An experiment with a simulated and an emulated point, and a machine that emulates."""
    monkeypatch.setattr("testbed.emulator.capabilities.require_emulation", lambda: None)
    path = step.parent / "mixed.toml"
    path.write_text(MIXED, encoding="utf-8")
    return path


def staged(overload: list[str]) -> type:
    """A stage that measures what it is told."""

    class Stage:
        def __init__(self, *_: object, **__: object) -> None: ...

        def execute(self, attempt: Any) -> dict[str, Any]:
            drops = {"dark": 0, "unconnected": 0, "conflict": 0}
            return {
                "scheduler": attempt.contender.label, "status": "ok", "run": str(attempt.output),
                "iteration_ns": 1e6, "predicted_iteration_ns": 1e6, "difference": 0.0,
                "lost_bytes": 0, "drops": drops, "overload": overload, "dilation": 2.0,
            }  # fmt: skip

    return Stage


def test_emulated_grids_come_after_the_simulated_ones_and_say_whether_pace_was_kept(
    fluxbed: Any, mixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("testbed.cli.stage.Stage", staged(["frames are late"]))
    words = ["sweep", mixed, "-o", tmp_path / "s", "-j", 1]
    code, _, err = fluxbed(*words)
    assert code == 0
    frame = pl.read_parquet(tmp_path / "s" / "table.parquet")
    assert frame["mode"].to_list() == ["simulate", "run"]
    assert frame["label"].to_list() == [None, "on packets"]
    assert frame["iterations"].to_list() == [12, 4]
    assert frame["pace"].to_list() == [None, "not kept"]
    assert frame["overload"].to_list() == [None, "frames are late"]
    assert frame["drops.dark"].to_list() == [None, 0]
    assert frame["run"].to_list() == [None, frame["point"][1]]
    assert (tmp_path / "s" / "both.svg").read_bytes().startswith(b"<?xml")
    assert "none.svg is not drawn: figure: nothing is left to draw" in err
    monkeypatch.setattr("testbed.cli.stage.Stage", staged([]))
    assert fluxbed(*words, "--retry", "--only", "mode=run")[0] == 0
    again = pl.read_parquet(tmp_path / "s" / "table.parquet")
    assert again["pace"].to_list() == [None, "kept"]
    assert again["iteration_ns"][0] == frame["iteration_ns"][0]


def test_where_nothing_can_be_emulated_the_simulated_points_are_kept(
    fluxbed: Any, mixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise MachineError("no emulation", "here", "it is a test", "use another machine")

    monkeypatch.setattr("testbed.emulator.capabilities.require_emulation", refuse)
    code, _, err = fluxbed("sweep", mixed, "-o", tmp_path / "s", "-j", 1)
    assert code == 4
    assert "here: no emulation, because it is a test: use another machine" in err
    assert pl.read_parquet(tmp_path / "s" / "table.parquet")["mode"].to_list() == ["simulate"]
    code, _, err = fluxbed(
        "sweep", mixed, "-o", tmp_path / "s", "--only", "mode=run", "--dask", "tcp://10.0.0.1:1"
    )
    assert code == 2
    assert "an emulation needs this machine for itself" in err


def test_a_cluster_of_two_workers_finds_what_this_machine_finds(
    fluxbed: Any, experiment: Path, table: Path, tmp_path: Path
) -> None:
    distributed = pytest.importorskip("distributed", reason="the extra 'cluster' is not installed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None, protocol="tcp"
    ) as workers:
        words = ["sweep", experiment, "-o", tmp_path / "s", "--dask", workers.scheduler_address]
        assert fluxbed(*words)[0] == 0
    there, here = (
        pl.read_parquet(path / "table.parquet").drop("plan_wall_s")
        for path in (tmp_path / "s", table)
    )
    assert there.equals(here)


def test_a_map_is_a_figure_too(fluxbed: Any, table: Path, tmp_path: Path) -> None:
    path = tmp_path / "map.svg"
    words = ["-x", "delay_over_window", "-y", "peers_per_port", "--map", "iteration_ns"]
    code, out, _ = fluxbed("figure", table, *words, "--relative-to", "greedy", "-o", path)
    assert code == 0
    assert out.startswith("Iteration time of the best other scheduler over that of greedy, ")
    assert ">iteration time, best other over greedy<" in path.read_text("utf-8")


def test_points_that_no_planner_can_tell_apart_share_a_plan(
    fluxbed: Any, experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from testbed.cli import evaluation

    made: list[tuple[str, int]] = []
    plan = evaluation.plan_job

    def counted(job: Any, spec: str, options: Any) -> Any:
        made.append((spec, options["seed"]))
        return plan(job, spec, options)

    monkeypatch.setattr(evaluation, "plan_job", counted)
    monkeypatch.setattr(evaluation, "_plans", {})
    text = experiment.read_text("utf-8").replace('"rotor-direct", "greedy", "static"', '"greedy"')
    text = 'jitter = [0.0, 0.3]\nnic_buffer = ["unlimited", "1MiB"]\nseeds = [0, 1]\n' + text
    path = experiment.parent / "shared.toml"
    path.write_text(text.replace('["10us", "1ms"]', '"10us"'), encoding="utf-8")
    assert fluxbed("sweep", path, "-o", tmp_path / "s", "-j", 1)[0] == 0
    assert sorted(made) == [("greedy", 0), ("greedy", 1)]
    frame = pl.read_parquet(tmp_path / "s" / "table.parquet")
    assert frame["status"].to_list() == ["ok"] * 8
    assert frame["iteration_ns"].n_unique() > 1
    for row in frame.filter(seed=1).rows(named=True):
        code, out, _ = fluxbed(
            "simulate", experiment.parent / "step.workload.jsonl", "-t",
            "rails,planes=1,delay=10us", "-s", "greedy", "--seed", 1, "--jitter", row["jitter"],
            "--nic-buffer", row["nic_buffer"], "--collective", "all_reduce=direct", "--collective",
            "all_gather=direct", "--collective", "reduce_scatter=direct", "--format", "json",
            "-o", tmp_path / row["point"],
        )  # fmt: skip
        assert code == 0
        assert json.loads(out)[0]["iteration_ns"] == row["iteration_ns"]
