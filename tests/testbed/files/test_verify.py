from __future__ import annotations

import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest

from scheduler.check_run import check_run
from scheduler.model.program import Entry, OrderedProgram
from scheduler.model.timeline import NONE
from testbed.files import verify
from testbed.files.rundir import read_run, record_file
from testbed.files.tables import COLUMNS, timeline_of
from testbed.files.verify import check_run_directory

if TYPE_CHECKING:
    from pathlib import Path

    from scheduler.check_run import Record

BASE = "rails,planes=2,rate=400Gbps,delay=2us"
FABRICS = {
    "plain": f"{BASE},latency=300ns,control=100ns",
    "duplex": f"{BASE},duplex=yes",
    "all-stop": f"{BASE},all_stop=yes",
    "slow-news": f"{BASE},notify=700ns",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, make_run: Any) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("runs")
    return {kind: make_run(home / kind, kind) for kind in ("in-order", "rotating")}


@pytest.fixture(scope="module")
def records(runs: dict[str, Path]) -> dict[str, Record]:
    return {kind: record_of(path) for kind, path in runs.items()}


@pytest.mark.parametrize("fabric", FABRICS)
def test_runs_of_every_kind_of_fabric_pass(tmp_path: Path, make_run: Any, fabric: str) -> None:
    assert check_run_directory(make_run(tmp_path / "run", "in-order", FABRICS[fabric])) == []


@pytest.mark.parametrize("fabric", ["plain", "all-stop"])
def test_timed_runs_pass(tmp_path: Path, make_run: Any, fabric: str) -> None:
    assert check_run_directory(make_run(tmp_path / "run", "rotating", FABRICS[fabric])) == []


def record_of(path: Path) -> Record:
    return verify._record(read_run(path))


def changed(record: Record, table: str, column: str, row: int, value: Any) -> Record:
    tables = {name: dict(columns) for name, columns in record.tables.items()}
    values = tables[table][column].copy()
    if values.dtype.kind == "U":
        values = values.astype("U32")
    values[row] = value
    tables[table][column] = values
    timeline = timeline_of(
        tables, record.timeline.iterations, record.timeline.measures, origin="simulated"
    )
    return replace(record, tables=tables, timeline=timeline)


ALL_COLUMNS = [(table, column) for table, columns in COLUMNS.items() for column in columns]


@pytest.mark.parametrize("kind", ["in-order", "rotating"])
@pytest.mark.parametrize(("table", "column"), ALL_COLUMNS)
def test_every_column_is_held_against_the_others(
    records: dict[str, Record], kind: str, table: str, column: str
) -> None:
    record = records[kind]
    values = record.tables[table][column]
    row = len(column) * 37 % len(values)  # any row, and not always the same
    old = values[row]
    changes: list[Any] = ["nonsense"]
    if values.dtype.kind != "U":
        changes = [int(old) + 1, -1 if old != -1 else 5]
    for value in changes:
        violations = check_run(changed(record, table, column, row, value))
        assert violations, f"{table}.{column}[{row}]: {old} -> {value} went unnoticed"


@pytest.mark.parametrize("kind", ["in-order", "rotating"])
def test_every_number_of_the_summary_is_worked_out_again(runs: dict[str, Path], kind: str) -> None:
    record = record_of(runs[kind])
    told = {"scheduler", "drops", "replanning"}  # no table of the run says more of them
    predicted = {"predicted_iteration_ns", "predicted_ideal_iteration_ns"}
    sentences = {"remarks"}
    for name in record.summary.keys() - told - predicted - sentences:
        value = record.summary[name]
        other: Any = value + 1 if isinstance(value, int | float) else "nonsense"
        if isinstance(value, dict):
            other = {"p50": 1.0, "p99": 2.0}
        summary = {**record.summary, name: other}
        found = check_run(replace(record, summary=summary))
        assert [v.where for v in found] == [f"summary {name}"]


def dropping(record: Record, row: int, **known: Any) -> list[str]:
    """Check a run with frames, of whose transfer `row` one was dropped in the dark."""
    moved = record.timeline.transfers
    one, none = np.ones(len(moved.task), np.int64), np.zeros(len(moved.task), np.int64)
    hit = none.copy()
    hit[row] = 1
    timeline = replace(
        record.timeline,
        origin="emulated",
        transfers=replace(
            moved, wall_bytes_sent=one, wall_bytes_received=one, frames_sent=one + hit,
            frames_received=one, frames_dark=hit, frames_resent=hit,
        ),
    )  # fmt: skip
    drops = {"dark": 1, "unconnected": 0, "conflict": 0, "queue": 0}
    summary = {**record.summary, "drops": drops}
    changed = replace(record, timeline=timeline, summary=summary, **known)
    rule = "every frame is accounted for"
    return [violation.where for violation in check_run(changed) if violation.rule == rule]


