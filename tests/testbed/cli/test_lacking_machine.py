"""A machine that lacks something is told so by `run` and `doctor`: one sentence, exit code 4."""

from __future__ import annotations

import errno
import os
import platform
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest

from testbed.emulator import bpf, capabilities, crossbar, netns

if TYPE_CHECKING:
    from collections.abc import Callable

RUN = ("run", "step.workload.jsonl", "-t", "rails", "-s", "flux")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine where everything works that would be tried."""
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "release", lambda: "6.1.0")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda tool: f"/usr/bin/{tool}")
    monkeypatch.setattr(os, "sched_setscheduler", lambda *_: None)
    monkeypatch.setattr(netns, "leave_netns", lambda: None)
    monkeypatch.setattr(netns, "ip_batch", lambda *_: None)
    return monkeypatch


class Attached:
    """A crossbar that this machine can make and attach."""

    def __init__(self, ports: int) -> None:
        self.ports = ports

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def attach(self, pid: int, interfaces: dict[int, str]) -> None:
        """Attach nothing."""


def no_bpf(patch: pytest.MonkeyPatch, number: int) -> None:
    def refused(command: int, attributes: bytes) -> int:
        del command, attributes
        raise OSError(number, f"bpf: {os.strerror(number)}")

    patch.setattr(bpf, "_bpf", refused)


def no_clsact(patch: pytest.MonkeyPatch) -> None:
    from pyroute2.netlink.exceptions import NetlinkError

    class Kernel:
        def tc(self, *_: object, **__: object) -> None:
            raise NetlinkError(errno.ENOENT, "Specified qdisc kind is unknown")

    def attach(self: Attached, pid: int, interfaces: dict[int, str]) -> None:
        del self, pid, interfaces
        crossbar._attach(Kernel(), 1, 0)

    patch.setattr(Attached, "attach", attach)
    patch.setattr(crossbar, "Crossbar", Attached)


def no_realtime(patch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    patch.setattr(crossbar, "Crossbar", Attached)
    patch.setattr(os, "sched_setscheduler", refused)


def no_links(patch: pytest.MonkeyPatch) -> None:
    def refused() -> None:
        raise OSError(errno.EPERM, "unshare: Operation not permitted")

    patch.setattr(netns, "leave_netns", refused)


LACKING: dict[str, tuple[Callable[[Any], None], str]] = {
    "bpf(2) is not built in": (
        lambda patch: no_bpf(patch, errno.ENOSYS),
        "needs crossbar, because [Errno 38] bpf: Function not implemented: allow bpf(2) here",
    ),
    "bpf(2) is forbidden": (
        lambda patch: no_bpf(patch, errno.EPERM),
        "needs crossbar, because [Errno 1] bpf: Operation not permitted: allow bpf(2) here",
    ),
    "no clsact": (no_clsact, "Specified qdisc kind is unknown"),
    "not root": (
        lambda patch: patch.setattr(os, "geteuid", lambda: 1000),
        "needs root, because running as user 1000: run sudo ",
    ),
    "an older kernel": (
        lambda patch: patch.setattr(platform, "release", lambda: "5.4.0-26-generic"),
        "needs a kernel of 5.10 or later, because 5.4.0-26-generic: use a kernel of 5.10",
    ),
    "a cgroup without real-time share": (
        no_realtime,
        "needs SCHED_FIFO, because [Errno 1] Operation not permitted: run as root outside a cgroup",
    ),
    "a container without namespaces": (
        no_links,
        "needs links, because [Errno 1] unshare: Operation not permitted: use a kernel with",
    ),
    "another system": (
        lambda patch: patch.setattr(platform, "system", lambda: "Darwin"),
        "needs Linux, because Darwin: use Linux",
    ),
    "a processor whose bpf(2) is not known": (
        lambda patch: patch.setattr(platform, "machine", lambda: "riscv64"),
        "the number of bpf(2) is known for x86_64 and aarch64, not for riscv64",
    ),
}


@pytest.mark.parametrize("words", [RUN, ("doctor",), ("doctor", "--deep")], ids=" ".join)
@pytest.mark.parametrize("case", LACKING)
def test_what_is_missing_is_one_sentence_and_exit_4(
    machine: pytest.MonkeyPatch, fluxbed: Any, case: str, words: tuple[str, ...]
) -> None:
    lose, sentence = LACKING[case]
    machine.setattr(sys, "orig_argv", ["python", "fluxbed"])
    lose(machine)
    done = fluxbed(*words)
    assert done.code == 4
    assert done.err.count("\n") == 1, done.err
    assert "the emulated fabric needs" in done.err
    assert sentence in done.err
    assert "Traceback" not in done.out + done.err
    assert done.out == "" if words == RUN else "missing" in done.out


@pytest.mark.parametrize(("unified", "version"), [(True, "version 2"), (False, "version 1")])
def test_either_version_of_control_groups_will_do(
    machine: pytest.MonkeyPatch, *, unified: bool, version: str
) -> None:
    exists = Path.exists
    machine.setattr(crossbar, "Crossbar", Attached)
    machine.setattr(
        Path,
        "exists",
        lambda path, **more: unified if path.name == "cgroup.controllers" else exists(path, **more),
    )
    capabilities.require_emulation()
    (found,) = [one for one in capabilities.check_machine() if one.name == "control groups"]
    assert found.detail == version
