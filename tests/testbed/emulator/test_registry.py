"""Records of runs: written whole, read back, refused when damaged."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from testbed.emulator import cleanup, registry
from testbed.emulator.cleanup import clean, remove_dead
from testbed.emulator.registry import Node, Process, Record, read_records, recorded
from topologies import FluxbedError, MachineError, UsageError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(registry, "RUNS", tmp_path / "fluxbed")
    return tmp_path / "fluxbed"


@pytest.fixture
def dead() -> Process:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        process = Process.of(child.pid)
        assert process.lives()
        child.communicate(b"\n")
    assert not process.lives()
    return process


def leave(run: str, owner: Process, nodes: list[Node] | None = None) -> None:
    registry.RUNS.mkdir(exist_ok=True)
    Record("fluxbed-run", 1, run, owner, nodes or []).write()


def test_a_record_is_there_for_as_long_as_the_run(runs: Path) -> None:
    with recorded("a") as record:
        record.nodes.append(Node.of("h0", os.getpid(), ("h0-eth0",)))
        record.write()
        assert read_records() == [record]
        assert record.owner == Process.of(os.getpid())
        assert [path.name for path in runs.iterdir()] == ["a.json"]
    assert read_records() == []


def test_a_record_goes_with_an_error(runs: Path) -> None:
    with pytest.raises(ZeroDivisionError), recorded("a"):
        raise ZeroDivisionError
    assert list(runs.iterdir()) == []


def test_no_run_has_the_record_of_another() -> None:
    with recorded("a"), pytest.raises(FluxbedError, match=r"run 'a' cannot start"), recorded("a"):
        pytest.fail("it started")


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "-a", ".a", "a b", "ä", "a" * 101])
def test_a_name_no_file_should_have(name: str) -> None:
    with pytest.raises(UsageError, match="is no run id"), recorded(name):
        pytest.fail("it started")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "fluxbed-run"}'])
def test_a_damaged_record_is_not_guessed_at(runs: Path, text: str) -> None:
    runs.mkdir()
    (runs / "a.json").write_text(text, "utf-8")
    with pytest.raises(FluxbedError, match=r"a\.json: a run's record is damaged"):
        clean()
    assert (runs / "a.json").exists()


def test_dead_runs_are_removed_and_living_ones_are_not(dead: Process, runs: Path) -> None:
    leave("gone", dead)
    leave("here", Process.of(os.getpid()))
    assert clean() == [f"gone: record {runs}/gone.json"]
    assert [record.run for record in read_records()] == ["here"]
    assert clean() == []


def test_one_run_by_name(dead: Process, runs: Path) -> None:
    leave("gone", dead)
    leave("other", dead)
    assert clean("gone") == [f"gone: record {runs}/gone.json"]
    with pytest.raises(UsageError, match="there is no run 'gone'"):
        clean("gone")
    remove_dead("other")
    remove_dead("other")
    assert read_records() == []


def test_without_root_the_command_to_use_is_told(
    dead: Process, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave("gone", dead)
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(sys, "orig_argv", ["python", "fluxbed", "clean"])
    with pytest.raises(MachineError, match="that takes root: run sudo python fluxbed clean"):
        clean()
    assert (runs / "gone.json").exists()


def test_a_number_given_again_is_another_process(
    dead: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recorded shell's number now belongs to us, in a namespace that is not the run's."""
    me = Process.of(os.getpid())
    former = Process(me.pid, me.start_ticks - 1)
    leave("gone", dead, [Node("h0", former, 0, ("h0-eth0",))])
    monkeypatch.setattr(cleanup.signal, "pidfd_send_signal", lambda *_: pytest.fail("killed us"))
    assert len(clean("gone")) == 1


def test_sharing_a_namespace_is_not_enough(dead: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inodes are given again: without the run's alias nobody in that namespace is touched."""
    mine = Node.of("h0", os.getpid(), ("h0-eth0",))
    leave("gone", dead, [Node("h0", dead, mine.namespace, ())])
    monkeypatch.setattr(cleanup.signal, "pidfd_send_signal", lambda *_: pytest.fail("killed us"))
    assert len(clean("gone")) == 1


def test_a_process_that_never_was() -> None:
    with pytest.raises(ProcessLookupError, match="there is no process"):
        Process.of(2**22 + 1)
