"""Network namespaces: enter one for a moment, and configure what is in it with iproute2 batches."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from topologies import FluxbedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "bridge_batch",
    "disable_ipv6",
    "in_netns",
    "ip_batch",
    "leave_netns",
    "links",
    "namespace_inode",
    "qdiscs",
    "set_sysctl",
    "tc_batch",
]

_CLONE_NEWNET: Final = 0x40000000


def _call(name: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)  # os has setns and unshare from Python 3.12 only
    if getattr(libc, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def leave_netns() -> None:
    """Move the calling thread, for the rest of its life, into a new and empty namespace."""
    _call("unshare", _CLONE_NEWNET)


@contextlib.contextmanager
def in_netns(pid: int) -> Iterator[None]:
    """Put the calling thread into the network namespace of `pid`; other threads stay.

    Sockets opened and processes started inside belong to that namespace for good. Raises
    `OSError` when the process is gone or the caller may not enter.
    """
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)  # /proc/self is the main thread's
    try:
        there = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        try:
            _call("setns", there, _CLONE_NEWNET)
        finally:
            os.close(there)
        try:
            yield
        finally:
            _call("setns", home, _CLONE_NEWNET)
    finally:
        os.close(home)


def namespace_inode(pid: int | str) -> int:
    """Return the number that names the network namespace of `pid` while it exists."""
    return Path(f"/proc/{pid}/ns/net").stat().st_ino


def set_sysctl(name: str, value: int) -> None:
    """Write one `net.*` setting of the calling thread's namespace, if this kernel has it."""
    with contextlib.suppress(FileNotFoundError):
        Path("/proc/sys", *name.split("/")).write_text(str(value), "ascii")


def disable_ipv6(pid: int) -> None:
    """Keep neighbour discovery out of the namespace of `pid`: it would count as dark drops."""
    with in_netns(pid):
        for scope in ("all", "default"):
            set_sysctl(f"net/ipv6/conf/{scope}/disable_ipv6", 1)


def _run(command: list[str], commands: str, where: str) -> str:
    done = subprocess.run(command, input=commands, capture_output=True, text=True, check=False)  # noqa: S603 (ours)
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
        why = f"{command[0]} says {said!r}"
        fix = "look for what else configures this namespace, and run fluxbed doctor"
        raise FluxbedError("the network could not be configured", where, why, fix)
    return done.stdout


def _batch(tool: str, pid: int, commands: Iterable[str]) -> None:
    with in_netns(pid):
        _run([tool, "-batch", "-"], "".join(f"{line}\n" for line in commands), f"process {pid}")


def ip_batch(pid: int, commands: Iterable[str]) -> None:
    """Run iproute2 `commands` in the namespace of `pid`: all of them, or `FluxbedError`."""
    _batch("ip", pid, commands)


def bridge_batch(pid: int, commands: Iterable[str]) -> None:
    """Run commands of iproute2's `bridge` in the namespace of `pid`; errors as `ip_batch`."""
    _batch("bridge", pid, commands)


def tc_batch(pid: int, commands: Iterable[str]) -> None:
    """Run commands of iproute2's `tc` in the namespace of `pid`; errors as `ip_batch`."""
    _batch("tc", pid, commands)


def _shown(pid: int, *command: str) -> list[dict[str, Any]]:
    with in_netns(pid):
        found: list[dict[str, Any]] = json.loads(_run([*command], "", f"process {pid}") or "[]")
    return found


def links(pid: int) -> dict[str, dict[str, Any]]:
    """Return every interface in the namespace of `pid` by name, as `ip -json link` tells it."""
    return {link["ifname"]: link for link in _shown(pid, "ip", "-json", "link", "show")}


def qdiscs(pid: int) -> dict[str, dict[str, Any]]:
    """Return the root queue of every interface of `pid`'s, with counts, as `tc -json` tells it."""
    found = _shown(pid, "tc", "-json", "-statistics", "qdisc", "show")
    return {queue["dev"]: queue for queue in found if queue.get("root")}
