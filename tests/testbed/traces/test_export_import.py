"""What is exported is imported again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.model.expansion import ExpansionOptions, expand, traffic_matrix
from testbed.synth import synth
from testbed.traces import load_workload
from testbed.traces.export_chakra import export_chakra
from testbed.traces.export_goal import export_goal
from topologies import rails

if TYPE_CHECKING:
    from pathlib import Path

    from scheduler.model.workload import Workload

MIX = {
    "layers": 2, "hidden": 512, "ffn": 2048, "heads": 8, "vocab": 1000, "experts": 8,
    "experts_per_token": 2,
}  # fmt: skip


def step() -> Workload:
    return synth(MIX, tp=2, dp=2, ep=2, pp=2, seq=256, expert_skew=0.5, zero=1)


def test_a_chakra_export_loads_as_the_same_workload(tmp_path: Path) -> None:
    workload = step()
    export_chakra(workload, tmp_path / "step")
    assert load_workload(tmp_path / "step") == workload


def test_the_bundled_capture_survives_chakra(bundled: Path, tmp_path: Path) -> None:
    workload = load_workload(bundled)
    export_chakra(workload, tmp_path / "step")
    assert load_workload(tmp_path / "step") == workload


def test_a_goal_export_loads_with_the_same_bytes(tmp_path: Path) -> None:
    options = ExpansionOptions(collectives={"all_reduce": "direct"}, channels=2)
    expansion = expand(step(), rails(nodes=8), options)
    export_goal(expansion, tmp_path / "step.goal")
    again = expand(load_workload(tmp_path / "step.goal"), rails(nodes=8)).graph
    assert traffic_matrix(again).tolist() == traffic_matrix(expansion.graph).tolist()
    assert len(again.messages) == len(expansion.graph.messages)
