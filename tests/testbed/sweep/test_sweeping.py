"""Sweeps: what is finished is not repeated, what fails has a row, wherever points are evaluated."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from testbed.sweep import Point, Progress, Store, read_table, sweep
from testbed.sweep.sweeping import cluster, local
from topologies.errors import InputError, MachineError, StalledError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

POINTS = [
    Point(mode="simulate", settings={"topology.delay": f"{k}us", "scheduler": "flux", "seed": k})
    for k in range(1, 6)
]


def double(point: Point) -> dict[str, Any]:
    """An evaluation that any process can import."""
    return {"iteration_ns": 2.0 * int(point["seed"])}


def stall_at_three(point: Point) -> dict[str, Any]:
    if point["seed"] == 3:
        raise StalledError("m1 waits", "rank 0", "circuit 0-1 never comes", "plan again")
    return double(point)


def break_at_three(point: Point) -> dict[str, Any]:
    return {"iteration_ns": 1 / (int(point["seed"]) - 3)}


class Counting:
    """Counts evaluations; raises KeyboardInterrupt as Ctrl-C would, at the call it is told."""

    def __init__(self, inner: Callable[[Point], Mapping[str, Any]], stop_at: int = 0) -> None:
        self.inner, self.stop_at, self.calls = inner, stop_at, 0

    def __call__(self, point: Point) -> Mapping[str, Any]:
        self.calls += 1
        if self.calls == self.stop_at:
            raise KeyboardInterrupt
        return self.inner(point)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "s", b"")


def test_an_interrupted_sweep_goes_on_where_it_was(store: Store) -> None:
    with pytest.raises(KeyboardInterrupt):
        sweep(POINTS, Counting(double, stop_at=4), store, None)
    (store.points / f".{POINTS[3].id}.json.part").write_bytes(b'{"format"')  # a kill while writing
    assert len(store.write_table(POINTS)) == 3
    again = Counting(double)
    progress = sweep(POINTS, again, store, None)
    assert (again.calls, progress.resumed, progress.done) == (2, 3, 2)
    frame = store.write_table(POINTS)
    assert frame["iteration_ns"].to_list() == [2, 4, 6, 8, 10]


def kill_at_three(point: Point) -> dict[str, Any]:
    """An evaluation in which the machine ends the whole process, as kill -9 does."""
    if point["seed"] == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return double(point)


def sweep_until_killed(path: Path) -> None:
    sweep(POINTS, kill_at_three, Store(path, b""), None)


def test_a_killed_sweep_goes_on_where_it_was(tmp_path: Path) -> None:
    process = get_context("spawn").Process(target=sweep_until_killed, args=(tmp_path / "s",))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    store = Store(tmp_path / "s", b"")
    progress = sweep(POINTS, double, store, None)
    assert (progress.resumed, progress.done) == (2, 3)
    assert store.write_table(POINTS)["iteration_ns"].to_list() == [2, 4, 6, 8, 10]


def test_a_failed_point_has_a_row_and_is_tried_again_only_when_asked(store: Store) -> None:
    progress = sweep(POINTS, stall_at_three, store, None)
    assert (progress.done, progress.failed) == (5, 1)
    row = store.write_table(POINTS).row(2, named=True)
    assert row["status"] == "stalled"
    assert row["iteration_ns"] is None
    assert row["error"] == ("rank 0: m1 waits, because circuit 0-1 never comes: plan again")
    assert sweep(POINTS, double, store, None).done == 0
    assert sweep(POINTS, double, store, None, retry=True).done == 1
    assert store.write_table(POINTS)["error"].is_null().all()


def test_whatever_a_scheduler_of_ones_own_raises_is_its_points_row(store: Store) -> None:
    with ThreadPoolExecutor(2) as executor:
        progress = sweep(POINTS, break_at_three, store, executor)
    assert progress.failed == 1
    failed = store.write_table(POINTS).filter(pl.col("status") == "failed")
    assert failed["error"].to_list() == ["ZeroDivisionError: division by zero"]


def test_processes_find_what_one_process_finds(store: Store, tmp_path: Path) -> None:
    other = Store(tmp_path / "other", b"")
    with local(2) as executor:
        sweep(POINTS, double, other, executor)
    sweep(POINTS, double, store, None)
    assert other.write_table(POINTS).equals(store.write_table(POINTS))


def test_a_dask_cluster_of_two_workers_finds_the_same(store: Store, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="the extra 'cluster' is not installed")
    other = Store(tmp_path / "other", b"")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None
        ) as workers,
        cluster(workers.scheduler_address) as executor,
    ):
        progress = sweep(POINTS, stall_at_three, other, executor)
    sweep(POINTS, stall_at_three, store, None)
    assert progress.failed == 1
    assert other.write_table(POINTS).equals(store.write_table(POINTS))


def test_a_cluster_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("distributed", reason="the extra 'cluster' is not installed")

    def refuse(*_: object, **__: object) -> None:
        raise OSError("Timed out trying to connect")

    monkeypatch.setattr(distributed, "Client", refuse)
    with pytest.raises(MachineError) as refused, cluster("tcp://10.0.0.1:8786"):
        pass
    assert str(refused.value) == (
        "tcp://10.0.0.1:8786: no cluster is there, because its scheduler does not answer: Timed "
        "out trying to connect: start dask scheduler, or correct the address"
    )


def test_settings_with_units_have_their_number_beside_them(store: Store) -> None:
    sweep(POINTS, double, store, None)
    store.write_table(POINTS)
    frame = read_table(store.path)
    assert frame["topology.delay"].to_list() == ["1us", "2us", "3us", "4us", "5us"]
    assert frame["topology.delay_ns"].to_list() == [1000, 2000, 3000, 4000, 5000]
    assert frame.equals(read_table(store.path / "table.parquet"))


def test_the_time_left_follows_from_the_pace() -> None:
    assert Progress(10, resumed=2).left_s(5.0) is None
    assert Progress(10, resumed=2, done=2, began_s=1.0).left_s(5.0) == pytest.approx(12.0)


def test_a_directory_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes").write_bytes(b"mine")
    with pytest.raises(UsageError) as refused:
        Store(tmp_path, b"")
    assert str(refused.value) == (
        f"{tmp_path}: it is not resumed, because it holds something else than a sweep: "
        "choose another directory"
    )


def test_a_damaged_point_is_named(store: Store) -> None:
    sweep(POINTS[:1], double, store, None)
    (file,) = store.points.iterdir()
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(InputError, match=f"{file.name}: this is not a point of a sweep, because"):
        store.write_table(POINTS[:1])


def die(point: Point) -> dict[str, Any]:
    """An evaluation whose process is gone before it answers."""
    if point["seed"] == 1:
        time.sleep(0.01)
        os._exit(9)
    return double(point)


def test_a_process_that_dies_ends_the_sweep_with_a_sentence(store: Store) -> None:
    with pytest.raises(MachineError) as ended, local(2) as executor:
        sweep(POINTS, die, store, executor)
    assert str(ended.value) == (
        "sweep: a process of the sweep died, because the machine ended it, most often for lack of "
        "memory: use fewer --jobs; the same command goes on from here"
    )
