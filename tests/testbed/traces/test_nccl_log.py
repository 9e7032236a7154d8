from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from nccl_log_maker import log_of

from scheduler.model.workload import Collective
from testbed.traces import load_workload
from topologies.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from scheduler.model.workload import Workload


def check(workload: Workload) -> None:
    assert workload.world == 4
    assert workload.placement == {0: "node0", 1: "node0", 2: "node1", 3: "node1"}
    members = {name: group.ranks for name, group in workload.groups.items()}
    calls = [op for op in workload.operations if isinstance(op, Collective)]
    told = {(op.kind, members[op.group]): op for op in calls}
    everyone = (0, 1, 2, 3)
    reduce = told["all_reduce", everyone].ranks[1]
    assert (reduce.in_bytes, reduce.out_bytes) == (200, 200)
    gather = told["all_gather", everyone].ranks[1]
    assert (gather.in_bytes, gather.out_bytes) == (40, 160)
    for pair in ((0, 2), (1, 3)):
        scatter = told["reduce_scatter", pair].ranks[pair[1]]
        assert (scatter.in_bytes, scatter.out_bytes) == (32, 16)
    assert told["broadcast", everyone].root == 2
    exchange = told["all_to_all", everyone]
    assert exchange.splits == dict.fromkeys(range(4), (20, 24, 28, 32))
    assert exchange.ranks[3].out_bytes == 4 * 32
    one = told["send_recv", everyone]
    assert (one.root, one.peer, one.ranks[1].out_bytes) == (0, 1, 24)
    assert len(calls) == 7


def test_one_file_per_rank(tmp_path: Path) -> None:
    for rank in range(4):
        (tmp_path / f"{rank}.log").write_text("\n".join(log_of(rank)))
    check(load_workload(tmp_path))


def test_interleaved_and_torn_lines(tmp_path: Path) -> None:
    mixed = [
        line
        for lines in zip(*(log_of(rank)[:14] for rank in range(4)), strict=True)
        for line in lines
    ]
    mixed += [log_of(rank)[14] for rank in (0, 1)]
    mixed.insert(9, mixed[-1][:90])
    mixed.insert(2, "node1 says: hello")
    path = tmp_path / "job.log"
    path.write_text("\n".join(mixed))
    workload = load_workload(path)
    check(workload)
    counts = {loss.what: loss.count for loss in workload.losses}
    assert counts["torn lines"] == 1
    assert counts["files without compute"] == 4


def test_refusals(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("\n".join(log_of(0)[2:]))
    with pytest.raises(InputError) as caught:
        load_workload(path)
    assert str(caught.value) == (
        f"{path}: no communicator is recorded, because the log has no ncclCommInitRank lines: set "
        "NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,COLL from the start"
    )
    path.write_text("\n".join(log_of(0) + log_of(1)))
    with pytest.raises(InputError, match="ranks 2, 3 are missing, because the world has 4 ranks"):
        load_workload(path)
