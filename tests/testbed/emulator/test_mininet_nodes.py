"""A node's shell starts, or what keeps it from starting is told: nothing waits forever."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from testbed.emulator import mininet_nodes
from testbed.emulator.mininet_nodes import FabricHost, OCSSwitch
from topologies import MachineError

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def mnexec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Replace `mnexec` by a script: no namespace is made, so nobody need be root."""

    def replace(script: str) -> None:
        for tool, text in (("mnexec", script), ("ifconfig", "")):
            (tmp_path / tool).write_text(f"#!/bin/sh\n{text}\n")
            (tmp_path / tool).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return replace


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("node", [FabricHost, OCSSwitch])
def test_a_shell_that_starts_takes_commands(mnexec: Callable[[str], None], node: Any) -> None:
    mnexec('shift; exec setsid "$@"')
    started = node("h0")
    try:
        assert started.cmd("echo $((6 * 7))").strip() == "42"
    finally:
        started.terminate()


def test_a_late_shell_is_waited_for(mnexec: Callable[[str], None]) -> None:
    mnexec('shift; echo still starting; sleep 0.3; exec setsid "$@"')
    started = FabricHost("h0")
    try:
        assert started.cmd("echo here").strip() == "here"
    finally:
        started.terminate()


@pytest.mark.parametrize("node", [FabricHost, OCSSwitch])
def test_mnexec_that_dies_is_quoted(mnexec: Callable[[str], None], node: Any) -> None:
    mnexec("echo 'unshare: Operation not permitted' >&2; exit 3")
    open_before = open_files()
    with pytest.raises(MachineError) as refused:
        node("h0")
    assert str(refused.value) == (
        "h0: Mininet cannot start a node, because mnexec ended with exit code 3, having said: "
        "unshare: Operation not permitted: "
        "run fluxbed doctor, and install the package mininet again"
    )
    assert open_files() == open_before


def test_mnexec_that_hangs_is_ended(
    mnexec: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mnexec(f"echo $$ >{tmp_path}/pid; exec sleep 600")
    monkeypatch.setattr(mininet_nodes, "_START_S", 2.0)
    with pytest.raises(MachineError, match=r"h0: .* because mnexec gives no shell within 2 s"):
        FabricHost("h0")
    pid = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_talker_is_ended(mnexec: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mnexec("exec yes")  # talks forever, and never gives a prompt
    monkeypatch.setattr(mininet_nodes, "_START_S", 0.2)
    began = time.monotonic()
    with pytest.raises(MachineError, match="gives no shell"):
        FabricHost("h0")
    assert time.monotonic() > began
