from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import polars as pl
import pytest

from testbed.files.codec import write_chunks
from testbed.files.manifest import manifest_schema
from testbed.files.rundir import (
    RunDirectory,
    directory_name,
    find_runs,
    read_run,
    record_file,
)
from testbed.files.summary import summary_schema
from testbed.files.tables import COLUMNS, read_table
from topologies import InputError, StalledError, UsageError

SCHEMAS = Path(__file__).parents[3] / "docs" / "schemas"
DESIGN = {
    "tasks": "task base kind iteration op rank stream position src dst bytes dur_ns ready_ns "
    "inject_ns start_ns end_ns status",
    "deps": "task after on origin",
    "transfers": "transfer task hop from_node to_node plane circuit bytes start_ns end_ns "
    "wall_bytes_sent wall_bytes_received frames_sent frames_received frames_dark frames_resent",
    "circuits": "circuit plane src_port dst_port src dst request_ns dark_ns up_ns down_ns "
    "planned_up_ns cause",
    "nic": "node injection origin peak_bytes transit_peak_bytes reorder_peak_bytes peak_ns",
    "queues": "node dst t_ns bytes",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, make_run: Any) -> Path:
    return Path(make_run(tmp_path_factory.mktemp("home") / "deep" / "run", "in-order"))


def test_every_file_is_there_with_its_hash(run: Path) -> None:
    names = {path.name for path in run.iterdir()}
    assert names == {f"{table}.parquet" for table in COLUMNS} | {
        "manifest.json", "plan.json", "summary.json", "timeline.json", "workload.jsonl",
    }  # fmt: skip
    manifest = read_run(run).manifest
    assert manifest.status == "ok"
    assert manifest.files.keys() == names - {"manifest.json"}
    for name, digest in manifest.files.items():
        assert hashlib.sha256((run / name).read_bytes()).hexdigest() == digest


def test_tables_have_the_columns_of_the_format(run: Path) -> None:
    for table, columns in DESIGN.items():
        frame = pl.read_parquet(run / f"{table}.parquet")
        assert frame.columns == columns.split()
        assert set(frame.dtypes) <= {pl.Int64, pl.String}
        assert len(frame) > 0
    tasks = pl.read_parquet(run / "tasks.parquet")
    assert tasks.filter(kind="message")["rank"].null_count() == len(tasks.filter(kind="message"))
    assert -1 not in tasks["op"].to_list()
    transfers = pl.read_parquet(run / "transfers.parquet")
    assert transfers["frames_sent"].null_count() == len(transfers)
    moved = transfers.group_by("task").agg(pl.col("bytes").sum().alias("moved"))
    joined = tasks.filter(kind="message").join(moved, on="task")
    assert (joined["bytes"] == joined["moved"]).all()
    circuits = pl.read_parquet(run / "circuits.parquet")
    assert circuits.filter(pl.col("request_ns").is_null())["up_ns"].to_list() == [0, 0]


def test_what_was_written_is_read_back(run: Path) -> None:
    read = read_run(run)
    timeline = read.timeline()
    assert timeline.iterations == 3
    assert timeline.iteration_ns(1) == read.summary.iteration_ns
    assert read.expansion().sha256 == read.plan().expansion_sha256
    assert read.fabric().name == read.manifest.topology
    assert read.workload().world == 4
    assert np.array_equal(read.tables()["tasks"]["end_ns"], timeline.end_ns)


def test_documents_follow_their_schemas(run: Path) -> None:
    for name, schema in (("manifest", manifest_schema()), ("summary", summary_schema())):
        jsonschema.validate(json.loads((run / f"{name}.json").read_bytes()), json.loads(schema))
        assert (SCHEMAS / f"{name}.schema.json").read_bytes() == schema


def test_the_trace_holds_every_interval_once(run: Path) -> None:
    trace = json.loads((run / "timeline.json").read_bytes())
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    tasks = pl.read_parquet(run / "tasks.parquet")
    circuits = pl.read_parquet(run / "circuits.parquet")
    made = len(circuits) - circuits["request_ns"].null_count()
    computations = len(tasks.filter(kind="compute"))
    transfers = len(pl.read_parquet(run / "transfers.parquet"))
    assert len(spans) == computations + transfers + len(circuits) + made
    assert trace["otherData"]["complete"]
    first = next(event for event in spans if event["name"].startswith("compute"))
    assert first["dur"] == tasks.filter(kind="compute")["dur_ns"][0] / 1000
    names = {event["args"]["name"] for event in trace["traceEvents"] if event["ph"] == "M"}
    assert {"rank 0 (node 0)", "plane 1 (ocs)", "port 3 (node 3)", "sends on plane 0"} <= names


