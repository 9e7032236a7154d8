"""Every example trace as a workload file: read back equal, each line as its JSON Schema says."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from shared_files import FILES, load

from testbed.files.workload import read_workload, write_workload
from testbed.synth import synth
from testbed.traces import load_workload

SCHEMA = Path(__file__).resolve().parents[3] / "docs" / "schemas" / "workload.schema.json"


def conforms(path: Path) -> None:
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))
    lines = path.read_bytes().splitlines()
    assert len(lines) > 1
    for line in lines[:1] + lines[1 :: max(1, len(lines) // 60)]:
        validator.validate(json.loads(line))


@pytest.mark.parametrize("pattern", FILES)
def test_shared_traces(shared: Path, tmp_path: Path, pattern: str) -> None:
    """Summaries and what --group completes as well."""
    workload, path = load(shared, pattern), tmp_path / "step.workload.jsonl"
    write_workload(workload, path)
    assert read_workload(path) == workload
    conforms(path)


def test_the_bundled_trace_and_a_synthetic_step(bundled: Path, tmp_path: Path) -> None:
    path = tmp_path / "step.workload.jsonl"
    write_workload(load_workload(bundled), path)
    conforms(path)
    write_workload(synth("llama3-8b", tp=2, dp=2, layers=1, seq=1024, mfu=0.5), path)
    conforms(path)
