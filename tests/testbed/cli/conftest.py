from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

import testbed.cli

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[3]
TRACE = ROOT / "examples" / "traces" / "llama-tp4-dp2"


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def fluxbed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Outcome]:
    """Run the command line in this process, as a user's shell would see it."""

    def run(*words: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["fluxbed", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            testbed.cli.main()
        out, err = capsys.readouterr()
        return Outcome(int(ended.value.code or 0), out, err)

    return run


@pytest.fixture(scope="session")
def step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small training step as a workload file: TP2 x DP2, one layer."""
    from testbed.files.workload import write_workload
    from testbed.synth import synth

    path = tmp_path_factory.mktemp("step") / "step.workload.jsonl"
    write_workload(synth("llama3-8b", tp=2, dp=2, layers=1, mfu=0.5), path)
    return path
