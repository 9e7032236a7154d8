"""What this machine can do for an emulation, found out by trying, and undone at once.

`check_machine` looks and tries small things in a namespace that ends with its thread;
`require_emulation` refuses in one sentence what could not work; `deep_check` builds two hosts and
measures. What only Linux has is imported where it is used: this module is the one that says so.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import shlex
import shutil
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from topologies import Fabric, FluxbedError, MachineError, Plane

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from testbed.emulator.calibration import Calibration

__all__ = [
    "Capability",
    "check_machine",
    "deep_check",
    "lack_of",
    "require_emulation",
    "sudo_command",
]

_LEAST_KERNEL: Final = (5, 10)
_LEAST_PYTHON: Final = (3, 11)
_PACKAGES: Final = ("numba", "numpy", "pyroute2", "mininet", "setuptools")
_LEAST_CORES: Final = 2
_TOOLS: Final = {"mnexec": "mininet", "ip": "iproute2", "ifconfig": "net-tools"}
_FINEST_TIMER_NS: Final = 1000
_REALTIME: Final = "SCHED_FIFO"


@dataclass(frozen=True, slots=True)
class Capability:
    """One thing the machine has or lacks; `detail` is what was seen, `fix` what would help.

    Without a `required` one there is no emulation; the others make it slower or less exact.
    """

    name: str
    ok: bool
    detail: str
    fix: str = ""
    required: bool = True


def check_machine() -> list[Capability]:
    """Return what this machine can and cannot do, the most basic first. Changes nothing."""
    system = _system()
    if not system.ok:
        return [system]
    found = [system, _kernel(), _python(), *_tools(), _root()]
    if all(capability.ok for capability in found if capability.required):
        found += _try_in_thread(_network)
    else:
        why = "not tried: something before it is missing"
        fix = "mend what is missing above it"
        found += [Capability(name, ok=False, detail=why, fix=fix) for name in ("links", "crossbar")]
    found += _try_in_thread(_realtime)
    return [*found, _timers(), _cores(), _files(), _cgroups(), _realtime_share(), _load(), _swap()]


def require_emulation(*, realtime: bool = True) -> None:
    """Raise `MachineError` for the first thing this machine lacks to emulate a fabric.

    Without `realtime` nothing is to be measured: the machine need not allow real-time threads.
    """
    found = check_machine()
    if lacking := lack_of(one for one in found if realtime or one.name != _REALTIME):
        raise lacking


def lack_of(found: Iterable[Capability]) -> MachineError | None:
    """Return what to say of the first required thing that is missing; None if nothing is."""
    for one in found:
        if one.required and not one.ok:
            what = f"the emulated fabric needs {one.name}"
            return MachineError(what, "this machine", one.detail, one.fix)
    return None


def deep_check(run_id: str | None = None) -> Calibration:
    """Build two hosts with eight ports, measure what an emulation could rely on, take it down.

    Takes a few seconds of one core. Raises `MachineError` where there can be no emulation.
    """
    from testbed.emulator.calibration import calibrate
    from testbed.emulator.network import EmulatedFabric

    require_emulation()
    plane = Plane(node_of=(0, 1, 0, 1), rate_bps=10**9)
    fabric = Fabric(nodes=2, planes=(plane, plane))
    with EmulatedFabric(fabric, run_id or f"doctor-{os.getpid()}") as network:
        return calibrate(network)


def sudo_command() -> str:
    """Return the command that starts this very process as root, for people to copy."""
    return shlex.join(["sudo", *sys.orig_argv])


def _system() -> Capability:
    name = platform.system()
    return Capability("Linux", name == "Linux", name, "use Linux, in a virtual machine if need be")


def _kernel() -> Capability:
    release = platform.release()
    numbers = tuple(int(part) for part in release.split("-")[0].split(".")[:2] if part.isdecimal())
    wanted = ".".join(map(str, _LEAST_KERNEL))
    fix = f"use a kernel of {wanted} or later: bpf_redirect_peer came with it"
    return Capability(f"a kernel of {wanted} or later", numbers >= _LEAST_KERNEL, release, fix)


def _python() -> Capability:
    found = {"Python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    missing = [package for package in _PACKAGES if package not in found]
    ok = not missing and sys.version_info >= _LEAST_PYTHON
    detail = ", ".join(f"{name} {version}" for name, version in found.items())
    detail += f"; without {', '.join(missing)}" if missing else ""
    return Capability("Python and its packages", ok, detail, "install fluxbed again")


def _tools() -> list[Capability]:
    found = []
    for tool, package in _TOOLS.items():
        path = shutil.which(tool)
        detail = path or f"{tool} is not on the path"
        found.append(Capability(tool, path is not None, detail, f"apt install {package}"))
    return found


def _root() -> Capability:
    root = os.geteuid() == 0
    detail = "running as root" if root else f"running as user {os.geteuid()}"
    return Capability("root", root, detail, f"run {sudo_command()}")


def _try_in_thread(probe: Callable[[], list[Capability]]) -> list[Capability]:
    """Run `probe` in a thread of its own: what it does to itself ends with it."""
    found: list[Capability] = []
    thread = threading.Thread(target=lambda: found.extend(probe()))
    thread.start()
    thread.join()
    return found


def _network() -> list[Capability]:
    """Two ports of a crossbar in a namespace that this thread takes to its grave."""
    from testbed.emulator.crossbar import Crossbar
    from testbed.emulator.netns import ip_batch, leave_netns

    fix = "use a kernel with network namespaces and veth (CONFIG_NET_NS, CONFIG_VETH)"
    names = ("links", "crossbar")
    me = threading.get_native_id()
    ends = ("probe0", "probe1")
    try:
        leave_netns()
        ip_batch(me, ["link add probe0 type veth peer name probe1", "link set probe0 up"])
    except (OSError, FluxbedError) as refused:
        return [Capability(name, ok=False, detail=str(refused), fix=fix) for name in names]
    links = Capability("links", ok=True, detail="namespaces and veth pairs can be made")
    try:
        with Crossbar(ports=2) as crossbar:
            crossbar.attach(me, dict(enumerate(ends)))
    except MachineError as refused:
        return [links, Capability("crossbar", ok=False, detail=refused.why, fix=refused.fix)]
    except (OSError, FluxbedError) as refused:
        fix = "allow bpf(2) here: a container or a lockdown may forbid it"
        return [links, Capability("crossbar", ok=False, detail=str(refused), fix=fix)]
    detail = "the eBPF program is verified and attached with clsact"
    return [links, Capability("crossbar", ok=True, detail=detail)]


def _realtime() -> list[Capability]:
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError as refused:
        fix = "run as root outside a cgroup without real-time share (cpu.rt_runtime_us)"
        return [Capability(_REALTIME, ok=False, detail=str(refused), fix=fix)]
    return [Capability(_REALTIME, ok=True, detail="a thread can be real-time")]


def _timers() -> Capability:
    finest_ns = round(time.clock_getres(time.CLOCK_MONOTONIC) * 1e9)
    fix = "boot with high-resolution timers (highres=on)"
    ok = finest_ns <= _FINEST_TIMER_NS
    return Capability("fine timers", ok, f"CLOCK_MONOTONIC in steps of {finest_ns} ns", fix)


def _cores() -> Capability:
    cores = len(os.sched_getaffinity(0))
    detail = f"{cores} to use"
    fix = "give this machine two cores: the engine fills most of one"
    return Capability("two cores", cores >= _LEAST_CORES, detail, fix, required=False)


def _files() -> Capability:
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    detail = "no limit" if hard == resource.RLIM_INFINITY else f"{hard} open files at most"
    ok = hard == resource.RLIM_INFINITY or hard >= 4096  # noqa: PLR2004 (64 hosts on 4 planes)
    return Capability("open files", ok, detail, "raise ulimit -Hn to 4096", required=False)


def _cgroups() -> Capability:
    unified = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    detail = "version 2" if unified else "version 1"
    return Capability("control groups", ok=True, detail=detail, required=False)


def _realtime_share() -> Capability:
    with contextlib.suppress(OSError, ValueError):
        runtime_us = int(Path("/proc/sys/kernel/sched_rt_runtime_us").read_text("ascii"))
        period_us = int(Path("/proc/sys/kernel/sched_rt_period_us").read_text("ascii"))
        share = "all" if runtime_us < 0 else f"{100 * runtime_us / period_us:.0f} %"
        detail = f"real-time threads may use {share} of a core"
        return Capability("real-time share", ok=True, detail=detail, required=False)
    return Capability("real-time share", ok=True, detail="not known", required=False)


def _load() -> Capability:
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    fix = "stop other work before measuring: it makes arrivals late"
    return Capability("an idle machine", load < cores / 2, f"load {load:.2f}", fix, required=False)


def _swap() -> Capability:
    lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    kib = {name: int(rest.split()[0]) for name, rest in (line.split(":") for line in lines)}
    used = kib["SwapTotal"] - kib["SwapFree"]
    fix = "free memory: a page fetched from swap stops the engine for milliseconds"
    return Capability("no swap in use", used == 0, f"{used} KiB in use", fix, required=False)
