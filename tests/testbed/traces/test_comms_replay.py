from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from scheduler.model.workload import Collective
from testbed.traces import load_workload
from topologies.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path


def test_the_dlrm_step_is_that_of_the_execution_trace(shared: Path) -> None:
    ours = load_workload(shared / "comms-replay")
    theirs = load_workload(shared / "execution-trace/dlrm8.et.tar.gz")
    pairs = [
        [op for op in workload.operations if isinstance(op, Collective)]
        for workload in (ours, theirs)
    ]
    assert len(pairs[0]) == 8
    for one, other in zip(*pairs, strict=True):
        assert (one.kind, one.splits) == (other.kind, other.splits)
        for rank in range(8):
            a, b = one.ranks[rank], other.ranks[rank]
            assert (a.in_bytes, a.out_bytes) == (b.in_bytes, b.out_bytes)
    assert ours.groups["0"].origin == "recorded"


def test_rows(tmp_path: Path) -> None:
    for rank in (0, 1):
        rows = [
            {"comms": "init", "pg_id": 0, "global_ranks": [0, 1], "world_size": 2},
            {"compute": "gemm", "count": 1},
            {"comms": "broadcast", "pg_id": 0, "req": 5, "root": 1, "in_msg_size": 3,
             "out_msg_size": 3, "dtype": "BFloat16"},
            {"comms": "wait", "req": 5},
            {"comms": "send" if rank == 0 else "recv", "pg_id": 0, "req": 6, "src_rank": 0,
             "dst_rank": 1, "in_msg_size": 2, "out_msg_size": 2, "dtype": "Int"},
            {"comms": "shuffle", "pg_id": 0, "req": 7},
        ]  # fmt: skip
        (tmp_path / f"trace.{rank}.json").write_text(json.dumps(rows))
    workload = load_workload(tmp_path)
    spread, pair = (op for op in workload.operations if isinstance(op, Collective))
    assert (spread.kind, spread.root, spread.ranks[0].in_bytes) == ("broadcast", 1, 6)
    assert (pair.root, pair.peer, pair.ranks[1].out_bytes) == (0, 1, 8)
    assert pair.ranks[0].deps == (spread.id,)
    assert {loss.what: loss.count for loss in workload.losses} == {
        "computations without a duration": 2,
        "ranks taken from the file's name": 2,
        "rows of unknown operation": 2,
    }
    (tmp_path / "trace.0.json").write_text('[{"comms": 3}]')
    with pytest.raises(InputError, match="this is not a comms-replay trace"):
        load_workload(tmp_path)


def test_a_negative_size(tmp_path: Path) -> None:
    """It fits no table of who sends how much to whom: refused at once."""
    for rank in (0, 1):
        rows = [
            {"comms": "init", "pg_id": 0, "global_ranks": [0, 1], "world_size": 2},
            {"comms": "all_to_allv", "pg_id": 0, "req": 5, "in_msg_size": 8, "dtype": "Int",
             "out_msg_size": 8 + (1 - 2 * rank) * 10**12},
        ]  # fmt: skip
        (tmp_path / f"trace.{rank}.json").write_text(json.dumps(rows))
    with pytest.raises(InputError) as caught:
        load_workload(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}/trace.1.json: rank 1 moves -3999999999968 bytes in its all_to_all, because a "
        "size is at least 0: correct the trace, or record it again"
    )
