"""What a machine lacks is told in one sentence, with what to do about it."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import sys
import threading

import pytest

from testbed.emulator import capabilities
from testbed.emulator.capabilities import Capability, check_machine, require_emulation
from testbed.emulator.netns import namespace_inode
from topologies import MachineError


@pytest.fixture
def good(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine where everything that must be tried works."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda tool: f"/usr/bin/{tool}")
    for name in ("_network", "_realtime"):
        monkeypatch.setattr(capabilities, name, list)
    return monkeypatch


def test_a_good_machine_passes(good: pytest.MonkeyPatch) -> None:
    assert good
    require_emulation()


@pytest.mark.parametrize("release", ["5.9.0-1-amd64", "4.19.0", "5.4.0-26-generic"])
def test_an_old_kernel(good: pytest.MonkeyPatch, release: str) -> None:
    good.setattr(platform, "release", lambda: release)
    with pytest.raises(MachineError, match=f"needs a kernel of 5.10 or later, because {release}"):
        require_emulation()


@pytest.mark.parametrize("release", ["5.10.0-8-amd64", "6.18.44-fc-v857", "10.0"])
def test_a_kernel_that_will_do(good: pytest.MonkeyPatch, release: str) -> None:
    good.setattr(platform, "release", lambda: release)
    require_emulation()


@pytest.mark.parametrize(
    ("tool", "package"), [("mnexec", "mininet"), ("ip", "iproute2"), ("ifconfig", "net-tools")]
)
def test_a_missing_tool(good: pytest.MonkeyPatch, tool: str, package: str) -> None:
    good.setattr(shutil, "which", lambda name: None if name == tool else "/usr/bin/it")
    with pytest.raises(MachineError) as refused:
        require_emulation()
    assert str(refused.value) == (
        f"this machine: the emulated fabric needs {tool}, because {tool} is not on the path: "
        f"apt install {package}"
    )
    assert refused.value.exit_code == 4


def test_without_root_the_command_to_use_is_told(good: pytest.MonkeyPatch) -> None:
    good.setattr(os, "geteuid", lambda: 1000)
    good.setattr(sys, "orig_argv", ["/venv/bin/python", "/venv/bin/fluxbed", "run", "my trace"])
    with pytest.raises(MachineError, match="needs root, because running as user 1000") as refused:
        require_emulation()
    command = refused.value.fix.removeprefix("run ")
    assert shlex.split(command) == [
        "sudo",
        "/venv/bin/python",
        "/venv/bin/fluxbed",
        "run",
        "my trace",
    ]
    found = {capability.name: capability for capability in check_machine()}
    assert not found["links"].ok
    assert found["links"].detail.startswith("not tried")


def test_what_is_not_required_does_not_refuse(good: pytest.MonkeyPatch) -> None:
    good.setattr(os, "getloadavg", lambda: (99.0, 99.0, 99.0))
    good.setattr(os, "sched_getaffinity", lambda _: {0})
    require_emulation()
    poor = [c.name for c in check_machine() if not c.ok]
    assert {"two cores", "an idle machine"} <= set(poor)


def test_another_system_is_told_before_anything_is_tried(good: pytest.MonkeyPatch) -> None:
    good.setattr(platform, "system", lambda: "Darwin")
    good.setattr(capabilities, "_kernel", lambda: pytest.fail("tried"))
    with pytest.raises(MachineError, match="needs Linux, because Darwin"):
        require_emulation()


def test_a_package_that_is_missing(good: pytest.MonkeyPatch) -> None:
    good.setattr(capabilities, "_PACKAGES", ("numpy", "no-such-package"))
    with pytest.raises(MachineError, match="without no-such-package"):
        require_emulation()


def test_what_is_tried_leaves_no_trace() -> None:
    before = (namespace_inode("self"), os.sched_getscheduler(0), threading.active_count())
    found = check_machine()
    assert (namespace_inode("self"), os.sched_getscheduler(0), threading.active_count()) == before
    assert len({capability.name for capability in found}) == len(found) >= 15
    assert all(capability.detail for capability in found)
    assert all(capability.fix for capability in found if not capability.ok and capability.required)


def test_a_capability_is_data() -> None:
    assert Capability("x", ok=True, detail="y") == Capability("x", ok=True, detail="y", fix="")


def test_what_measures_nothing_needs_no_real_time(good: pytest.MonkeyPatch) -> None:
    refused = Capability("SCHED_FIFO", ok=False, detail="not permitted", fix="leave the cgroup")
    good.setattr(capabilities, "_realtime", lambda: [refused])
    with pytest.raises(MachineError, match="needs SCHED_FIFO, because not permitted"):
        require_emulation()
    require_emulation(realtime=False)