def arguments(run: Path) -> dict[str, Any]:
    read = read_run(run)
    return {
        "scheduler": "flux,budget=1s",
        "plan": read.plan(),
        "workload": read.workload(),
        "expansion": read.expansion(),
        "origin": "simulated",
        "iterations": 3,
        "skip": 1,
    }


def test_nothing_is_overwritten(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        RunDirectory.create(run, **arguments(run))
    assert refused.value.exit_code == 2
    assert "the directory is not empty, because a run never overwrites" in str(refused.value)
    RunDirectory.create(tmp_path, **arguments(run))
    assert (tmp_path / "manifest.json").is_file()


def test_the_default_name_says_when_and_what(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = [RunDirectory.create(None, **arguments(run)).path for _ in range(3)]
    assert len({path.name for path in made}) == 3
    for path in made:
        assert path.parent == Path("runs")
        when, rest = path.name.split("-", 1)
        assert len(when) == len("20260101T000000Z")
        assert rest.startswith("flux-budget-1s-")
    assert find_runs("runs") == sorted(made)


def test_a_place_that_cannot_be_written(run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot be written, because .* choose another directory"):
        RunDirectory.create(tmp_path / "file" / "run", **arguments(run))


def test_a_full_disk_leaves_nothing_half_written(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = RunDirectory.create(tmp_path / "run", **arguments(run))
    before = {path.name: path.read_bytes() for path in made.path.iterdir()}
    whole = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        whole(path, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UsageError, match="cannot be written, because no space left on device"):
        made.write_file("plan.json", b"another")
    monkeypatch.setattr(
        "testbed.files.rundir.write_table",
        lambda *_: write_chunks(tmp_path / "none" / "nic.parquet", [b"table"]),
    )
    with pytest.raises(UsageError, match=r"nic.parquet: the file cannot be written.* make room"):
        made.write_results(read_run(run).timeline())
    assert {path.name: path.read_bytes() for path in made.path.iterdir()} == before


@pytest.mark.parametrize(
    ("error", "status", "exit_code"),
    [
        (KeyboardInterrupt(), "interrupted", 130),
        (
            StalledError("message 3 waits", "rank 1", "no circuit 0 to 1 will come", "x"),
            "stalled",
            6,
        ),
        (InputError("what", "where", "why", "fix"), "failed", 5),
        (ZeroDivisionError("oh"), "failed", 1),
    ],
)
def test_a_run_that_ends_badly_says_so(
    run: Path, tmp_path: Path, error: BaseException, status: str, exit_code: int
) -> None:
    def fail() -> None:
        with RunDirectory.create(tmp_path / "bad", **arguments(run)):
            raise error

    with pytest.raises(type(error)):
        fail()
    read = read_run(tmp_path / "bad")
    assert read.manifest.status == read.summary.status == status
    assert read.manifest.error is not None
    assert read.manifest.error.exit == exit_code
    assert read.summary.iteration_ns is None
    assert read.plan().scheduler.name == "in-order"


def test_a_killed_run_is_interrupted(run: Path, tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "killed", **arguments(run))
    read = read_run(tmp_path / "killed")
    assert read.manifest.status == read.summary.status == "interrupted"


def test_files_belong_to_who_called_sudo(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[Path, tuple[int, int]] = {}
    monkeypatch.setenv("SUDO_UID", "1234")
    monkeypatch.setenv("SUDO_GID", "99")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "chown", lambda p, u, g: given.__setitem__(p, (u, g)))
    with RunDirectory.create(tmp_path / "a" / "b", **arguments(run)) as made:
        made.write_results(read_run(run).timeline())
    assert set(given.values()) == {(1234, 99)}
    assert given.keys() == {tmp_path / "a", tmp_path / "a" / "b", *made.path.iterdir()}


def test_what_is_no_run_is_refused(tmp_path: Path, run: Path) -> None:
    with pytest.raises(InputError, match="this is not a run directory, because it has no"):
        read_run(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(InputError, match="not a fluxbed-run manifest, version 1, because the JSON"):
        read_run(tmp_path)
    with pytest.raises(InputError, match="the table cannot be read"):
        read_table("nic", run / "summary.json")
    with pytest.raises(InputError, match="this is not the table nic, because its columns are"):
        read_table("nic", run / "deps.parquet")


def test_a_file_added_later_gets_its_hash(tmp_path: Path, make_run: Any) -> None:
    path = make_run(tmp_path / "run", "in-order")
    record_file(path, "report.html", b"hello")
    assert read_run(path).manifest.files["report.html"] == hashlib.sha256(b"hello").hexdigest()


def test_names_of_schedulers_become_names_of_directories() -> None:
    assert directory_name("../x y/my.py:F,a=1") == "x-y-my.py-F-a-1"
    assert directory_name("///") == "scheduler"
