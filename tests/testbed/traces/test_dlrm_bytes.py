"""A captured DLRM step, expanded: what leaves each node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scheduler.model.expansion import ExpansionOptions, expand, traffic_matrix
from testbed.traces import load_workload
from topologies import rails

if TYPE_CHECKING:
    from pathlib import Path


def test_dlrm_sends_35_244_664_bytes(shared: Path) -> None:
    """Ring all_reduce and direct all_to_all; from Kineto and ExecutionTrace alike."""
    matrices = []
    for name in ("kineto/dlrm8.kineto.tar.gz", "execution-trace/dlrm8.et.tar.gz"):
        workload = load_workload(shared / name)
        matrices.append(traffic_matrix(expand(workload, rails(nodes=8)).graph))
    first, second = matrices
    assert first.sum() == second.sum() == 35_244_664
    assert not np.diagonal(first).any()
    assert (first == second).all()


def test_all_reduce_algorithms_move_the_same_bytes(shared: Path) -> None:
    workload = load_workload(shared / "kineto/dlrm8.kineto.tar.gz")
    for algorithm in ("ring", "direct", "halving-doubling", "tree"):
        options = ExpansionOptions(collectives={"all_reduce": algorithm}, channels=2)
        graph = expand(workload, rails(nodes=8), options).graph
        assert traffic_matrix(graph).sum() == 35_244_664
