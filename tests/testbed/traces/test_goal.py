from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scheduler.model.workload import Collective, Compute, Workload
from testbed.traces import load_workload
from topologies.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path


def pairs(workload: Workload) -> list[Collective]:
    return [op for op in workload.operations if isinstance(op, Collective)]


@pytest.mark.parametrize(
    ("name", "ranks", "messages"),
    [
        ("lgs_schedule", 8, 7),
        ("lgs_binary_tree_16", 16, 15),
        ("lgs_binary_tree_32", 32, 31),
        ("lgs_dissemination_16", 16, 64),
        ("lgs_dissemination_32", 32, 160),
    ],
)
def test_generated_schedules(shared: Path, name: str, ranks: int, messages: int) -> None:
    workload = load_workload(shared / "goal" / f"{name}.goal")
    assert (workload.world, len(pairs(workload))) == (ranks, messages)
    assert not workload.losses


def test_a_tree_forwards_what_it_received(shared: Path) -> None:
    workload = load_workload(shared / "goal" / "lgs_schedule.goal")
    by_ends = {(op.root, op.peer): op for op in pairs(workload)}
    assert by_ends[1, 5].ranks[1].deps == (by_ends[0, 1].id,)
    assert by_ends[0, 4].ranks[0].deps == ()
    assert {op.ranks[op.root].in_bytes for op in pairs(workload) if op.root is not None} == {8}


TEXT = """// two ranks
num_ranks 2
rank 0 {
  a: calc 100 cpu 1   /* warm
  up */
  s: send 64b to 1 tag 7
  c: calc -5
  s requires late
  late: calc 30
  c irequires s
}
rank 1 { recv 64b from 0 tag 7 }
"""


def test_every_statement(tmp_path: Path) -> None:
    path = tmp_path / "x.goal"
    path.write_text(
        TEXT.replace("  s requires late\n", "").replace("}\nrank 1", "s requires late\n}\nrank 1")
    )
    workload = load_workload(path)
    (pair,) = pairs(workload)
    assert (pair.root, pair.peer, pair.tag) == (0, 1, 7)
    works = [op for op in workload.operations if isinstance(op, Compute)]
    assert sorted(op.dur_ns for op in works) == [0, 30, 100]
    last = next(op for op in works if op.dur_ns == 0)
    assert last.starts_after == (pair.id,)
    assert workload.losses[0].what == "negative calculations: taken as 0"
    late = next(op for op in works if op.dur_ns == 30)
    assert pair.ranks[0].deps == (late.id,)
    assert {op.stream == 0 for op in works if op.dur_ns == 100} == {False}


GOLDEN = {
    "undefined label": (
        "line 8: label 'late' is unknown, because it is not defined before: correct the line"
    ),
    "a million ranks": (
        "line 1: there are 1000000 ranks, because fluxbed counts from 1 to 262144 ranks: correct "
        "the line"
    ),
    "garbage": "line 4: 'jump 5' is not GOAL, because no statement looks like it: correct the line",
    "foreign peer": "line 4: the other rank is 2, because there are 2: correct the line",
    "no rank": "line 3: an operation stands alone, because it belongs to no rank: correct the line",
    "twice": "line 6: there is a rank 0, because it appears twice: correct the line",
    "unmatched": (
        ": rank 0 sends 1 messages to rank 1 in step 0, because rank 1 receives 0 from it: give "
        "the traces of the same steps of every rank, complete"
    ),
    "circle": (
        ": operation number 0 of rank 0 waits for itself, because what it requires requires it: "
        "correct the requires lines"
    ),
    "silent": (
        ": no message is sent, because the schedule holds calculations only: give one with send "
        "and recv"
    ),
}


def test_golden_sentences(tmp_path: Path) -> None:
    head = "num_ranks 2\n\nrank 0 {\n"
    texts = {
        "undefined label": TEXT,
        "a million ranks": "num_ranks 1000000\nrank 0 {\nsend 8b to 1\n}\n",
        "garbage": head + "jump 5\n}",
        "foreign peer": head + "send 1b to 2\n}",
        "no rank": "num_ranks 2\n\nsend 1b to 1\n",
        "twice": head + "send 1b to 1\n}\nrank 0 {\n}",
        "unmatched": head + "send 1b to 1\n}\nrank 1 {\n}",
        "circle": head + "a: send 1b to 1\nb: calc 1\na requires b\nb requires a\n}",
        "silent": head + "calc 1\n}",
    }
    said = {}
    for name, text in texts.items():
        path = tmp_path / "x.goal"
        path.write_text(text)
        with pytest.raises(InputError) as caught:
            load_workload(path)
        said[name] = str(caught.value).removeprefix(str(path)).strip()
    assert said == GOLDEN


def test_many_ranks_of_which_two_speak(tmp_path: Path) -> None:
    """Ranks that do nothing cost next to nothing: not each a list of all the others."""
    path = tmp_path / "wide.goal"
    path.write_text(
        "num_ranks 50000\nrank 0 {\na: send 8b to 1\n}\nrank 1 {\nb: recv 8b from 0\n}\n"
    )
    workload = load_workload(path)
    assert workload.world == 50_000
    assert len(workload.operations) == 1
