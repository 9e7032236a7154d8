"""GOAL text: parsed by hand, it moves the same bytes and takes the same time."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from scheduler.model.expansion import ExpansionOptions, expand, traffic_matrix
from scheduler.model.taskgraph import COMPUTE
from scheduler.model.workload import Collective, Group, Participation, Source, Workload
from testbed.synth import synth
from testbed.traces.export_goal import export_goal
from topologies import UsageError, rails

if TYPE_CHECKING:
    from pathlib import Path

TOY = {"layers": 2, "hidden": 512, "ffn": 2048, "heads": 8, "vocab": 1000}
LINE = re.compile(
    r"(l\d+): (?:(send|recv) (\d+)b (?:to|from) (\d+) tag (\d+)|calc (\d+) cpu (\d+))"
)


class Goal:
    """A parsed file: one task per calc, and one per matched send and receive."""

    def __init__(self, text: str) -> None:
        first, *blocks = text.split("\nrank ")
        self.ranks = int(first.split()[1])
        assert first.split()[0] == "num_ranks"
        assert len(blocks) == self.ranks
        self.length: dict[Any, int] = {}
        self.after: dict[Any, set[Any]] = defaultdict(set)
        self.matrix = np.zeros((self.ranks, self.ranks), np.int64)
        ends: dict[str, dict[Any, int]] = {"send": {}, "recv": {}}
        for number, block in enumerate(blocks):
            head, *lines = block.strip().splitlines()
            assert head == f"{number} {{"
            assert lines.pop() == "}"
            known: dict[str, Any] = {}
            for line in lines:
                if match := LINE.fullmatch(line):
                    label, way, size, peer, tag, dur_ns, _ = match.groups()
                    assert label not in known
                    if way is None:
                        task: Any = (number, label)
                        self.length[task] = int(dur_ns)
                    else:
                        pair = (number, int(peer)) if way == "send" else (int(peer), number)
                        task = (*pair, int(tag))
                        assert task not in ends[way]
                        ends[way][task] = int(size)
                        self.length[task] = int(size)
                    known[label] = task
                else:
                    then, word, before = line.split()
                    assert word == "requires"
                    self.after[known[before]].add(known[then])  # labels are defined before
        assert ends["send"] == ends["recv"]
        for (source, target, _), size in ends["send"].items():
            self.matrix[source, target] += size

    def longest_ns(self) -> int:
        missing: dict[Any, int] = defaultdict(int)
        for later in self.after.values():
            for task in later:
                missing[task] += 1
        front = [task for task in self.length if not missing[task]]
        end = dict(self.length)
        for task in front:
            for later in self.after[task]:
                end[later] = max(end[later], end[task] + self.length[later])
                missing[later] -= 1
                if not missing[later]:
                    front.append(later)
        assert len(front) == len(self.length)
        return max(end.values())


def model_ns(graph: Any) -> int:
    pointers, listed, _ = graph.successors(1)
    end = np.zeros(graph.tasks, np.int64)
    for task in graph.topological_order():
        end[task] += graph.dur_ns[task] + graph.size_bytes[task]
        for after in listed[pointers[task] : pointers[task + 1]]:
            end[after] = max(end[after], end[task])
    return int(end.max())


@pytest.mark.parametrize(
    ("grid", "algorithm"),
    [
        ({"tp": 2, "dp": 2}, "ring"),
        ({"tp": 4, "zero": 1}, "direct"),
        ({"dp": 4, "zero": 3}, "ring"),
        ({"pp": 2, "tp": 2, "micro_batches": 2}, "halving-doubling"),
        ({"dp": 4}, "tree"),
    ],
)
def test_a_step_moves_the_same_bytes_and_takes_the_same_time(
    tmp_path: Path, grid: dict[str, Any], algorithm: str
) -> None:
    workload = synth(TOY, seq=64, mfu=0.5, **grid)
    options = ExpansionOptions(collectives={"all_reduce": algorithm}, channels=2)
    expansion = expand(workload, rails(nodes=workload.world), options)
    path = tmp_path / "step.goal"
    assert export_goal(expansion, path) == 0
    goal = Goal(path.read_text())
    graph = expansion.graph
    assert goal.matrix.tolist() == traffic_matrix(graph).tolist()
    computed = sum(length for task, length in goal.length.items() if isinstance(task[1], str))
    assert computed == graph.dur_ns[graph.kind == COMPUTE].sum()
    assert goal.longest_ns() == model_ns(graph)


def only(kind: str, size: int | None, n: int) -> Workload:
    part = Participation(in_bytes=size, out_bytes=size, stream=0)
    op = Collective(id=0, kind=kind, group="g", ranks=dict.fromkeys(range(n), part), iter=0)
    return Workload(
        world=n, groups={"g": Group(ranks=tuple(range(n)))}, operations=(op,),
        source=Source(path="made", sha256=None, format="test"),
    )  # fmt: skip


def test_waiting_without_data_is_a_token(tmp_path: Path) -> None:
    path = tmp_path / "barrier.goal"
    assert export_goal(expand(only("barrier", None, 4), rails(nodes=4)), path) == 6
    goal = Goal(path.read_text())
    assert goal.matrix.sum() == 6
    assert goal.longest_ns() == 2  # to the gate and back


def test_servers_gather_by_tokens(tmp_path: Path) -> None:
    options = ExpansionOptions(collectives={"all_reduce": "hierarchical:2"})
    expansion = expand(only("all_reduce", 4000, 4), rails(nodes=4), options)
    tokens = export_goal(expansion, tmp_path / "a.goal")
    goal = Goal((tmp_path / "a.goal").read_text())
    assert goal.matrix.sum() == traffic_matrix(expansion.graph).sum() + tokens
    assert goal.longest_ns() >= model_ns(expansion.graph)


def test_ranks_of_one_node_are_one_goal_rank(tmp_path: Path) -> None:
    expansion = expand(only("all_reduce", 4000, 4), rails(nodes=2), rank_to_node=(0, 0, 1, 1))
    assert export_goal(expansion, tmp_path / "a.goal") == 0
    goal = Goal((tmp_path / "a.goal").read_text())
    assert goal.matrix.tolist() == traffic_matrix(expansion.graph).tolist()


def test_golden(tmp_path: Path) -> None:
    part = Participation(in_bytes=9, out_bytes=9, stream=0)
    op = Collective(
        id=0, kind="send_recv", group="g", ranks={0: part, 1: part}, iter=0, root=0, peer=1
    )
    source = Source(path="made", sha256=None, format="test")
    workload = Workload(world=2, groups={"g": Group(ranks=(0, 1))}, operations=(op,), source=source)
    export_goal(expand(workload, rails(nodes=2)), tmp_path / "a.goal")
    assert (tmp_path / "a.goal").read_text() == (
        "num_ranks 2\n"
        "\nrank 0 {\nl0: calc 0 cpu 0\nl2: send 9b to 1 tag 2\nl3: calc 0 cpu 0\n"
        "l3 requires l0\nl2 requires l0\nl3 requires l2\n}\n"
        "\nrank 1 {\nl1: calc 0 cpu 0\nl2: recv 9b from 0 tag 2\nl4: calc 0 cpu 0\n"
        "l4 requires l1\nl2 requires l1\nl4 requires l2\n}\n"
    )


def test_an_unwritable_place_is_one_sentence(tmp_path: Path) -> None:
    expansion = expand(only("barrier", None, 2), rails(nodes=2))
    with pytest.raises(UsageError, match="the file cannot be written"):
        export_goal(expansion, tmp_path / "absent" / "a.goal")
