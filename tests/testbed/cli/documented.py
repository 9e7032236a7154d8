"""The commands in documents: which lines they are, and what a test does with each kind."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
DOCUMENTS = sorted(
    path
    for pattern in ("README.md", "docs/**/*.md", "examples/**/*.md", "experiments/*.md")
    for path in ROOT.glob(pattern)
    if "_build" not in path.parts
)
STEP = "step.workload.jsonl"  # what capitals stand for
STANDS_FOR = {
    "TRACE": STEP, "WORKLOAD": STEP, "RUN": "runs/demo/flux", "runs/*": "runs/demo",
    "experiments/NAME.toml": "experiments/switch-speed.toml", "runs/NAME": "runs/switch-speed",
}  # fmt: skip
PROGRAM = re.compile(r"(?:sudo )?(?:\.venv/bin/)?fluxbed ")


def commands(text: str) -> list[str]:
    """Return the lines of ```sh blocks and of indented ones, continued lines joined.

    >>> commands("Do:\\n\\n    fluxbed doctor  # first\\n\\n```sh\\nmake \\\\\\n  demo\\n```\\n")
    ['fluxbed doctor', 'make demo']
    """
    found: list[str] = []
    fence: str | None = None
    for line in re.sub(r" *\\\n\s*", " ", text).splitlines():
        if line.lstrip().startswith("```"):
            fence = line.strip().removeprefix("```") if fence is None else None
            continue
        inside = fence == "sh" if fence is not None else line.startswith("    ")
        words = re.sub(r"(^|\s)#.*", "", line).strip()
        if inside and words:
            found.append(words)
    return found


def fluxbed_words(command: str) -> tuple[bool, list[str]] | None:
    """Return whether `command` needs root, and its words; None where it is no fluxbed command."""
    if not PROGRAM.match(command):
        return None
    words = shlex.split(command.partition(" >")[0])
    root = words[0] == "sudo"
    return root, [STANDS_FOR.get(word, word) for word in words[2 if root else 1 :]]
