"""Experiments: which points they have, and the exact sentence for what is wrong in one."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from testbed.sweep import Point, experiment_schema, read_experiment
from topologies.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[3]
SCHEMA = ROOT / "docs" / "schemas" / "experiment.schema.json"
EXPERIMENTS = sorted((ROOT / "experiments").glob("*.toml"))
HEAD = 'format = "fluxbed-experiment"\nversion = 1\ntitle = "t"\n'
WHOLE = (
    HEAD + 'schedulers = ["flux"]\n[synth]\nmodel = "llama3-8b"\ntp = 4\n'
    '[topology]\nname = "rails"\n'
)


@pytest.fixture
def points(tmp_path: Path) -> Callable[[str], list[Point]]:
    """Write an experiment and list its points."""

    def make(text: str) -> list[Point]:
        path = tmp_path / "e.toml"
        path.write_text(text, encoding="utf-8")
        return read_experiment(path).points(path)

    return make


def test_lists_are_axes_and_schedulers_change_fastest(points: Any) -> None:
    text = WHOLE.replace('"flux"', '"flux", "greedy"').replace("tp = 4", "tp = [2, 4]")
    found = points("seeds = [0, 1]\n" + text)
    assert [(p["synth.tp"], p["seed"], p["scheduler"]) for p in found] == [
        (tp, seed, scheduler)
        for tp in (2, 4)
        for seed in (0, 1)
        for scheduler in ("flux", "greedy")
    ]


def test_grids_add_to_what_stands_above_them_and_points_are_there_once(points: Any) -> None:
    text = WHOLE + (
        '[[grids]]\nsynth = {tp = 2}\n[[grids]]\nschedulers = ["flux", "static"]\n'
        '[[grids]]\ntopology = {delay = "1us"}\n'
    )
    found = points(text)
    settings = [
        (p["synth.tp"], p["scheduler"], p.get("topology.delay", "-"), p["synth.model"])
        for p in found
    ]
    assert settings == [
        (2, "flux", "-", "llama3-8b"),
        (4, "flux", "-", "llama3-8b"),
        (4, "static", "-", "llama3-8b"),
        (4, "flux", "1us", "llama3-8b"),
    ]


def test_what_decides_a_result_decides_the_id(points: Any, tmp_path: Path) -> None:
    (only,) = points(WHOLE)
    assert points(WHOLE)[0].id == only.id
    assert points(WHOLE.replace("tp = 4", "tp = 2"))[0].id != only.id
    assert points("iterations = 9\n" + WHOLE)[0].id != only.id
    assert points('mode = "run"\n' + WHOLE)[0].id != only.id
    trace = tmp_path / "step.workload.jsonl"
    text = WHOLE.replace(
        '[synth]\nmodel = "llama3-8b"\ntp = 4', f'[workload]\npath = "{trace.name}"'
    )
    trace.write_bytes(b"one")
    first = points(text)[0]
    trace.write_bytes(b"two")
    assert points(text)[0].id != first.id
    assert (first["workload.path"], first.settings["workload.path"]) == (str(trace), trace.name)


def test_a_scheduler_of_ones_own_is_found_beside_the_experiment(
    points: Any, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_bytes(b"pass")
    (point,) = points(WHOLE.replace('"flux"', '"mine.py:Mine,slot=1us"'))
    assert point["scheduler"] == f"{tmp_path / 'mine.py'}:Mine,slot=1us"
    (tmp_path / "mine.py").write_bytes(b"pass  # changed")
    assert points(WHOLE.replace('"flux"', '"mine.py:Mine,slot=1us"'))[0].id != point.id


WRONG = {
    "an unknown key": (
        "colour = 1\n" + WHOLE,
        "this is not an experiment, because object contains unknown field `colour`: correct it",
    ),
    "an unknown dimension": (
        WHOLE.replace("tp = 4", "tpp = 4"),
        (
            "this is not an experiment, because object contains unknown field `tpp` at `$.synth`: "
            "correct it"
        ),
    ),
    "a wrong type": (
        WHOLE.replace("tp = 4", 'tp = "four"'),
        (
            "this is not an experiment, because expected `int | array`, got `str` at `$.synth.tp`: "
            "correct it"
        ),
    ),
    "no TOML": (
        "format =",
        (
            "this is not an experiment, because it is not TOML: Invalid value (at end of document):"
            " correct the file"
        ),
    ),
    "no scheduler": (
        WHOLE.replace('schedulers = ["flux"]\n', ""),
        'schedulers is missing, because every point has one: add schedulers = ["flux"]',
    ),
    "no topology": (
        WHOLE.partition("[topology]")[0],
        'topology is missing, because every point has one: add topology = {name = "rails"}',
    ),
    "no workload": (
        WHOLE.replace('[synth]\nmodel = "llama3-8b"\ntp = 4\n', ""),
        (
            "it has no workload, because a point replays one workload: write either [synth] or "
            "[workload]"
        ),
    ),
    "two workloads": (
        WHOLE + '[workload]\npath = "x"\n',
        (
            "it has both synth and workload, because a point replays one workload: write either "
            "[synth] or [workload]"
        ),
    ),
    "no model": (
        WHOLE.replace('model = "llama3-8b"\n', ""),
        "synth.model is missing, because nothing says which one: add model to [synth]",
    ),
    "an unknown topology": (
        WHOLE.replace("rails", "star"),
        "there is no topology 'star', because the topologies are ",
    ),
    "an unknown option of a topology": (
        WHOLE + "colour = 1\n",
        (
            "topology has no option 'colour', because the options of rails are nodes, planes, "
            "rate, delay, duplex, all_stop, control, notify, latency: choose one of them"
        ),
    ),
    "nothing to measure": (
        "iterations = 4\nskip = 4\n" + WHOLE,
        (
            "skip = 4 leaves nothing of 4 iterations, because the steady state is measured over "
            "what is left: skip fewer or execute more"
        ),
    ),
    "faults where nothing bears them": (
        'faults = "lost-plane:plane=1"\n' + WHOLE,
        (
            "faults are given for a simulation, because only the emulated fabric bears faults: "
            'add mode = "run"'
        ),
    ),
    "an empty axis": (
        WHOLE + "delay = []\n",
        "topology.delay is empty, because an axis has values: give it some",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_in_one_sentence(points: Any, tmp_path: Path, case: str) -> None:
    text, sentence = WRONG[case]
    with pytest.raises(InputError) as refused:
        points(text)
    assert str(refused.value).startswith(f"{tmp_path / 'e.toml'}: {sentence}")


def test_faults_are_an_axis(points: Any) -> None:
    faults = ["", "lost-plane:plane=1; frame-loss:share=0.1"]
    found = points(f'mode = "run"\nfaults = ["{faults[0]}", "{faults[1]}"]\n{WHOLE}')
    assert [point["faults"] for point in found] == faults
    assert len({point.id for point in found}) == 2


def test_a_missing_trace_is_named(points: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        points(WHOLE.replace('[synth]\nmodel = "llama3-8b"\ntp = 4', '[workload]\npath = "gone"'))
    assert str(refused.value) == (
        f"{tmp_path / 'e.toml'}: '{tmp_path / 'gone'}' is missing, because a path counts from the "
        "directory of the experiment: correct the path"
    )


def test_the_schema_is_the_one_in_the_documentation() -> None:
    assert SCHEMA.read_bytes() == experiment_schema()


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_committed_experiments_follow_the_schema_and_have_points(path: Path) -> None:
    jsonschema.validate(tomllib.loads(path.read_text("utf-8")), json.loads(SCHEMA.read_bytes()))
    assert len(read_experiment(path).points(path)) > 1


def test_the_schema_refuses_unknown_keys() -> None:
    schema = json.loads(SCHEMA.read_bytes())
    for text in ("colour = 1\n" + WHOLE, WHOLE.replace("tp = 4", "tpp = 4")):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(tomllib.loads(text), schema)


def test_the_example_of_the_readme_is_one(points: Any) -> None:
    text = (ROOT / "experiments" / "README.md").read_text("utf-8")
    found = points(text.partition("```toml\n")[2].partition("```")[0])
    assert [point.mode for point in found].count("run") == 4
    assert len(found) == 12
