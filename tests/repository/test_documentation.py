"""The pages: they build, their tables agree with the code, their examples and names hold."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from testbed.cli import cli
from testbed.files.tables import COLUMNS

REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = REPOSITORY / "docs"
PAGES = sorted(DOCS.glob("*.md"))


def section(text: str, heading: str) -> str:
    """Return what stands between a heading and the next one."""
    match = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    assert match is not None, heading
    return match[1]


@pytest.mark.parametrize("table", COLUMNS)
def test_the_columns_of_tables_are_those_of_the_code(table: str) -> None:
    text = section((DOCS / "formats.md").read_text("utf-8"), table)
    rows = re.findall(r"^\| (\w+) \| ([\w]*) *\|", text, re.MULTILINE)[1:]
    assert tuple(name for name, _ in rows) == COLUMNS[table]
    units = {"_ns": "ns", "bytes": "byte", "port": "port", "frames_": "frame"}
    for name, unit in rows:
        for mark, expected in units.items():
            if name.endswith(mark) or (mark == "frames_" and name.startswith(mark)):
                assert unit == expected, name


def test_every_verb_has_its_paragraph() -> None:
    headings = re.findall(r"^## (.+)$", (DOCS / "verbs.md").read_text("utf-8"), re.MULTILINE)
    assert headings == cli.list_commands(click.Context(cli))


def test_every_schema_is_listed() -> None:
    listed = set(re.findall(r"schemas/(\S+?\.json)", (DOCS / "formats.md").read_text("utf-8")))
    assert listed == {path.name for path in (DOCS / "schemas").iterdir()}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_python_in_pages_does_what_it_says(page: Path) -> None:
    failed, _ = doctest.testfile(str(page), module_relative=False, encoding="utf-8")
    assert failed == 0


def test_documentation_imports_only_the_facade() -> None:
    sources = [*DOCS.glob("my_*.py"), *PAGES]
    for source in sources:
        imported = re.findall(
            r"^(?:>>> )?(?:from|import) (\w+)", source.read_text("utf-8"), re.MULTILINE
        )
        assert not {"topologies", "scheduler", "testbed"} & set(imported), source


def test_the_pages_build_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("furo", reason="the documentation's own packages are not installed")
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html"]
    done = subprocess.run(  # noqa: S603 (our own command)
        [*command, "-d", str(tmp_path / "doctrees"), str(DOCS), str(tmp_path / "html")],
        capture_output=True,
        text=True,
        check=False,
        cwd=REPOSITORY,
    )
    assert done.returncode == 0, done.stderr
    assert "lets a compiled scheduler decide" in (tmp_path / "html/index.html").read_text("utf-8")


def test_every_option_is_documented() -> None:
    pages = "".join(page.read_text("utf-8") for page in (REPOSITORY / "README.md", *PAGES))
    everywhere = {"--help", "--output", "--topology", "--plan", "--scheduler", "--iterations"}
    context = click.Context(cli)
    for verb in cli.list_commands(context):
        command = cli.get_command(context, verb)
        assert command is not None
        for parameter in command.params:
            options = {option for option in parameter.opts if option.startswith("--")}
            assert options <= everywhere or any(
                re.search(rf"{option}(?![a-z-])", pages) for option in options
            ), f"{verb} {options}"
