from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model.metrics import union_length_ns
from scheduler.model.nic import account_nics
from testbed.files.rundir import read_run
from testbed.files.summary import _unlike_ideal, summarise

if TYPE_CHECKING:
    from pathlib import Path

    from testbed.files.rundir import Run

NODES = 4
PORTS = 2 * NODES


@pytest.fixture(scope="module", params=["in-order", "rotating"])
def run(request: Any, tmp_path_factory: pytest.TempPathFactory, make_run: Any) -> Run:
    return read_run(make_run(tmp_path_factory.mktemp("home") / "run", request.param))


def frame(run: Run, name: str) -> pl.DataFrame:
    path: Path = run.path / f"{name}.parquet"
    return pl.read_parquet(path)


def last_ends(run: Run) -> list[int]:
    ends = frame(run, "tasks").group_by("iteration").agg(pl.col("end_ns").max()).sort("iteration")
    return [int(end) for end in ends["end_ns"]]


def test_iterations_are_told_from_their_last_tasks(run: Run) -> None:
    first, second, third = last_ends(run)
    assert run.summary.iterations_ns == [first, second - first, third - second]
    assert run.summary.iteration_ns == (third - first) / 2


def test_bytes_and_messages_are_those_that_arrived(run: Run) -> None:
    messages = frame(run, "tasks").filter(kind="message")
    assert run.summary.messages == len(messages)
    assert run.summary.bytes == messages["bytes"].sum() == frame(run, "transfers")["bytes"].sum()
    assert run.summary.lost_bytes == 0
    assert run.summary.drops.dark is None


def test_light_and_dark_add_up(run: Run) -> None:
    circuits, duration = frame(run, "circuits"), last_ends(run)[-1]
    dark = circuits.with_columns(pl.col("up_ns").clip(0, duration) - pl.col("dark_ns"))["up_ns"]
    assert run.summary.dark_fraction == pytest.approx(dark.sum() / (PORTS * duration))
    down = circuits["down_ns"].fill_null(duration).clip(0, 10**15)
    up = (down - circuits["up_ns"]).clip(0)
    wire = -(-frame(run, "transfers")["bytes"] * 8 // 400)
    lit = float(np.sum(wire.to_numpy()) / np.sum(up.to_numpy()))
    assert run.summary.circuit_utilisation == pytest.approx(lit, rel=1e-2)


def test_requests_are_counted_after_the_first_iteration(run: Run) -> None:
    later = frame(run, "circuits").filter(pl.col("request_ns") > last_ends(run)[0])
    assert run.summary.reconfigurations == len(later) / 2


def test_exposed_time_is_what_a_walk_finds(run: Run) -> None:
    tasks, (begin, _, end) = frame(run, "tasks"), last_ends(run)
    total = 0
    for rank in range(NODES):
        waiting, working = np.zeros(end, bool), np.zeros(end, bool)
        for task in tasks.iter_rows(named=True):
            if task["kind"] == "message" and rank in (task["src"], task["dst"]):
                waiting[task["ready_ns"] : task["end_ns"]] = True
            elif task["kind"] == "compute" and task["rank"] == rank:
                working[task["start_ns"] : task["end_ns"]] = True
        total += int((waiting & ~working)[begin:].sum())
    assert run.summary.exposed_comm_ns == total / NODES / 2


def test_peaks_are_those_of_the_table(run: Run) -> None:
    nic = frame(run, "nic")
    for kind, found in (
        ("eager", run.summary.nic_peak_bytes_eager),
        ("paced", run.summary.nic_peak_bytes_paced),
    ):
        rows = nic.filter(injection=kind)
        assert found == rows["peak_bytes"].max()
        assert rows["node"].to_list() == list(range(NODES))
    assert run.summary.nic_peak_bytes_eager is not None
    assert frame(run, "queues")["bytes"].to_numpy().max() <= run.summary.nic_peak_bytes_eager


def test_the_plan_s_promise_is_repeated(run: Run) -> None:
    assert run.summary.lower_bound_ns == run.plan().predicted.lower_bound_ns == 0.5
    assert run.summary.proven_optimal is False


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(-2, 9))))
def test_union_of_intervals(intervals: list[tuple[int, int]]) -> None:
    covered = {t for begin, length in intervals for t in range(begin, begin + length)}
    begin = np.array([b for b, _ in intervals], np.int64)
    end = np.array([b + length for b, length in intervals], np.int64)
    assert union_length_ns(begin, end) == len(covered)


def test_an_iteration_below_its_bound_is_remarked(tmp_path: Path, make_run: Any) -> None:
    run = read_run(make_run(tmp_path / "run", "in-order"))
    graph, timeline, plan = run.expansion().graph, run.timeline(), run.plan()
    fabric, placed = run.fabric(), run.manifest.rank_to_node
    accounts = {kind: account_nics(graph, fabric, timeline, kind) for kind in ("eager", "paced")}

    def remarks(times: float, **known: Any) -> list[str] | None:
        assert run.summary.iteration_ns is not None
        bound_ns = run.summary.iteration_ns * times
        promised = msgspec.structs.replace(plan.predicted, lower_bound_ns=bound_ns)
        found = summarise(
            graph, fabric, dataclasses.replace(timeline, **known), accounts, scheduler="in-order",
            rank_to_node=placed, skip=run.manifest.skip, promised=promised,
        )  # fmt: skip
        return found.remarks

    (sentence,) = remarks(1.25) or ()
    assert sentence == (
        f"the iteration is 20.00% shorter than its lower bound, because {timeline.iterations} "
        "iterations do not settle to the period that the bound is of: execute more with -n, or "
        "skip more with --skip"
    )
    assert remarks(1.0) == remarks(0.5) == []
    assert remarks(1.0005) != []
    assert remarks(1.0005, origin="emulated") == []
    assert remarks(1.01, origin="emulated") != []


@pytest.mark.parametrize(
    ("predicted_ns", "ideal_ns", "words"),
    [
        (None, 100.0, None),
        (100.0, None, None),
        (101.0, 100.0, None),
        (103.0, 100.0, "3.0% more than the ideal iteration is predicted"),
        (60.0, 100.0, "40.0% less than the ideal iteration is predicted"),
    ],
)
def test_an_emulation_unlike_the_ideal_fabric_is_remarked(
    predicted_ns: float | None, ideal_ns: float | None, words: str | None
) -> None:
    found = _unlike_ideal(predicted_ns, ideal_ns)
    assert len(found) == (words is not None)
    assert words is None or words in found[0]
