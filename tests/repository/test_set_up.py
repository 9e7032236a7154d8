"""One command sets everything up: scripts, pins, packages and documents agree with each other."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
SCRIPTS = sorted([*(REPOSITORY / "scripts").glob("*.sh"), REPOSITORY / ".ci/run"])
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "examples/**/*.md")
    for path in REPOSITORY.glob(pattern)
)
ROOMS = ("topologies", "scheduler", "testbed")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 (our own commands)
        command, cwd=REPOSITORY, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_executable_and_parse(script: Path) -> None:
    assert os.access(script, os.X_OK)
    assert b"\r" not in script.read_bytes()
    assert run("bash", "-n", str(script)).stderr == ""


@pytest.mark.parametrize(
    ("target", "scripts"),
    [
        ("demo", ["provision.sh", "demo.sh"]),
        ("test", ["provision.sh", "test.sh"]),
        ("provision", ["provision.sh"]),
        ("docs", ["provision.sh"]),
        ("fuzz", ["provision.sh"]),
    ],
)
def test_every_target_provisions_first(target: str, scripts: list[str]) -> None:
    dry = run("make", "--no-print-directory", "--dry-run", target)
    assert dry.returncode == 0
    assert re.findall(r"scripts/([\w.]+)", dry.stdout) == scripts


def test_continuous_integration_calls_make_test() -> None:
    assert "exec make test" in (REPOSITORY / ".ci/run").read_text()


def test_make_help_lists_every_target() -> None:
    targets = re.search(r"^\.PHONY: (.*)$", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    assert targets is not None
    listed = set(re.findall(r"^make (\w+)", run("make", "help").stdout, re.MULTILINE))
    assert listed | {"help"} == set(targets.group(1).split())


def test_provisioning_compiles_what_every_warm_up_warms() -> None:
    from scheduler.kernel import KERNEL_SOURCES

    imported = {path for pattern in KERNEL_SOURCES for path in REPOSITORY.glob(pattern)}
    modules = (path for room in ROOMS for path in (REPOSITORY / room).rglob("*.py"))
    warming = {path for path in modules if "\n@register_warm_up\n" in path.read_text()}
    assert warming
    assert warming <= imported


def pins() -> dict[str, str]:
    lines = (REPOSITORY / "scripts/constraints.txt").read_text().split()
    return {
        canonicalize_name(name): version for name, _, version in (x.partition("==") for x in lines)
    }


@pytest.mark.parametrize("extra", [None, "dev", "exact", "cluster", "docs"])
def test_every_dependency_is_pinned_to_a_version_it_allows(extra: str | None) -> None:
    project = PROJECT["project"]
    wanted = project["optional-dependencies"][extra] if extra else project["dependencies"]
    pinned = pins()
    for requirement in map(Requirement, wanted):
        version = pinned[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version, prereleases=True), requirement


def test_provisioning_installs_every_extra_the_checks_use() -> None:
    script = (REPOSITORY / "scripts/provision.sh").read_text()
    (extras,) = re.findall(r"extras=(\S+)", script)
    assert set(extras.split(",")) == set(PROJECT["project"]["optional-dependencies"]) - {"capture"}


def test_pins_are_names_and_versions_and_nothing_else() -> None:
    lines = (REPOSITORY / "scripts/constraints.txt").read_text().splitlines()
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
    assert lines == sorted(set(lines), key=str.lower)


def test_what_provisioning_builds_with_is_pinned() -> None:
    (build,) = map(Requirement, PROJECT["build-system"]["requires"])
    assert build.specifier.contains(pins()[build.name])


def test_every_package_on_disk_is_shipped() -> None:
    found = {
        str(path.parent.relative_to(REPOSITORY)).replace("/", ".")
        for room in ROOMS
        for path in (REPOSITORY / room).rglob("*.py")
    }
    assert found == set(PROJECT["tool"]["setuptools"]["packages"])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(REPOSITORY)))
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), f"{document.name}: {target}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(REPOSITORY)))
def test_documents_use_verbs_and_options_that_exist(document: Path) -> None:
    import click

    from testbed.cli import cli

    text = document.read_text().replace("\\\n", " ")
    commands = re.findall(r"^ {4,}(?:sudo )?(?:\.venv/bin/)?fluxbed (.*)$", text, re.MULTILINE)
    for line in commands:
        verb, *words = line.partition("#")[0].split()
        command = cli.get_command(click.Context(cli), verb)
        assert command is not None, f"{document.name}: fluxbed {verb}"
        known = {name for parameter in command.params for name in parameter.opts}
        used = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert used <= known, f"{document.name}: fluxbed {verb} {used - known}"


def test_the_readme_says_what_exit_codes_mean() -> None:
    rows = re.findall(r"^\| (\d+) \|", (REPOSITORY / "README.md").read_text(), re.MULTILINE)
    assert rows == ["0", "1", "2", "3", "4", "5", "6", "130"]


def test_the_scale_in_the_documents_is_the_captured_one() -> None:
    import json

    meta = json.loads((REPOSITORY / "examples/traces/llama-tp4-dp2/meta.json").read_text())
    results = (REPOSITORY / "docs/results.md").read_text()
    assert set(re.findall(r"--compute-scale (\S+)", results)) == {str(meta["compute_scale"])}
