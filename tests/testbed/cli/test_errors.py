"""Bad input and the exact sentence it gets, with its exit code and nothing on stdout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

RAILS = "rails,planes=2"
GRID = """format = "fluxbed-experiment"
version = 1
title = "A grid"
schedulers = ["static"]
[workload]
path = "STEP"
[topology]
name = "rails"
delay = ["10us", "20us"]
"""

USAGE = {
    "fewer nodes than ranks": (
        ["-t", "rails,nodes=2", "-s", "flux"],
        (
            "rails,nodes=2: 2 nodes for 4 ranks, because every rank needs a node: "
            "use nodes=4 or say which ranks share a node"
        ),
    ),
    "unknown option of a topology": (
        ["-t", "rails,colour=2", "-s", "flux"],
        (
            "rails,colour=2: there is no option 'colour', because the options of rails are nodes, "
            "planes, rate, delay, duplex, all_stop, control, notify, latency: choose one of them"
        ),
    ),
    "no unit": (
        ["-t", "rails,delay=10", "-s", "flux"],
        (
            "rails,delay=10: delay='10' has no unit, because the units of a duration are "
            "ns, us, µs, ms, s: "
            "write 100us"
        ),
    ),
    "unknown unit": (
        ["-t", "rails,rate=8Gb", "-s", "flux"],
        (
            "rails,rate=8Gb: rate='8Gb' has the unknown unit 'Gb', "
            "because the units of a rate are bps, b/s, "
            "bit/s, "
            "Kbps, Kb/s, Kbit/s, Mbps, Mb/s, Mbit/s, Gbps, Gb/s, Gbit/s, Tbps, Tb/s, Tbit/s, kbps, "
            "kb/s, kbit/s: write 800Gbps"
        ),
    ),
    "no planes": (
        ["-t", "rails,planes=0", "-s", "flux"],
        "fabric: the fabric has planes=0, because the least possible is 1: correct planes",
    ),
    "negative delay": (
        ["-t", "rails,delay=-1us", "-s", "flux"],
        (
            "rails,delay=-1us: delay='-1us' is not a duration, "
            "because it is not a number with a unit: write 100us"
        ),
    ),
    "no scheduler": (
        ["-t", RAILS],
        (
            "command line: no scheduler is given, because nothing says what decides the circuits: "
            "add -s flux or -p PLAN"
        ),
    ),
    "no topology": (
        ["-s", "flux"],
        (
            "command line: no topology is given, because nothing says what fabric to use: "
            "add -t rails,planes=2"
        ),
    ),
    "the same scheduler twice": (
        ["-t", RAILS, "-s", "flux", "-s", "flux"],
        (
            "command line: 'flux' is given twice, because their results would have the same name: "
            "remove one"
        ),
    ),
    "nothing left to measure": (
        ["-t", RAILS, "-s", "flux", "-n", "2", "--skip", "2"],
        (
            "command line: --skip 2 leaves nothing of 2 iterations, because the steady state is "
            "measured over what is left: skip fewer or execute more"
        ),
    ),
    "unknown collective": (
        ["-t", RAILS, "-s", "flux", "--collective", "gossip=ring"],
        (
            "gossip: there is no collective 'gossip', because the kinds of collective are "
            "all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, gather, "
            "scatter, barrier, send_recv: choose one of them"
        ),
    ),
    "an option of a topology mistyped": (
        ["-t", "rails,plains=2", "-s", "flux"],
        (
            "rails,plains=2: there is no option 'plains', because the options of rails are nodes, "
            "planes, rate, delay, duplex, all_stop, control, notify, latency: did you mean planes?"
        ),
    ),
    "a topology mistyped": (
        ["-t", "rials", "-s", "flux"],
        (
            "rials: there is no topology 'rials', because the topologies are rails, single, "
            "servers, hybrid, rotor, torus: did you mean rails?"
        ),
    ),
    "one node": (
        ["-t", "rails,nodes=1", "-s", "flux"],
        ("rails,nodes=1: nodes=1, because a fabric joins two nodes or more: write nodes=2 or more"),
    ),
    "more planes than anybody has": (
        ["-t", "rails,planes=100000", "-s", "flux"],
        (
            "fabric: 100,000 planes have 400,000 ports together, because fluxbed bears 262,144: "
            "use fewer planes or nodes"
        ),
    ),
    "a directory for a topology": (
        ["-t", "/", "-s", "flux"],
        (
            "/: this is a directory, because a topology is a file or a name with options: "
            "name a file in it, as /fabric.toml, or write rails,planes=2"
        ),
    ),
    "a factor that is no number": (
        ["-t", RAILS, "-s", "flux", "--compute-scale", "nan"],
        (
            "fluxbed simulate: Invalid value for '--compute-scale': 'nan' is not a positive "
            "number: write 0.5 or 2."
        ),
    ),
    "an option of a scheduler mistyped": (
        ["-t", RAILS, "-s", "rotor-direct,slots=1us"],
        (
            "rotor-direct,slots=1us: there is no option 'slots', because its options are slot, "
            "phase: did you mean slot?"
        ),
    ),
    "unknown option": (
        ["-t", RAILS, "--bogus"],
        "fluxbed simulate: No such option '--bogus'.",
    ),
}


@pytest.mark.parametrize("case", USAGE)
def test_usage_errors_are_one_sentence(fluxbed: Any, step: Path, case: str) -> None:
    words, sentence = USAGE[case]
    outcome = fluxbed("simulate", step, *words)
    assert outcome == (2, "", sentence + "\n")


def test_unknown_topologies_are_told_the_known_ones(fluxbed: Any, step: Path) -> None:
    code, out, err = fluxbed("simulate", step, "-t", "star,nodes=4", "-s", "flux")
    assert (code, out) == (2, "")
    assert err.startswith("star,nodes=4: there is no topology 'star', because the topologies are ")
    assert "rails" in err
    assert err.endswith(": choose one of them, or write my_fabric.py:function\n")


def test_an_unknown_scheduler_is_told_before_anything_runs(fluxbed: Any, step: Path) -> None:
    code, out, err = fluxbed("simulate", step, "-t", RAILS, "-s", "flux", "-s", "nope")
    assert (code, out) == (2, "")
    assert err.startswith("nope: there is no scheduler 'nope', because the schedulers are flux, ")
    assert err.count("\n") == 1


def test_a_mistyped_verb_is_told_what_was_meant(fluxbed: Any) -> None:
    sentence = "fluxbed: There is no verb 'simulat': did you mean simulate?\n"
    assert fluxbed("simulat", "x") == (2, "", sentence)
    code, out, err = fluxbed("xyzzy")
    assert (code, out) == (2, "")
    assert err.startswith("fluxbed: There is no verb 'xyzzy': choose one of doctor, inspect, ")


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["synth", "lama3-8b", "-o", "x.workload.jsonl"], "llama3-8b"),
        (["synth", "llama3-8b", "--gpu", "h20", "-o", "x.workload.jsonl"], "H200"),
        (["inspect", "STEP", "--from", "chakr"], "chakra"),
        (["simulate", "STEP", "-t", RAILS, "-s", "flux", "--collective", "all_reduce=rng"], "ring"),
    ],
)
def test_what_is_mistyped_is_told_what_was_meant(
    fluxbed: Any, step: Path, words: list[str], name: str
) -> None:
    code, out, err = fluxbed(*(step if word == "STEP" else word for word in words))
    assert (code, out) == (2, "")
    assert err.endswith(f": did you mean {name}?\n")


def test_a_mistyped_scheduler_is_told_what_was_meant(fluxbed: Any, step: Path) -> None:
    code, out, err = fluxbed("simulate", step, "-t", RAILS, "-s", "rotor-dircet")
    assert (code, out) == (2, "")
    assert err.endswith(": did you mean rotor-direct?\n")


@pytest.mark.parametrize("verb", ["convert", "synth", "expand", "plan", "sweep", "figure"])
def test_a_place_that_cannot_be_written_is_a_usage_error(
    fluxbed: Any, step: Path, tmp_path: Path, verb: str
) -> None:
    blocker = tmp_path / "file"
    blocker.write_bytes(b"")
    grid = tmp_path / "grid.toml"
    grid.write_text(GRID.replace("STEP", str(step)))
    words = {
        "convert": [step],
        "synth": ["llama3-8b", "--tp", "2", "--layers", "1"],
        "expand": [step, "-t", RAILS],
        "plan": [step, "-t", RAILS, "-s", "static"],
        "sweep": [grid],
        "figure": [grid],
    }[verb]
    if verb == "figure":
        assert fluxbed("sweep", grid, "-o", tmp_path / "sweep", "-j", "1").code == 0
        words = [tmp_path / "sweep", "-x", "topology.delay", "-y", "iteration_ns"]
    code, out, err = fluxbed(verb, *words, "-o", blocker / "out.pdf")
    assert (code, out) == (2, ""), err
    assert err.count("\n") == 1
    assert str(blocker / "out.pdf") in err


def test_a_run_is_no_trace(fluxbed: Any, step: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert fluxbed("simulate", step, "-t", RAILS, "-s", "static", "-o", run).code == 0
    assert fluxbed("simulate", run, "-t", RAILS, "-s", "flux") == (
        5,
        "",
        (
            f"{run}: this is a run, not a trace, because it holds what a workload became: "
            f"give {run / 'workload.jsonl'}, the workload it was made from\n"
        ),
    )
    for words, sentence in (
        (["--span", "5ms"], "'5ms' is no stretch of time, because a stretch of time has"),
        (["--span", "5ms-1ms"], "'5ms-1ms' is no stretch of time, because it ends before"),
        (["--iterations", "9-12"], "'9-12', because iterations 0 to 11 were executed"),
        (["--iterations", "x"], "there is no iteration 'x', because iterations 0 to 11"),
        (["--iterations", "1", "--span", "0-1ms"], "--iterations and --span are given"),
    ):
        code, out, err = fluxbed("report", run, *words)
        assert (code, out) == (2, "")
        assert sentence in err
    code, _, err = fluxbed("report", run, "--iterations", "3-4")
    assert code == 0, err
    assert "A part of the run: " in (run / "report.html").read_text("utf-8")
    assert fluxbed("check", run).code == 0


@pytest.mark.parametrize("verb", ["simulate", "expand", "plan"])
def test_a_missing_file_is_named(fluxbed: Any, tmp_path: Path, verb: str) -> None:
    path = tmp_path / "absent.json"
    words = ["-o", tmp_path / "out"] if verb != "simulate" else ["-s", "flux"]
    outcome = fluxbed(verb, path, "-t", RAILS, *words)
    assert outcome == (
        5,
        "",
        (
            f"{path}: the file cannot be read, because no such file or directory: "
            "check the path and its permissions\n"
        ),
    )


def test_what_is_no_trace_is_refused(fluxbed: Any, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("no trace at all\n", encoding="utf-8")
    code, out, err = fluxbed("inspect", path)
    assert (code, out) == (5, "")
    assert err.startswith(f"{path}: this is no trace fluxbed knows, because")


def test_an_unwritable_directory_is_refused(fluxbed: Any, step: Path, tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_bytes(b"")
    code, out, err = fluxbed("simulate", step, "-t", RAILS, "-s", "flux", "-o", blocker / "run")
    assert (code, out) == (2, "")
    assert err == (
        f"{blocker / 'run'}: it cannot be written, because not a directory: "
        "choose another directory with -o\n"
    )


def test_a_directory_is_never_overwritten(fluxbed: Any, step: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"mine")
    code, _, err = fluxbed("simulate", step, "-t", RAILS, "-s", "flux", "-o", tmp_path)
    assert code == 2
    assert err == (
        f"{tmp_path}: the directory is not empty, because a run never overwrites what is there: "
        "choose another name\n"
    )
    assert (tmp_path / "kept").read_bytes() == b"mine"


def test_one_failure_does_not_stop_the_others(fluxbed: Any, step: Path, tmp_path: Path) -> None:
    code, out, err = fluxbed(
        "simulate", step, "-t", "rails,planes=1", "-s", "static", "-s", "flux", "-o", tmp_path / "o"
    )
    assert code == 2
    assert err.startswith("static: node ")
    rows = [line.split() for line in out.splitlines()]
    assert [row[0] for row in rows] == ["scheduler", "static", "flux"]
    assert rows[1][1] == "-"
    assert (tmp_path / "o" / "flux" / "report.html").is_file()


def test_a_scheduler_that_makes_no_program_is_told(
    fluxbed: Any, step: Path, tmp_path: Path
) -> None:
    words = (
        "import fluxbed",
        "class Idle(fluxbed.Planner):",
        "    'Nothing.'",
        "    name = 'idle'",
    )
    body = ("    def plan(self, problem):", "        return None")
    (tmp_path / "idle.py").write_text("\n".join((*words, *body)))
    spec = f"{tmp_path}/idle.py:Idle"
    code, out, err = fluxbed("simulate", step, "-t", RAILS, "-s", spec, "-o", tmp_path / "o")
    assert (code, out) == (2, "")
    assert err == (
        f"{spec}: the scheduler made no program, because plan returned NoneType: "
        "return an OrderedProgram, a TimedProgram or a ReactiveProgram\n"
    )
