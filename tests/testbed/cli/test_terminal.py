"""What a person at a terminal sees: tables that fit it, what is being done, and one sentence."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from documented import ROOT

from testbed.cli.output import print_records
from testbed.cli.working import abandoned, aside, doing, progress_line
from topologies import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COLUMNS = [
    ("name", "a name of something", str),
    ("first", "the first number", str),
    ("second", "the second number", str),
    ("never", "never known", str),
]
# a shell's background jobs ignore Ctrl-C, and what they start inherits that
_LISTENING = """import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
import fluxbed
fluxbed.main()"""
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
RECORDS = [{"name": f"n{k}", "first": k, "second": 10**k} for k in range(3)]


def fail(error: BaseException) -> NoReturn:
    raise error


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make both streams terminals of so many columns."""

    def of(columns: int) -> None:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("TERM", "xterm")
        for stream in (sys.stdout, sys.stderr):
            monkeypatch.setattr(stream, "isatty", lambda: True)

    return of


@pytest.mark.parametrize("columns", [100, 40])
def test_a_table_fits_and_shows_what_is_known(
    terminal: Any, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    terminal(columns)
    print_records(RECORDS, COLUMNS, "table")
    written = _STYLE.sub("", capsys.readouterr().out)
    lines = [line.rstrip() for line in written.splitlines()]
    assert max(map(len, lines)) <= columns
    assert "never known" not in "\n".join(lines)
    if columns == 100:
        assert lines[0].split("  ")[0] == "a name of something"
        assert [line.split()[0] for line in lines[1:]] == ["n0", "n1", "n2"]
    else:
        assert lines[0].split() == ["a", "name", "of", "something", "n0", "n1", "n2"]
        assert lines[2].split()[-3:] == ["1", "10", "100"]


def test_off_a_terminal_every_column_stays(capsys: pytest.CaptureFixture[str]) -> None:
    print_records(RECORDS, COLUMNS, "table")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("never known")
    assert [line.split()[-1] for line in lines[1:]] == ["-"] * 3


def test_a_terminal_is_told_what_is_done(terminal: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with doing("off a terminal"):
        pass
    assert capsys.readouterr() == ("", "")
    terminal(80)
    with doing("flux: planning"):
        pass
    out, err = capsys.readouterr()
    assert out == ""
    assert "flux: planning, 0 s" in err
    with progress_line() as line:
        line("run: 1 of 3 points")
        with doing("flux: planning"):
            pass
    err = capsys.readouterr().err
    assert "run: 1 of 3 points" in err
    assert "planning" not in err


@pytest.mark.parametrize("where", ["contest.prepare", "simulate.doing"])
def test_ctrl_c_gets_one_sentence(
    fluxbed: Any, step: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def stop(*_args: object, **_more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"testbed.cli.{where}", stop)
    run = tmp_path / "run"
    outcome = fluxbed("simulate", step, "-t", "rails,delay=10us", "-s", "static", "-o", run)
    if where == "simulate.doing":
        assert outcome == (
            130, "", f"fluxbed: interrupted; what was done until then is in {run}\n",
        )  # fmt: skip
        assert b'"interrupted"' in (run / "manifest.json").read_bytes()
    else:
        assert outcome == (130, "", "fluxbed: interrupted; nothing of it is left running\n")
        assert not run.exists()


def test_work_aside_returns_raises_and_is_left_alone_when_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert aside("counting", lambda: 3) == 3
    with pytest.raises(UsageError, match="no such thing"):
        aside("failing", partial(fail, UsageError("no such thing", "here", "of a test", "pass")))
    assert not abandoned()
    go_on = threading.Event()

    @contextmanager
    def interrupted(_what: str) -> Iterator[None]:
        yield fail(KeyboardInterrupt())

    monkeypatch.setattr("testbed.cli.working.doing", interrupted)
    with pytest.raises(KeyboardInterrupt):
        aside("waiting", go_on.wait)
    assert abandoned()
    go_on.set()
    deadline = time.monotonic() + 60
    while abandoned():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_ctrl_c_is_heard_while_compiled_code_runs(step: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ["-t", "rails,delay=1us", "-s", "rotor-direct", "-n", "2000", "-o", str(run)]
    process = subprocess.Popen(  # noqa: S603 (our own interpreter)
        [sys.executable, "-c", _LISTENING, "simulate", str(step), *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 120
        while not (run / "workload.jsonl").is_file():  # then it simulates, for minutes
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out) == (130, "")
    assert err == f"fluxbed: interrupted; what was done until then is in {run}\n"
