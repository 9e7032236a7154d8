"""AICB's CSV: one rank's communication calls in order, without compute.

Columns comm_type, comm_group, comm_group_size, msg_size, stage, dst, src, ...; an optional first
line `[rank0 ~ rank127]` tells the world; `epoch_end` rows end iterations. `msg_size` is the full
tensor. Elapsed times are of the collectives, so they are not used, except of computation rows.
"""

from __future__ import annotations

import csv
import re
from typing import TYPE_CHECKING, Final

from testbed.traces.capture import BEFORE, Call, Enter, Recording, Step, Work
from testbed.traces.names import collective_kind
from testbed.traces.simai import full_tensor, grid, require_countable
from topologies.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from testbed.traces.sources import Blob

__all__ = ["Aicb"]

_HEAD: Final = "comm_type,comm_group,comm_group_size,msg_size"
_WORLD: Final = re.compile(r"\[rank(\d+)\s*~\s*rank(\d+)\]")
_SETUP: Final = "init"


class Aicb:
    """The importer of AICB's CSV: one file is one rank, which stands for all."""

    name: Final = "aicb"

    def sniff(self, head: bytes) -> bool:
        """Tell by its beginning whether a file is AICB's."""
        return _HEAD.encode() in head[:300]

    def read(self, blob: Blob) -> list[Recording]:
        """Read rank 0; `InputError` when a row does not hold what the columns say."""
        lines = blob.load().decode("utf-8", "replace").splitlines()
        recording = Recording(path=blob.path, format=self.name, rank=0)
        start = next((i for i, line in enumerate(lines) if line.startswith(_HEAD)), None)
        if start is None:
            raise InputError(
                "there is no line of column names",
                blob.path,
                f"no line begins with {_HEAD}",
                "generate the file again",
            )
        if start and (match := _WORLD.search(lines[0])):
            recording.world = int(match[2]) - int(match[1]) + 1
        rows = _rows(lines[start:], blob.path)
        _find_groups(rows, recording)
        _run(rows, recording, start + 2)
        if not any(
            isinstance(i, Work) for items in (recording.program or {}).values() for i in items
        ):
            recording.losses.add("files without compute", blob.path)
        return [recording]


def _rows(lines: list[str], path: str) -> list[Mapping[str, str]]:
    """Read the table; short rows and missing columns read as the text None."""
    names = [*_HEAD.split(","), "stage", "dst", "src", "_elapsed_time"]
    try:
        table = list(csv.DictReader(lines))
    except csv.Error as error:
        why = str(error)
        raise InputError("the table is damaged", path, why, "generate the file again") from error
    return [{name: str(row.get(name)) for name in names} for row in table]


def _short(name: str) -> str:
    """Return what follows the dot: `CommType.all_reduce` is all_reduce.

    >>> _short("CommGroup.tp_group"), _short("None")
    ('tp_group', 'None')
    """
    return name.rpartition(".")[2]


def _find_groups(rows: Sequence[Mapping[str, str]], recording: Recording) -> None:
    """Take each group's size from the rows that tell it, and the grid from them and the world."""
    sizes: dict[str, set[int]] = {}
    for row in rows:
        if (size := row["comm_group_size"]).isdecimal():
            sizes.setdefault(_short(row["comm_group"]), set()).add(int(size))
    known = {name: found.pop() for name, found in sizes.items() if len(found) == 1}
    if recording.world is None and {"tp_group", "dp_group"} <= known.keys():
        recording.world = known["tp_group"] * known["dp_group"]
        what = "the number of GPUs is not in the file: taken as tensor times data parallel"
        recording.losses.add(what, f"{recording.world}")
    if recording.world is None:
        return
    require_countable({"the number of GPUs": recording.world, **known}, recording.path)
    tp = known.get("tp_group", 1)
    pp = max(1, recording.world // (tp * known["dp_group"])) if "dp_group" in known else 1
    groups = grid(recording.world, tp, pp, known.get("ep_group", 1))
    recording.groups = {
        f"{name}_group": group for name, group in groups.items() if f"{name}_group" in known
    }


def _run(rows: Sequence[Mapping[str, str]], recording: Recording, first_line: int) -> None:
    """Do one row after the other; what comes before the first iteration is set aside."""
    number = 0
    started = False
    program: dict[int, list[Work | Enter]] = {}
    last: tuple[Call | Work, ...] = ()
    for line, row in enumerate(rows, start=first_line):
        name = _short(row["comm_type"])
        if name == "epoch_end":
            number += started
            last = ()
            continue
        started = started or not row["stage"].startswith(_SETUP)
        if name == "computation":
            item: Work | Enter = Work(None, _elapsed_ns(row), last)
            if started:
                program.setdefault(number, []).append(item)
                last = (item,) if isinstance(item, Work) else last
            continue
        call = _call(row, name, recording, f"{recording.path} line {line}")
        if call is None:
            continue
        call.step = number if started else BEFORE
        recording.calls.append(call)
        if started:
            program.setdefault(number, []).append(Enter(None, call, last))
            last = (call,)
    setup = sum(call.step == BEFORE for call in recording.calls)
    recording.losses.add("calls before the first iteration", _SETUP, setup)
    recording.program = program
    recording.steps = tuple(Step(n, n, n + 1) for n in sorted(program))


def _elapsed_ns(row: Mapping[str, str]) -> int:
    try:
        return max(0, round(float(row["_elapsed_time"]) * 1e6))
    except (OverflowError, ValueError):
        return 0


def _call(row: Mapping[str, str], name: str, recording: Recording, where: str) -> Call | None:
    kind = collective_kind(name)
    if kind is None:
        recording.losses.add("rows of unknown operation", name)
        return None
    size_text = row["msg_size"]
    if not size_text.isdecimal() and kind != "barrier":
        raise InputError(
            f"msg_size is {size_text!r}",
            where,
            "it is a number of bytes",
            "generate the file again",
        )
    group = _short(row["comm_group"])
    known = recording.groups.get(group)
    told = row["comm_group_size"]
    size = len(known.ranks) if known is not None else int(told) if told.isdecimal() else None
    call = Call(kind=kind, group=group, size=size, members=None if known is None else known.ranks)
    if kind in ("send", "recv"):
        peer = row["dst" if kind == "send" else "src"]
        call.peer = int(peer) if peer.isdecimal() else None
    if kind != "barrier":  # a barrier's msg_size means nothing
        full = int(size_text)
        if size is not None or kind not in ("all_gather", "reduce_scatter"):
            call.in_bytes, call.out_bytes = full_tensor(kind, full, size or 1)
        elif kind == "all_gather":
            call.out_bytes = full
        else:
            call.in_bytes = full
    return call
