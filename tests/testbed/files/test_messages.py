"""The messages and dependencies on disk say what the graph says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest

from scheduler.model.expansion import ExpansionOptions, expand
from scheduler.model.workload import Collective, Compute, Group, Participation, Source, Workload
from testbed.files.messages import deps_path, write_messages
from topologies import UsageError, rails

if TYPE_CHECKING:
    from pathlib import Path

    from scheduler.model.expansion import Expansion


@pytest.fixture
def expansion() -> Expansion:
    parts = {r: Participation(in_bytes=90, out_bytes=90, stream=1, deps=(r,)) for r in range(3)}
    operations = (
        *(Compute(id=r, rank=r, stream=0, dur_ns=10, iter=0) for r in range(3)),
        Collective(id=7, kind="all_reduce", group="g", ranks=parts, iter=0),
    )
    workload = Workload(
        world=3,
        groups={"g": Group(ranks=(0, 1, 2))},
        operations=operations,
        source=Source(path="made", sha256=None, format="test"),
    )
    return expand(workload, rails(nodes=3), ExpansionOptions(channels=2))


def test_messages_and_deps_round_trip(expansion: Expansion, tmp_path: Path) -> None:
    path = tmp_path / "messages.parquet"
    beside = write_messages(expansion, path)
    graph = expansion.graph
    messages, deps = pl.read_parquet(path), pl.read_parquet(beside)
    assert beside == tmp_path / "deps.parquet"
    assert messages.columns == ["message", "op", "step", "group", "src", "dst", "bytes"]
    assert messages["message"].to_list() == graph.messages.tolist()
    assert messages["bytes"].sum() == 2 * 2 * 90
    assert set(messages["op"]) == {7}
    assert deps["task"].to_list() == graph.arcs.after.tolist()
    assert deps["after"].to_list() == graph.arcs.before.tolist()
    assert deps.filter(pl.col("origin") == "recorded").select(
        "task_kind", "after_kind", "after_rank", "after_op"
    ).rows() == [("marker", "compute", r, r) for r in range(3)]
    wraps = deps.filter(pl.col("distance") == 1)
    assert set(wraps["origin"]) == {"iteration"}
    ends = deps.filter(pl.col("after_kind") == "message")
    assert ends["after_rank"].null_count() == len(ends) > 0
    assert np.array_equal(
        np.sort(ends["after"].unique().to_numpy()), graph.messages
    )  # every message is waited for


def test_metadata_identifies_the_messages(expansion: Expansion, tmp_path: Path) -> None:
    write_messages(expansion, tmp_path / "m.parquet")
    for path in (tmp_path / "m.parquet", deps_path(tmp_path / "m.parquet")):
        metadata = pl.read_parquet_metadata(path)
        assert metadata["format"] == "fluxbed-messages"
        assert metadata["messages_sha256"] == expansion.sha256


def test_an_unwritable_place_is_one_sentence(expansion: Expansion, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the file cannot be written, because no such file"):
        write_messages(expansion, tmp_path / "absent" / "messages.parquet")
