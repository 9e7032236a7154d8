"""Every command in the documents and in --help: run here, or, where that needs root, understood."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click
import pytest
from documented import DOCUMENTS, ROOT, STEP, commands, fluxbed_words

import testbed.cli

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

VERBS = testbed.cli.cli.list_commands(click.Context(testbed.cli.cli))
LESS = {  # what takes minutes is run in part
    "sweep": ["--only=topology.delay=20us", "--only=scheduler=greedy", "-j", "1"],
    "experiments": ["--dry-run"],
}
MAY_LACK = {"doctor": (0, 4)}  # the machine may lack what an emulation needs
ELSEWHERE = re.compile(  # commands of others, which no test can run
    r"(git clone|cd|_FLUXBED_COMPLETE|vagrant|torchrun|python -m venv|pip install|apt|torch/bin/"
    r"|export|eval|sudo apt|\. \.venv|sudo bash /vagrant|sudo \.venv/bin/mn|zsh|ssh|scp|fish"
    r"|source|curl|tcpdump|chrt)\b"
)
SCRIPT = re.compile(
    r"(?:sudo )?(?:\.venv/bin/)?(?:python |bash )?((?:benchmarks|examples|scripts)/\S+)"
)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which the documents' paths exist."""
    place = tmp_path_factory.mktemp("workspace")
    for name in ("examples", "experiments", "docs", "benchmarks"):
        (place / name).symlink_to(ROOT / name)
    (place / "capture").symlink_to(ROOT / "examples/traces/llama-tp4-dp2")
    return place


@pytest.fixture(scope="module")
def done() -> set[str]:
    """Commands that have been run already: documents repeat each other."""
    return set()


def understood(words: list[str]) -> None:
    """Parse a command without running it; click raises where it does not fit."""
    command = testbed.cli.cli.get_command(click.Context(testbed.cli.cli), words[0])
    assert command is not None, words
    command.make_context(words[0], words[1:])


def reduced(words: list[str]) -> list[str]:
    """Return what is run instead: of a sweep a few points, of a large simulation a small one."""
    if words[0] == "simulate":  # the bundled trace is simulated in tests/repository
        return [STEP if word.startswith("examples/traces/") else word for word in words]
    if words[0] != "sweep" or "--dry-run" in words:
        return words
    switches = any("switch-speed" in word for word in words)
    return [*words, *LESS["sweep" if switches else "experiments"]]


def examples() -> Iterator[tuple[str, str]]:
    for verb in VERBS:
        command = testbed.cli.cli.get_command(click.Context(testbed.cli.cli), verb)
        assert command is not None
        yield verb, command.help or ""


@pytest.fixture
def execute(
    fluxbed: Any, workspace: Path, done: set[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], None]:
    """Run a fluxbed command in the workspace, once; one for root is understood only."""
    monkeypatch.chdir(workspace)
    if not (workspace / STEP).exists():
        small = ["--tp", 2, "--dp", 2, "--layers", 1, "--mfu", 0.5]
        assert fluxbed("synth", "llama3-8b", *small, "-o", STEP)[0] == 0

    def run(command: str) -> None:
        found = fluxbed_words(command)
        assert found is not None, command
        root, words = found
        if command in done:
            return
        done.add(command)
        if root or words[0] == "run":
            understood(words)
            if (
                words[0] != "run"
                or "-o" not in words
                or (workspace / words[words.index("-o") + 1]).exists()
            ):
                return
            words = ["simulate", *words[1:]]  # so that later commands find its directory
            try:
                understood(words)
            except click.UsageError:
                return  # it has options of its own
        code, _, err = fluxbed(*reduced(words))
        assert code in MAY_LACK.get(words[0], (0,)), f"{command}: exit {code}\n{err}"

    return run


@pytest.mark.parametrize(("verb", "text"), list(examples()), ids=VERBS)
def test_help_has_an_example_that_works(
    execute: Callable[[str], None], verb: str, text: str
) -> None:
    (example,) = re.findall(r"Example: ((?:sudo )?fluxbed .*(?:\n +.+)*)", text)
    execute(" ".join(example.split()))
    assert f"fluxbed {verb}" in example


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documented_commands_work(execute: Callable[[str], None], document: Path) -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for command in commands(document.read_text("utf-8")):
        if fluxbed_words(command) is not None:
            execute(command)
        elif made := re.match(r"(?:sudo )?make (\w+)", command):
            assert made[1] in targets, command
        elif script := SCRIPT.match(command):
            assert (ROOT / script[1]).is_file(), command
            source = (ROOT / script[1]).read_text("utf-8")
            for option in re.findall(r" (--[a-z-]+)", command):
                assert option in source, command
        elif tests := re.match(r"(?:\w+=\w+ )*\.venv/bin/python -m pytest -q (\S+)", command):
            assert (ROOT / tests[1]).is_file(), command
        elif module := re.match(r"python -m (experiments\.\w+)", command):
            path = ROOT / module[1].replace(".", "/")
            assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), command
        else:
            assert ELSEWHERE.match(command), f"{command}: not tested, and not known to be others'"