def test_frames_that_the_machine_sent_too_late_break_no_rule(records: dict[str, Record]) -> None:
    """Only at the end of a slot, and only where the run says that its machine was late."""
    record = records["rotating"]
    moved, down_ns = record.timeline.transfers, record.timeline.circuits.down_ns
    slack_ns = down_ns[moved.circuit] - moved.end_ns
    slack_ns[down_ns[moved.circuit] == NONE] = 10**9
    last, within = int(np.argmin(slack_ns)), int(np.argmax(slack_ns))
    late: dict[str, Any] = {
        "pace_kept": False, "guard_outrun": True, "tolerance_ns": int(slack_ns[last]),
    }  # fmt: skip
    assert dropping(record, last, **late) == []
    assert dropping(record, within, **late) == [f"transfer {within}"]
    for name, value in (("pace_kept", True), ("guard_outrun", False)):
        assert dropping(record, last, **late | {name: value}) == [f"transfer {last}"]
    assert dropping(records["in-order"], 0, **late) == ["transfer 0"]


def test_a_transfer_whose_frames_went_again_may_be_slow_on_a_late_machine(
    records: dict[str, Record],
) -> None:
    record = records["rotating"]
    planes = tuple(
        replace(plane, rate_bps=2 * plane.rate_bps) if plane.kind == "ocs" else plane
        for plane in record.fabric.planes
    )  # as if every transfer took twice its time
    moved = record.timeline.transfers

    def slow(*, pace_kept: bool, resent: int) -> int:
        again = np.full(len(moved.task), resent)
        timeline = replace(record.timeline, transfers=replace(moved, frames_resent=again))
        fabric = replace(record.fabric, planes=planes)
        changed = replace(record, timeline=timeline, fabric=fabric, pace_kept=pace_kept)
        rule = "a transfer takes line rate"
        return sum(violation.rule == rule for violation in check_run(changed))

    assert slow(pace_kept=False, resent=1) == 0
    assert slow(pace_kept=True, resent=1) > 0
    assert slow(pace_kept=False, resent=0) > 0


def swapped(program: OrderedProgram, plane: int, first: int, second: int) -> OrderedProgram:
    planes: list[list[Entry]] = [program.entries(k) for k in range(program.planes)]
    entries = planes[plane]
    entries[first], entries[second] = entries[second], entries[first]
    return OrderedProgram.from_entries(planes, program.initial_circuits)


def test_two_swapped_entries_are_noticed(runs: dict[str, Path]) -> None:
    record = record_of(runs["in-order"])
    assert isinstance(record.program, OrderedProgram)
    entries = record.program.entries(0)
    caught = 0
    for first in range(len(entries) - 1):
        for second in range(first + 1, len(entries)):
            a, b = entries[first], entries[second]
            if {a.src_port, b.src_port} & {b.dst_port, a.dst_port} or a[:2] == b[:2]:
                continue
            if a.src_port != b.src_port and a.dst_port != b.dst_port:
                continue
            program = swapped(record.program, 0, first, second)
            assert check_run(replace(record, program=program)), (first, second)
            caught += 1
            if caught == 6:
                return
    pytest.fail("the plan has too few entries that share a port")


def test_a_simulator_with_a_longer_delay_is_noticed(tmp_path: Path, make_run: Any) -> None:
    record = record_of(make_run(tmp_path / "run", "in-order", f"{BASE[:-3]}2us"))
    slower = [replace(plane, delay_ns=2_200) for plane in record.fabric.planes]
    found = check_run(replace(record, fabric=replace(record.fabric, planes=tuple(slower))))
    assert "a circuit is dark for the delay" in {violation.rule for violation in found}


def test_an_altered_file_is_noticed(tmp_path: Path, runs: dict[str, Path]) -> None:
    copy = shutil.copytree(runs["in-order"], tmp_path / "copy")
    frame = pl.read_parquet(copy / "nic.parquet")
    frame.with_columns(pl.col("peak_bytes") + 1).write_parquet(copy / "nic.parquet")
    (copy / "timeline.json").unlink()
    found = check_run_directory(copy)
    assert [(v.where, v.what) for v in found] == [
        (str(copy / "nic.parquet"), "it has changed since the run"),
        (str(copy / "timeline.json"), "it is missing"),
    ]


def test_a_run_that_failed_its_check_lists_every_rule(
    tmp_path: Path, runs: dict[str, Path]
) -> None:
    copy = shutil.copytree(runs["in-order"], tmp_path / "copy")
    frame = pl.read_parquet(copy / "transfers.parquet")
    late = frame.with_columns(pl.col("end_ns") + 10**6)
    late.write_parquet(copy / "transfers.parquet")
    record_file(copy, "transfers.parquet", (copy / "transfers.parquet").read_bytes())
    manifest = json.loads((copy / "manifest.json").read_text())
    error = {"exit": 3, "what": "rules are broken", "where": "here", "why": "so", "fix": "do"}
    manifest |= {"status": "failed", "error": error}
    (copy / "manifest.json").write_text(json.dumps(manifest))
    found = check_run_directory(copy)
    assert found[0].rule == "a run ends well"
    assert "a message lasts as its transfers" in {violation.rule for violation in found[1:]}
    assert not any(violation.where.startswith("summary") for violation in found)
    manifest["error"]["exit"] = 1
    (copy / "manifest.json").write_text(json.dumps(manifest))
    assert [violation.rule for violation in check_run_directory(copy)] == ["a run ends well"]
