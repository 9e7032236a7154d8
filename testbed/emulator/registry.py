"""What a run made on this machine, told to later processes: `/run/fluxbed/<run id>.json`.

The record names its owner and every node by process id and start time, which together are never
given twice between two boots, and every interface. It outlives a killed owner.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from testbed.emulator.netns import namespace_inode
from topologies import FluxbedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["RUNS", "Node", "Process", "Record", "alias_of", "read_records", "recorded"]

RUNS: Final = Path("/run/fluxbed")
_RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_START_TICKS_FIELD: Final = 19  # counted from the one after the name


class Process(msgspec.Struct, frozen=True):
    """A process that is or was; `start_ticks` after boot tells it from later ones."""

    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> Process:
        """Look at a process that lives; raises `ProcessLookupError` when there is none."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
        except FileNotFoundError:
            raise ProcessLookupError(f"there is no process {pid}") from None
        state, *fields = stat.rpartition(")")[2].split()
        if state == "Z":
            raise ProcessLookupError(f"process {pid} has ended")
        return cls(pid, int(fields[_START_TICKS_FIELD - 1]))

    def lives(self) -> bool:
        """Whether this very process is still there."""
        with contextlib.suppress(ProcessLookupError):
            return Process.of(self.pid) == self
        return False


class Node(msgspec.Struct, frozen=True):
    """A Mininet node: its shell, the inode of its network namespace, its interfaces."""

    name: str
    shell: Process
    namespace: int
    interfaces: tuple[str, ...]

    @classmethod
    def of(cls, name: str, pid: int, interfaces: tuple[str, ...]) -> Node:
        """Describe the node whose shell is `pid`."""
        return cls(name, Process.of(pid), namespace_inode(pid), interfaces)


class Record(msgspec.Struct):
    """One run: who owns it and what it made."""

    format: str
    version: int
    run: str
    owner: Process
    nodes: list[Node] = []

    def write(self) -> None:
        """Replace the file, all of it or nothing."""
        path = path_of(self.run)
        fresh = path.with_suffix(".new")
        fresh.write_bytes(self.encoded())
        fresh.replace(path)

    def encoded(self) -> bytes:
        """Write the record as its file holds it."""
        return msgspec.json.format(msgspec.json.encode(self))


def path_of(run_id: str) -> Path:
    """Return where the record of a run is; raises `UsageError` for a name no run can have."""
    if not _RUN_ID.fullmatch(run_id):
        why = "it is made of letters, digits, dots, dashes and underscores"
        raise UsageError(f"{run_id!r} is no run id", "run id", why, "look into /run/fluxbed")
    return RUNS / f"{run_id}.json"


def alias_of(run_id: str) -> str:
    """Return what `ip link` shows as the alias of every interface of a run."""
    return f"fluxbed:{run_id}"


def read_records() -> list[Record]:
    """Return the record of every run that has not been removed, oldest first."""
    found = []
    for path in sorted(RUNS.glob("*.json"), key=lambda p: p.name):
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=Record))
        except FileNotFoundError:  # its run ended just now
            continue
        except msgspec.DecodeError as damage:
            fix = "remove the file once nothing in it is wanted"
            raise FluxbedError("a run's record is damaged", str(path), str(damage), fix) from damage
    return found


@contextlib.contextmanager
def recorded(run_id: str) -> Iterator[Record]:
    """Keep a record of `run_id`, owned by this process, until the run is over.

    Raises `FluxbedError` when there is one already.
    """
    path = path_of(run_id)
    RUNS.mkdir(parents=True, exist_ok=True)
    record = Record("fluxbed-run", 1, run_id, Process.of(os.getpid()))
    fresh = path.with_suffix(".new")
    fresh.write_bytes(record.encoded())
    try:
        path.hardlink_to(fresh)  # whole from the first moment: other runs read it
    except FileExistsError:
        why = f"{path} says it still exists"
        fix = f"use another run id, or fluxbed clean --run {run_id}"
        raise FluxbedError(f"run {run_id!r} cannot start", "run id", why, fix) from None
    finally:
        fresh.unlink(missing_ok=True)
    try:
        yield record
    finally:
        path.unlink(missing_ok=True)
