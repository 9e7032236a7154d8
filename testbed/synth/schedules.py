"""Pipeline schedules: in which order a stage does its passes over micro-batches.

A pass is (phase, micro_batch, chunk): F forward, B backward, W weight gradients where they are a
pass of their own. `chunk` is which of its model chunks a stage works on.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from testbed.synth.schedule_file import read_schedule
from topologies.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["SCHEDULES", "Pass", "dimensions_of", "passes_of"]


class Pass(NamedTuple):
    """One pass of a stage over one micro-batch."""

    phase: str
    micro_batch: int
    chunk: int


def _one_forward_one_backward(stage: int, stages: int, batches: int, chunks: int) -> list[Pass]:
    """1F1B with a flush: warm up, alternate, drain (Narayanan et al., arXiv 2104.04473, §2.2.1).

    Interleaved over `chunks` model chunks as §2.2.2: micro-batches go round the chunks in groups
    of `stages`.
    """
    total = batches * chunks
    if chunks == 1:
        warm = min(stages - stage - 1, total)
    else:
        warm = min((stages - stage - 1) * 2 + (chunks - 1) * stages, total)

    def visit(turn: int, *, backward: bool) -> Pass:
        group, place = divmod(turn, stages * chunks)
        chunk, within = divmod(place, stages)
        micro_batch = group * stages + within
        if chunks == 1:
            chunk, micro_batch = 0, turn
        return Pass(
            "B" if backward else "F", micro_batch, chunks - 1 - chunk if backward else chunk
        )

    order = [visit(turn, backward=False) for turn in range(warm)]
    for turn in range(total - warm):
        order += [visit(warm + turn, backward=False), visit(turn, backward=True)]
    return order + [visit(turn, backward=True) for turn in range(total - warm, total)]


def _zero_bubble(stage: int, stages: int, batches: int, chunks: int) -> list[Pass]:
    """ZB-H1: 1F1B whose weight gradients wait as long as 1F1B's memory allows.

    W of micro-batch j follows B of j + stage, so every stage holds as many activations as the
    first does in 1F1B (Qi et al., arXiv 2401.10241, §2.2).
    """
    order: list[Pass] = []
    for step in _one_forward_one_backward(stage, stages, batches, chunks):
        order.append(step)
        if step.phase == "B" and step.micro_batch >= stage:
            order.append(Pass("W", step.micro_batch - stage, 0))
    return order + [Pass("W", j, 0) for j in range(max(batches - stage, 0), batches)]


SCHEDULES: Final[Mapping[str, Callable[[int, int, int, int], list[Pass]]]] = {
    "1f1b": _one_forward_one_backward,
    "interleaved": _one_forward_one_backward,
    "zero-bubble": _zero_bubble,
}


def dimensions_of(name: str) -> dict[str, int]:
    """Return the `pp`, `virtual_stages` and `micro_batches` that a schedule in a file has.

    Empty for a schedule known by name; raises `InputError` as `read_schedule`.
    """
    if not _is_file(name):
        return {}
    rows = read_schedule(Path(name))
    passes = [action for row in rows for action in row]
    stages = 1 + max(action.stage for action in passes)
    return {
        "pp": len(rows),
        "virtual_stages": -(-stages // len(rows)),
        "micro_batches": 1 + max(action.micro_batch for action in passes),
    }


def _is_file(name: str) -> bool:
    return name.endswith(".csv")


def _passes_in(name: str, stages: int, batches: int, chunks: int) -> list[list[Pass]]:
    """Read the passes of a file; raises `UsageError` when it is of other dimensions."""
    for (key, ours), theirs in zip(
        dimensions_of(name).items(), (stages, chunks, batches), strict=True
    ):
        if ours != theirs:
            why = f"the schedule has {ours}"
            raise UsageError(f"{key} is {theirs}", name, why, f"leave {key} out, or correct it")
    rows = read_schedule(Path(name))
    if sum(action.what == "F" for row in rows for action in row) != stages * chunks * batches:
        why = f"not every rank has {chunks} stages"
        raise UsageError("the schedule is uneven", name, why, "give every row as many stages")
    return [
        [Pass("B" if a.what == "I" else a.what, a.micro_batch, a.stage // stages) for a in row]
        for row in rows
    ]


def passes_of(name: str, stages: int, batches: int, chunks: int) -> list[list[Pass]]:
    """Return each stage's passes in order; `name` may be a `.csv` file (`schedule_file`).

    Raises `UsageError` for a schedule that does not fit, `InputError` for a file that is none.

    >>> [f"{p.phase}{p.micro_batch}" for p in passes_of("1f1b", 2, 3, 1)[0]]
    ['F0', 'F1', 'B0', 'F2', 'B1', 'B2']
    """
    if _is_file(name):
        return _passes_in(name, stages, batches, chunks)
    if name not in SCHEDULES:
        why = f"the schedules are {', '.join(SCHEDULES)}, or a .csv file"
        raise UsageError(f"there is no schedule {name!r}", "synth", why, "choose one of them")
    if name == "interleaved":
        if chunks < 2 or stages < 2 or batches % stages:  # noqa: PLR2004 (it interleaves two)
            raise UsageError(
                f"{batches} micro-batches of {chunks} chunks go through {stages} stages",
                "interleaved",
                "micro-batches go round at least two chunks and stages in groups of pp",
                "use virtual_stages=2 or more, and a multiple of pp for micro_batches",
            )
    elif chunks > 1:
        why = "only the interleaved schedule has several chunks per stage"
        raise UsageError(f"virtual_stages is {chunks}", name, why, "use schedule interleaved")
    return [SCHEDULES[name](stage, stages, batches, chunks) for stage in range(stages)]
