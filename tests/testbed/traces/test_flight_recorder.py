from __future__ import annotations

import gzip
import json
import pickle
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from scheduler.model.workload import Collective, Workload
from testbed.traces import load_workload
from topologies.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path


def dumps(shared: Path) -> list[dict[str, Any]]:
    files = sorted((shared / "captured-gloo-4rank").glob("fr_rank*.json.gz"))
    return [json.loads(gzip.decompress(file.read_bytes())) for file in files]


def counted(workload: Workload) -> Counter[tuple[str, tuple[int, ...], int | None]]:
    members = {name: group.ranks for name, group in workload.groups.items()}
    return Counter(
        (op.kind, members[op.group], op.ranks[min(op.ranks)].in_bytes)
        for op in workload.operations
        if isinstance(op, Collective)
    )


def test_captured_gloo(shared: Path) -> None:
    workload = load_workload(sorted((shared / "captured-gloo-4rank").glob("fr_*")))
    count = counted(workload)
    for pair in ((0, 1), (2, 3)):
        assert count["all_reduce", pair, 131072] == 2 * 5
    for pair in ((0, 2), (1, 3)):
        assert count["all_reduce", pair, 524288] == 3 * 5  # one of three is a reduce_scatter
        assert count["all_gather", pair, 262144] == 5
    assert count["all_to_all", (0, 1, 2, 3), 131072] == 2 * 5
    assert count["barrier", (0, 1, 2, 3), None] == 5
    assert {group.origin for group in workload.groups.values()} == {"inferred"}


def test_a_ring_buffer_keeps_what_all_have(shared: Path, tmp_path: Path) -> None:
    whole = dumps(shared)
    whole[2]["entries"] = whole[2]["entries"][15:]  # its first of five iterations is gone
    for rank, dump in enumerate(whole):
        (tmp_path / f"r{rank}.pkl").write_bytes(pickle.dumps(dump))
    workload = load_workload(tmp_path)
    count = counted(workload)
    assert count["barrier", (0, 1, 2, 3), None] in (3, 4)
    assert count["all_reduce", (0, 1), 131072] == 10  # rank 2 is not in it
    lost = [loss for loss in workload.losses if "ring buffer lost" in loss.what]
    assert lost[0].count > 10


class Intruder:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return print, ("entries",)


def test_pickles_that_name_classes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "r0.pkl"
    said = []
    for content in (
        pickle.dumps({"entries": Intruder()}),
        pickle.dumps({"entries": [1] * 99})[:40],
    ):
        path.write_bytes(content)
        with pytest.raises(InputError) as caught:
            load_workload(path)
        said.append(str(caught.value).removeprefix(f"{path}: this is not a flight-recorder dump, "))
    assert said == [
        "because it names builtins.print: dump it again, as JSON",
        "because pickle exhausted before seeing STOP: dump it again, as JSON",
    ]
    path.write_bytes(b'{"entries": [{"profiling_name": 3}]}')
    with pytest.raises(InputError, match="this is not a flight-recorder dump, because expected"):
        load_workload(path)
