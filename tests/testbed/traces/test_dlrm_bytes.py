"""A captured DLRM step, expanded: what leaves each node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scheduler.model.expansion import ExpansionOptions, expand, traffic_matrix
from testbed.traces import load_workload
from topologies import rails

if TYPE_CHECKING:
    from pathlib import Path


THREE = {
    "kineto": "kineto/dlrm8.kineto.tar.gz",
    "execution-trace": "execution-trace/dlrm8.et.tar.gz",
    "comms-replay": "comms-replay/*.json",
}


def test_three_captures_of_one_step_give_one_matrix(shared: Path) -> None:
    """Ring all_reduce and direct all_to_all: 35,244,664 bytes leave the nodes."""
    matrices = {}
    for form, pattern in THREE.items():
        workload = load_workload(sorted(shared.glob(pattern)))
        assert workload.source.format == form
        matrices[form] = traffic_matrix(expand(workload, rails(nodes=8)).graph)
    first = matrices["kineto"]
    assert first.sum() == 35_244_664
    assert not np.diagonal(first).any()
    for form, matrix in matrices.items():
        assert (matrix == first).all(), form


def test_all_reduce_algorithms_move_the_same_bytes(shared: Path) -> None:
    workload = load_workload(shared / "kineto/dlrm8.kineto.tar.gz")
    for algorithm in ("ring", "direct", "halving-doubling", "tree"):
        options = ExpansionOptions(collectives={"all_reduce": algorithm}, channels=2)
        graph = expand(workload, rails(nodes=8), options).graph
        assert traffic_matrix(graph).sum() == 35_244_664
