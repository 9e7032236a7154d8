"""Pipeline schedules as CSV: one row a pipeline rank, one cell an action, as PyTorch writes them.

An action is a stage, what is done and a micro-batch: `2F1`; `B` is a whole backward pass, `I` its
input gradients and `W` its weight gradients (`torch.distributed.pipelining.schedules`, class
`_Action`). SEND_F, RECV_F, SEND_B and RECV_B may be written out or left out, as in
`_PipelineScheduleRuntime` with and without compute-only schedules: they follow from the passes,
and must be those that do. UNSHARD, RESHARD and REDUCE_GRAD are left to the recipe's ZeRO stage.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from testbed.files.codec import read_bytes
from topologies.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = ["Action", "read_schedule"]

_ACTION: Final = re.compile(r"(\d{1,6})(F|B|I|W|SEND_F|RECV_F|SEND_B|RECV_B)(\d{1,6})")
_SHARDING: Final = re.compile(r"\d+(?:UNSHARD|RESHARD|REDUCE_GRAD)\d*")
_PASSES: Final = frozenset("FBIW")


class Action(NamedTuple):
    """What a stage does for one micro-batch."""

    stage: int
    what: str
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.what}{self.micro_batch}"


def read_schedule(path: Path) -> list[list[Action]]:
    """Return the passes of each rank in order: F, then B, or I and W.

    Stages lie round the ranks: stage s on rank s mod the number of rows. Raises `InputError` when
    a cell is no action, a pass or transfer is missing or twice, a stage lies elsewhere, or the
    order makes ranks wait for each other for ever.
    """
    lines = read_bytes(path).decode("utf-8", "replace").splitlines()
    rows = [_row(line, path, number) for number, line in enumerate(lines, 1) if line.strip(", \t")]
    passes = [[action for action in row if action.what in _PASSES] for row in rows]
    everything = [action for row in passes for action in row]
    if not everything:
        raise _bad("no pass is in it", path, "no cell is like 0F0")
    stages = 1 + max(action.stage for action in everything)
    batches = 1 + max(action.micro_batch for action in everything)
    _require_places(rows, stages, path)
    _require_all(everything, stages, batches, path)
    _require_transfers([action for row in rows for action in row], stages, batches, path)
    _require_progress(passes, stages, path)
    return passes


def _bad(what: str, where: object, why: str) -> InputError:
    return InputError(what, str(where), why, "give a pipeline schedule as PyTorch writes it")


def _row(line: str, path: Path, number: int) -> list[Action]:
    actions = []
    for place, cell in enumerate(line.split(","), 1):
        text = cell.strip()
        if not text or _SHARDING.fullmatch(text):
            continue
        match = _ACTION.fullmatch(text)
        if match is None:
            why = "it is not a stage, F, B, I, W, SEND or RECV, and a micro-batch"
            raise _bad(f"{text[:40]!r} is no action", f"{path} row {number} cell {place}", why)
        actions.append(Action(int(match[1]), match[2], int(match[3])))
    return actions


def _require_places(rows: Sequence[Sequence[Action]], stages: int, path: Path) -> None:
    for number, row in enumerate(rows):
        for action in row:
            if action.stage % len(rows) != number:
                why = f"stage {action.stage} of {stages} lies on row {action.stage % len(rows) + 1}"
                raise _bad(f"{action} is not of this rank", f"{path} row {number + 1}", why)


def _require_all(actions: Sequence[Action], stages: int, batches: int, path: Path) -> None:
    found = set(actions)
    if len(found) < len(actions):
        twice = next(a for place, a in enumerate(actions) if a in actions[:place])
        raise _bad(f"{twice} is there twice", path, "a stage does it once")
    for stage in range(stages):
        for batch in range(batches):
            f, b, i, w = (Action(stage, what, batch) in found for what in "FBIW")
            if not f or b == i or w != i:
                missing = "F" if not f else "B, or I and W"
                why = f"stage {stage} does not do {missing} exactly once for micro-batch {batch}"
                raise _bad("the schedule is incomplete", path, why)


def _transfers(stages: int, batches: int) -> Iterator[Action]:
    for batch in range(batches):
        for stage in range(stages - 1):
            yield Action(stage, "SEND_F", batch)
            yield Action(stage + 1, "RECV_F", batch)
            yield Action(stage + 1, "SEND_B", batch)
            yield Action(stage, "RECV_B", batch)


def _require_transfers(actions: Sequence[Action], stages: int, batches: int, path: Path) -> None:
    """A schedule with transfers has one for each that its passes need, unless in the same rank."""
    written = [action for action in actions if action.what not in _PASSES]
    needed = set(_transfers(stages, batches))
    if written and (set(written) != needed or len(written) != len(needed)):
        odd = min(set(written) ^ needed, default=written[0])
        why = f"{len(needed)} follow from its passes and {len(written)} are written, not {odd}"
        raise _bad("its transfers are not those of its passes", path, why)


def _needs(action: Action, stages: int) -> Iterator[Action]:
    stage, what, batch = action
    if what == "F":
        if stage:
            yield Action(stage - 1, "F", batch)
        return
    yield Action(stage, "I" if what == "W" else "F", batch)
    if what != "W" and stage < stages - 1:
        yield Action(stage + 1, "back", batch)


def _require_progress(rows: Sequence[Sequence[Action]], stages: int, path: Path) -> None:
    """Run the schedule, each rank as far as it comes, until all have ended or none can go on."""
    done: set[Action] = set()
    turns = [0] * len(rows)
    moved = True
    while moved:
        moved = False
        for number, row in enumerate(rows):
            while turns[number] < len(row) and done.issuperset(_needs(row[turns[number]], stages)):
                action = row[turns[number]]
                done.add(action)
                if action.what in "BI":
                    done.add(action._replace(what="back"))
                turns[number] += 1
                moved = True
    for number, row in enumerate(rows):
        if turns[number] < len(row):
            action = row[turns[number]]
            why = "what it needs comes after it, or waits for it in turn"
            raise _bad(f"{action} is never done", f"{path} row {number + 1}", why)
