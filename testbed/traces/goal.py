"""GOAL text (LogGOPSim): per rank, sends, receives and calculations and what requires what.

`label: send 8b to 1 tag 3`, `recv 8b from 0`, `calc 100` (ns), `a requires b` (b has ended), `a
irequires b` (b has started); `//` and `/* */` comments. A GOAL rank is often a node of several
GPUs. Sends and receives match by (source, destination, tag), first come first served.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from testbed.traces.capture import MOST_RANKS, Call, Enter, Recording, Work
from testbed.traces.ordering import Circle, in_order
from topologies.errors import InputError

if TYPE_CHECKING:
    from testbed.traces.sources import Blob

__all__ = ["Goal"]

_COMMENT: Final = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_WORLD: Final = re.compile(r"num_ranks\s+(\d+)$")
_RANK: Final = re.compile(r"rank\s+(\d+)\s*\{$")
_OPERATION: Final = re.compile(
    r"(?:(?P<label>\w+)\s*:\s*)?"
    r"(?:(?P<verb>send|recv)\s+(?P<size>\d+)b?\s+(?:to|from)\s+(?P<peer>\d+)"
    r"(?:\s+tag\s+(?P<tag>\d+))?|calc\s+(?P<dur>-?\d+))"
    r"(?:\s+cpu\s+(?P<cpu>\d+))?(?:\s+nic\s+\d+)?$"
)
_REQUIRES: Final = re.compile(r"(\w+)\s+(i?requires)\s+(\w+)$")
_BRACES: Final = re.compile(r"(?<=\{)|(?=\})|(?<=\})")  # a block may stand on one line


class Goal:
    """The importer of GOAL text: one file is all ranks."""

    name: Final = "goal"

    def sniff(self, head: bytes) -> bool:
        """Tell by its beginning whether a file is GOAL text."""
        text = _COMMENT.sub("", head.decode("utf-8", "replace")).lstrip()
        return re.match(r"num_ranks\s+\d+", text) is not None

    def read(self, blob: Blob) -> list[Recording]:
        """Read all ranks; `InputError` names the line that is not GOAL."""
        text = blob.load().decode("utf-8", "replace")
        text = _COMMENT.sub(lambda found: "\n" * found[0].count("\n"), text)
        reader = _Reader(blob.path)
        for number, raw in enumerate(text.splitlines(), start=1):
            for part in _BRACES.split(raw):
                if line := part.strip():
                    reader.take(line, number)
        return reader.finish()


class _Reader:
    """Takes the lines one by one."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._world = 0
        self._recordings: dict[int, Recording] = {}
        self._rank: int | None = None
        self._items: list[Work | Enter] = []
        self._labels: dict[str, Work | Enter] = {}

    def take(self, line: str, number: int) -> None:
        """Read one line."""
        if found := _OPERATION.match(line):
            self._operation(found, number)
        elif found := _REQUIRES.match(line):
            self._requires(found, number)
        elif found := _RANK.match(line):
            self._open(int(found[1]), number)
        elif line == "}":
            self._rank = None
        elif found := _WORLD.match(line):
            self._world = int(found[1])
            if not 0 < self._world <= MOST_RANKS:
                why = f"fluxbed counts from 1 to {MOST_RANKS} ranks"
                raise self._wrong(f"there are {found[1]} ranks", number, why)
        else:
            raise self._wrong(f"{line[:60]!r} is not GOAL", number, "no statement looks like it")

    def _wrong(self, what: str, number: int, why: str) -> InputError:
        return InputError(what, f"{self._path} line {number}", why, "correct the line")

    def _open(self, rank: int, number: int) -> None:
        if rank >= self._world or rank in self._recordings:
            known = "appears twice" if rank in self._recordings else f"is not below {self._world}"
            raise self._wrong(f"there is a rank {rank}", number, f"it {known}")
        self._rank, self._items, self._labels = rank, [], {}
        self._recordings[rank] = Recording(
            path=self._path,
            format=Goal.name,
            rank=rank,
            world=self._world,
            program={0: self._items},
        )

    def _operation(self, found: re.Match[str], number: int) -> None:
        if self._rank is None:
            raise self._wrong("an operation stands alone", number, "it belongs to no rank")
        recording = self._recordings[self._rank]
        if found["verb"] is None:
            dur_ns = int(found["dur"])
            recording.losses.add("negative calculations: taken as 0", f"line {number}", dur_ns < 0)
            item: Work | Enter = Work(None, max(0, dur_ns), (), int(found["cpu"] or 0))
        else:
            peer, size = int(found["peer"]), int(found["size"])
            if peer >= self._world:
                raise self._wrong(f"the other rank is {peer}", number, f"there are {self._world}")
            call = Call(kind=found["verb"], peer=peer, tag=int(found["tag"] or 0))
            if call.kind == "send":
                call.in_bytes = size
            else:
                call.out_bytes = size
            recording.calls.append(call)
            item = Enter(None, call)
        self._items.append(item)
        if (label := found["label"]) is not None:
            if label in self._labels:
                raise self._wrong(f"label {label!r} appears twice", number, "the rank has it")
            self._labels[label] = item

    def _requires(self, found: re.Match[str], number: int) -> None:
        later, how, earlier = found.groups()
        for label in (later, earlier):
            if label not in self._labels:
                raise self._wrong(f"label {label!r} is unknown", number, "it is not defined before")
        item, need = self._labels[later], self._labels[earlier]
        if how == "irequires":
            item.starts_after += (need if isinstance(need, Work) else need.call,)
        else:
            item.after += (need if isinstance(need, Work) else need.call,)

    def finish(self) -> list[Recording]:
        """Return the ranks; those without a block do nothing."""
        if not any(recording.calls for recording in self._recordings.values()):
            raise InputError(
                "no message is sent",
                self._path,
                "the schedule holds calculations only",
                "give one with send and recv",
            )
        for rank in range(self._world):
            if rank not in self._recordings:
                self._open(rank, 0)
            self._order(self._recordings[rank])
        return [self._recordings[rank] for rank in sorted(self._recordings)]

    def _order(self, recording: Recording) -> None:
        """Put what a rank does after what it requires: GOAL's own order does not bind."""
        assert recording.program is not None
        items = recording.program[0]
        place = {id(i if isinstance(i, Work) else i.call): k for k, i in enumerate(items)}
        needs = [{place[id(need)] for need in (*i.after, *i.starts_after)} for i in items]
        try:
            recording.program[0] = [items[k] for k in in_order(needs)]
        except Circle as circle:
            raise InputError(
                f"operation number {circle.place} of rank {recording.rank} waits for itself",
                self._path,
                "what it requires requires it",
                "correct the requires lines",
            ) from circle
