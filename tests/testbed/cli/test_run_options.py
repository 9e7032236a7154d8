"""What `run` takes and refuses, and how several executions become one row: no root needed."""

from __future__ import annotations

import json
import math
import shutil
from typing import TYPE_CHECKING, Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.cli.again import read_repetition
from testbed.cli.repeats import median_interval, together
from testbed.cli.run import command
from testbed.cli.stage import hosts_named
from topologies.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

FABRIC = "rails,planes=2,rate=400Gbps,delay=20us"


@pytest.fixture(scope="module")
def simulated(step: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory as `simulate` writes it."""
    from click.testing import CliRunner

    from testbed.cli.simulate import command as simulate

    target = tmp_path_factory.mktemp("runs") / "flux"
    words = ["-t", FABRIC, "-s", "flux", "-n", "5", "--skip", "2", "-o", str(target)]
    done = CliRunner().invoke(simulate, [str(step), *words])
    assert done.exit_code == 0, done.output
    return target


@pytest.fixture
def emulated(simulated: Path, tmp_path: Path) -> Path:
    """The same, with what an emulation would have written into its manifest."""
    target = tmp_path / "run"
    shutil.copytree(simulated, target)
    manifest = json.loads((target / "manifest.json").read_bytes())
    manifest |= {
        "origin": "emulated",
        "dilation": 16.0,
        "bytes_per_wall_byte": 2.5,
        "quantum_bytes": 10_240,
        "guard_ns": 3,
        "lookahead_ns": 7,
        "faults": ["frame-loss:share=0.1"],
        "fault_seed": 3,
    }
    (target / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return target


def test_nothing_to_replay_is_refused(fluxbed: Any) -> None:
    assert fluxbed("run", "-s", "flux") == (
        2,
        "",
        (
            "command line: no workload is given, because nothing says what to replay: "
            "give a trace or a workload file, or --from RUN\n"
        ),
    )


def test_a_run_and_a_workload_contradict(fluxbed: Any, step: Path, simulated: Path) -> None:
    assert fluxbed("run", step, "--from", simulated) == (
        2,
        "",
        (
            f"--from: a workload and the run {simulated} are given, because the run has its own "
            "workload: leave one of them out\n"
        ),
    )


@pytest.mark.parametrize(
    "words",
    [
        ["--iterations", "4"],
        ["--scheduler", "flux"],
        ["--dilation", "3"],
        ["--topology", FABRIC],
        ["--lookahead", "1us"],
        ["--seed", "0"],
    ],
)
def test_what_the_run_decides_is_refused(fluxbed: Any, emulated: Path, words: list[str]) -> None:
    assert fluxbed("run", "--from", emulated, *words) == (
        2,
        "",
        (
            f"command line: {words[0]} is given beside --from {emulated}, because the run has "
            f"decided it: leave it out, or run {emulated}/workload.jsonl -p {emulated}/plan.json "
            "with it\n"
        ),
    )


def test_a_simulated_run_cannot_be_emulated_again(fluxbed: Any, simulated: Path) -> None:
    assert fluxbed("run", "--from", simulated) == (
        2,
        "",
        (
            f"{simulated}: the run was simulated, not emulated, because it has no dilation: "
            f"run {simulated}/workload.jsonl -p {simulated}/plan.json\n"
        ),
    )


def test_what_is_no_run_is_refused(fluxbed: Any, tmp_path: Path) -> None:
    assert fluxbed("run", "--from", tmp_path) == (
        5,
        "",
        f"{tmp_path}: this is not a run directory, because it has no manifest.json: name a run\n",
    )


def test_a_dilation_that_is_none_is_refused(fluxbed: Any, step: Path) -> None:
    assert fluxbed("run", step, "-t", FABRIC, "-s", "flux", "--dilation", "-1") == (
        2,
        "",
        (
            "--dilation: '-1' is no dilation, because it must be auto or a positive number: "
            "write --dilation auto\n"
        ),
    )


def test_a_repeat_below_one_is_refused(fluxbed: Any, step: Path) -> None:
    code, out, err = fluxbed("run", step, "-t", FABRIC, "-s", "flux", "--repeat", "0")
    assert (code, out) == (2, "")
    assert err.startswith("fluxbed run: Invalid value for '--repeat': 0 is not in the range")


def test_a_run_is_repeated_to_the_byte(emulated: Path) -> None:
    words = ["--from", str(emulated), "--repeat", "3", "--pcap", "h1"]
    with command.make_context("run", words) as context:
        again = read_repetition(context)
    assert again is not None
    assert again.contender.label == "flux"
    assert again.contender.plan_file == emulated / "plan.json"
    chosen = again.options
    assert (chosen["iterations"], chosen["skip"], chosen["lookahead_ns"]) == (5, 2, 7)
    assert (chosen["repeat"], chosen["pcap"]) == (3, ("h1",))
    assert (chosen["faults"], chosen["seed"]) == (("frame-loss:share=0.1",), 3)
    dilation = again.dilation
    assert (dilation.factor, dilation.quantum_bytes, dilation.guard_ns) == (16.0, 10_240, 3)
    assert (dilation.bytes_per_wall_byte, dilation.frame_bytes) == (2.5, 4096)
    assert again.job.fabric.name == FABRIC
    from testbed.cli.pipeline import planned

    _, plan = planned(again.job, again.contender, chosen)
    assert plan.expansion_sha256 == again.job.expansion.sha256


def test_a_format_beside_a_workload_is_no_run(step: Path) -> None:
    with command.make_context("run", [str(step), "--from", "kineto"]) as context:
        assert read_repetition(context) is None


def test_hosts_are_named_once_each() -> None:
    assert hosts_named(["h3", "h0", "h3"], 4) == [0, 3]
    assert hosts_named(["h1", "all"], 3) == [0, 1, 2]
    assert hosts_named([], 3) == []


@pytest.mark.parametrize("name", ["h4", "x0", "0", "h", "h-1", "h01", "H0", "h0 "])
def test_a_host_that_does_not_exist_is_refused(name: str) -> None:
    with pytest.raises(UsageError) as refused:
        hosts_named(["h0", name], 4)
    assert str(refused.value) == (
        f"--pcap: there is no host {name!r}, because the hosts are h0 to h3: name one, or all"
    )


# --- several executions


def chance_outside(count: int, rank: int) -> float:
    """The probability that the median is outside the rank-th smallest and largest of `count`."""
    return 2 * sum(math.comb(count, below) for below in range(rank)) / 2**count


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=60, unique=True))
def test_the_interval_is_the_narrowest_that_holds(samples: list[int]) -> None:
    found, count, ordered = median_interval(samples), len(samples), sorted(samples)
    if found is None:
        assert chance_outside(count, 1) > 0.05
        return
    rank = ordered.index(int(found[0])) + 1
    assert found[1] == ordered[-rank]
    assert chance_outside(count, rank) <= 0.05 < chance_outside(count, rank + 1)


@pytest.mark.parametrize(("count", "ends"), [(5, None), (6, (1, 6)), (9, (2, 8)), (20, (6, 15))])
def test_the_interval_has_the_published_ranks(count: int, ends: tuple[int, int] | None) -> None:
    assert median_interval(range(1, count + 1)) == ends


def test_a_row_of_several_shows_medians_and_loses_no_loss() -> None:
    rows: list[dict[str, Any]] = [
        {"iteration_ns": time, "dropped": lost, "status": "ok", "run": f"r{time}", "overload": bad}
        for time, lost, bad in [(30, 0, []), (10, 1, ["late"]), (20, 0, [])]
    ]
    merged = together(rows)
    assert merged["iteration_ns"] == 20
    assert merged["interval_ns"] is None
    assert merged["dropped"] == 1
    assert merged["overload"] == ["late"]
    assert merged["run"] == "r30 and 2 more"
    assert merged["executions"] == rows
    assert together(rows[:1]) == rows[0]


def test_what_one_execution_does_not_know_is_unknown() -> None:
    rows = [{"iteration_ns": float(k), "run": None} for k in range(6)]
    assert together(rows)["interval_ns"] == (0.0, 5.0)
    merged = together([*rows, {"iteration_ns": None, "run": None}])
    assert merged["iteration_ns"] is None
    assert merged["interval_ns"] is None


def test_every_execution_has_its_own_directory(tmp_path: Path) -> None:
    from testbed.cli import contest

    target = tmp_path / "o"
    names = contest._outputs(target, contest.contenders(["flux"], [])[0], 1, 3)
    assert names == [target / "flux-1", target / "flux-2", target / "flux-3"]
    assert contest._outputs(target, contest.contenders(["flux"], [])[0], 1, 1) == [target]
    assert contest._outputs(None, contest.contenders(["flux"], [])[0], 2, 2) == [None, None]


def test_help_names_every_option() -> None:
    shown = command.get_help(click.Context(command))
    assert all(option in shown for option in ("--pcap", "--repeat", "--from", "--dry-run"))
