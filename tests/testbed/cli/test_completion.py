"""Shells complete verbs, options and names, as the documentation says to set them up."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SHELLS = {
    "bash": (
        'eval "$(_FLUXBED_COMPLETE=bash_source fluxbed)"\n'
        "COMP_WORDS=({words}); COMP_CWORD={last}; COMP_LINE='{words}'\n"
        'function=$(complete -p fluxbed | sed -E "s/.* -F ([^ ]+) .*/\\1/")\n'
        '$function fluxbed; printf "%s\\n" "${{COMPREPLY[@]}}"'
    ),
    "zsh": (
        "compdef() {{ :; }}; _describe() {{ print -l -- ${{completions_with_descriptions%%:*}} }}\n"
        "compadd() {{ print -l -- $completions }}; compstate() {{ :; }}\n"
        "source <(_FLUXBED_COMPLETE=zsh_source fluxbed)\n"
        "words=({words}); CURRENT={last}; (( CURRENT++ )); _fluxbed_completion"
    ),
    "fish": '_FLUXBED_COMPLETE=fish_source fluxbed | source; complete -C "{words}"',
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which `fluxbed` is the one of this checkout."""
    place = tmp_path_factory.mktemp("bin")
    command = place / "fluxbed"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fluxbed "$@"\n')
    command.chmod(0o755)
    path = f"{place}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "HOME": str(place)}


@pytest.mark.parametrize(
    ("shell", "words", "expected", "absent"),
    [
        ("bash", "fluxbed sim", "simulate", "sweep"),
        ("bash", "fluxbed simulate --look", "--lookahead", "--seed"),
        *((shell, "fluxbed simulate x -s rotor-", "rotor-vlb", "flux") for shell in SHELLS),
    ],
)
def test_a_shell_completes(
    environment: dict[str, str], shell: str, words: str, expected: str, absent: str
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    script = SHELLS[shell].format(words=words, last=len(words.split()) - 1)
    done = subprocess.run(  # noqa: S603 (our own script)
        [shell, "-c", script], capture_output=True, text=True, check=False, env=environment
    )
    offered = [line.split("\t")[0].split(":")[0] for line in done.stdout.splitlines()]
    assert expected in offered, done.stderr
    assert absent not in offered
