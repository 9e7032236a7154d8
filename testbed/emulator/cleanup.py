"""Remove what our runs left behind, and only that.

A run's record names its nodes. A process is ended when it is a recorded shell (same id and same
start) or lives in a recorded network namespace whose `lo` carries the run's alias; with its
last process a namespace goes, with it the links, the crossbar's programs and their maps. Nothing
is ever looked for by name.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from testbed.emulator.capabilities import sudo_command
from testbed.emulator.netns import links, namespace_inode
from testbed.emulator.realtime import restore_softirqs
from testbed.emulator.registry import Process, alias_of, path_of, read_records
from topologies import FluxbedError, MachineError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testbed.emulator.registry import Record

__all__ = ["clean", "remove_dead"]

_PATIENCE_S: Final = 5.0
_POLL_S: Final = 0.01


def clean(run_id: str | None = None) -> list[str]:
    """Remove what dead runs left, or only `run_id`'s; return what was removed, one line each.

    A run whose owner lives is left alone; asked for by name, it raises `FluxbedError`. Raises
    `UsageError` when `run_id` is not a run's, `MachineError` when only root can remove it.
    """
    removed: list[str] = []
    records = read_records()
    if run_id is not None:
        path_of(run_id)
        records = [record for record in records if record.run == run_id]
        if not records:
            why = "no record of it is left in /run/fluxbed"
            raise UsageError(f"there is no run {run_id!r}", "clean", why, "it is clean already")
    for record in records:
        if not record.owner.lives():
            removed += _remove(record)
        elif run_id is not None:
            why = f"its process {record.owner.pid} is at work"
            fix = "interrupt that process: it cleans up"
            raise FluxbedError("the run was not removed", run_id, why, fix)
    if removed and not any(record.owner.lives() for record in read_records()):
        removed += restore_softirqs()
    return removed


def remove_dead(run_id: str) -> None:
    """Remove the remains of `run_id` if there are any and nobody owns them any more."""
    if path_of(run_id).exists():
        for record in read_records():
            if record.run == run_id and not record.owner.lives():
                _remove(record)


def _remove(record: Record) -> list[str]:
    path = path_of(record.run)
    if not os.access(path.parent, os.W_OK):
        why, fix = "that takes root", f"run {sudo_command()}"
        raise MachineError("the run was not removed", record.run, why, fix)
    removed = []
    for process, what in _ours(record).items():
        interfaces = _interfaces(process)  # they go with the last process of the namespace
        if _end(process):
            removed.append(f"{what} (process {process.pid})")
            removed += [f"interface {name}" for name in interfaces]
    path.unlink(missing_ok=True)
    removed.append(f"record {path}")
    return [f"{record.run}: {line}" for line in dict.fromkeys(removed)]


def _ours(record: Record) -> dict[Process, str]:
    """Return what still lives of a run: recorded shells, and what was started beside them."""
    namespaces = {node.namespace: node.name for node in record.nodes}
    ours = {node.shell: f"shell of {node.name}" for node in record.nodes if node.shell.lives()}
    for process, inode in _processes():
        name = namespaces.get(inode)
        if name is not None and process not in ours and _carries(process, alias_of(record.run)):
            ours[process] = f"process in the namespace of {name}"
    return ours


def _processes() -> Iterator[tuple[Process, int]]:
    """Yield every process and the inode of its network namespace."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(ProcessLookupError, FileNotFoundError, PermissionError):
                yield Process.of(int(entry.name)), namespace_inode(entry.name)


def _carries(process: Process, alias: str) -> bool:
    with contextlib.suppress(FluxbedError, OSError):
        return bool(links(process.pid)["lo"].get("ifalias") == alias)
    return False


def _interfaces(process: Process) -> list[str]:
    with contextlib.suppress(FluxbedError, OSError):
        return [name for name in links(process.pid) if name != "lo"]
    return []


def _end(process: Process) -> bool:
    """Kill `process` and wait until it is gone; whether it was still there."""
    try:
        handle = os.pidfd_open(process.pid)  # from here on the number cannot be given again
    except ProcessLookupError:
        return False
    try:
        if not process.lives():
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    finally:
        os.close(handle)
    deadline = time.monotonic() + _PATIENCE_S
    while process.lives() and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return True
