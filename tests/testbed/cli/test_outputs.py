"""What verbs print with --format json is what the schema says, and csv has the same in columns."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

import jsonschema
import msgspec
import pytest
from output_schemas import SCHEMAS, conforms

from testbed.cli.repeats import together
from testbed.files.summary import Drops, Percentiles, Summary

if TYPE_CHECKING:
    from pathlib import Path

FABRIC = "rails,planes=2,rate=400Gbps,delay=20us"
GRID = """format = "fluxbed-experiment"
version = 1
title = "A grid"
schedulers = ["flux", "greedy"]
[workload]
path = "step.workload.jsonl"
[topology]
name = "rails"
delay = ["10us", "1ms"]
"""


def test_what_is_not_an_output_does_not_conform() -> None:
    row = {"scheduler": "flux", "description": "Circuits."}
    conforms("schedulers", [row])
    for wrong in ([{**row, "more": 1}], [{"scheduler": "flux"}], row):
        with pytest.raises(jsonschema.ValidationError):
            conforms("schedulers", wrong)


@pytest.fixture(scope="module")
def place(step: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a workload in it, where the tests below leave their files for each other."""
    directory = tmp_path_factory.mktemp("outputs")
    (directory / "step.workload.jsonl").symlink_to(step)
    (directory / "grid.toml").write_text(GRID, "utf-8")
    return directory


OUTPUTS = {  # in an order in which each finds what it needs
    "doctor": ["doctor"],
    "topologies": ["topologies"],
    "schedulers": ["schedulers"],
    "plan": ["plan", "step.workload.jsonl", "-t", FABRIC, "-o", "plan.json"],
    "inspect_plan": ["inspect", "plan.json"],
    "inspect_trace": ["inspect", "step.workload.jsonl"],
    "check": ["check", "plan.json", "step.workload.jsonl"],
    "simulate": [
        *("simulate", "step.workload.jsonl", "-t", FABRIC, "-n", "4", "--skip", "1"),
        *("-s", "flux", "-s", "static", "-s", "greedy"),
    ],
    "inspect_run": ["inspect", "runs-json/flux"],
    "report": ["report", "runs-json/flux", "runs-json/greedy"],
    "compare": ["compare", "runs-json/flux", "runs-json/greedy"],
    "sweep": ["sweep", "grid.toml", "-o", "grid", "-j", "1"],
}


@pytest.mark.parametrize("kind", OUTPUTS)
def test_json_conforms_and_csv_has_the_same(
    fluxbed: Any, place: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(place)
    outputs = {}
    for style in ("json", "csv"):
        words = [*OUTPUTS[kind], "--format", style]
        if kind == "simulate":
            words += ["-o", f"runs-{style}"]
        outputs[style] = fluxbed(*words)
        assert outputs[style].code in (0, 2 if kind == "simulate" else 4), outputs[style].err
    document = json.loads(outputs["json"].out)
    conforms(kind, document)
    rows = list(csv.DictReader(io.StringIO(outputs["csv"].out)))
    if kind == "inspect_trace":
        document = document["operations"]
    elif kind.startswith("inspect"):
        assert {row["fact"] for row in rows} == set(document)
        return
    elif kind == "report":
        assert {name.split(".")[0] for name in rows[0]} == set(document[0])
        return
    assert len(rows) == len(document)
    for row, record in zip(rows, document, strict=True):
        for key, value in record.items():
            if key != "run":
                expected = json.dumps(value) if isinstance(value, dict | list) else value
                assert row[key] == ("" if expected is None else str(expected)), key


def test_executions_together_are_a_row_of_run() -> None:
    def row(number: int) -> dict[str, Any]:
        summary = Summary(
            scheduler="flux",
            status="ok",
            iteration_ns=1000.0 + number,
            iterations_ns=[number, None],
            nic_peak_bytes_eager=2 * number + 1,
            messages=8,
            drops=Drops(dark=number, unconnected=0),
            schedule_error_ns=Percentiles(p50=1.5 + number, p99=None if number else 2.5),
            lost_bytes=number,
            pace_kept=True,
        )
        facts = {"difference": 0.001 * number, "dropped": number, "overload": [], "dilation": 13.0}
        return msgspec.to_builtins(summary) | facts | {"run": f"o/flux-{number}", "wall_s": 2.5}

    merged = together([row(0), row(1), row(1), row(2)])
    conforms("run", [merged])
    assert merged["nic_peak_bytes_eager"] == 3
    assert merged["drops"] == {"dark": 4, "unconnected": 0, "conflict": None, "queue": None}
    assert merged["schedule_error_ns"] == {"p50": 2.5, "p99": None}
    assert (merged["messages"], merged["lost_bytes"], merged["dropped"]) == (8, 4, 4)
    merged = together([row(0), row(1)])
    assert merged["nic_peak_bytes_eager"] == 2
    conforms("run", [merged])


def test_what_clean_removed(fluxbed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for removed in ([], ["namespace of h0", "record of a run"]):
        monkeypatch.setattr("testbed.emulator.cleanup.clean", lambda _run, gone=removed: gone)
        code, out, err = fluxbed("clean", "--format", "json")
        assert (code, err) == (0, "")
        conforms("clean", json.loads(out))
        assert [row["removed"] for row in json.loads(out)] == removed


def test_every_verb_that_has_formats_has_a_schema() -> None:
    import click

    from testbed.cli import cli

    context = click.Context(cli)
    verbs = {
        verb
        for verb in cli.list_commands(context)
        if (command := cli.get_command(context, verb)) is not None
        and any("--format" in parameter.opts for parameter in command.params)
    }
    (schema,) = (schema for schema in SCHEMAS if schema["$id"] == "fluxbed:output")
    described = {name.partition("_")[0] for name in schema["$defs"]} - {"operation"}
    assert verbs == described
    assert {kind.partition("_")[0] for kind in OUTPUTS} == verbs - {"run", "clean"}  # those of root
