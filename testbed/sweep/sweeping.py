"""Going through the points of an experiment: what is finished is kept, what fails has a row.

`evaluate` is any picklable function from a point to its results. It runs in the processes of an
executor; results are written here, by the process that asked, so that workers need no shared disk.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    as_completed,
)
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from typing import TYPE_CHECKING, Any, TypeAlias

from topologies.errors import FluxbedError, MachineError, StalledError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from testbed.sweep.point import Point
    from testbed.sweep.store import Store

__all__ = ["Evaluate", "Progress", "cluster", "local", "sweep"]

Evaluate: TypeAlias = "Callable[[Point], Mapping[str, Any]]"


@dataclass(slots=True)
class Progress:
    """How far a sweep is. `resumed` points were there before it began."""

    total: int
    resumed: int = 0
    done: int = 0
    failed: int = 0
    began_s: float = 0.0

    def left_s(self, now_s: float) -> float | None:
        """Estimate the time left from the pace so far; None before the first point."""
        if not self.done:
            return None
        return (now_s - self.began_s) / self.done * (self.total - self.resumed - self.done)


def sweep(
    points: Sequence[Point],
    evaluate: Evaluate,
    store: Store,
    executor: Executor | None,
    *,
    retry: bool = False,
    show: Callable[[Progress], None] = lambda _progress: None,
) -> Progress:
    """Evaluate the points that `store` does not have, with `executor` or here one by one.

    `retry` also evaluates again those that failed or did not keep pace. Whatever an evaluation
    raises becomes its point's row. Raises `MachineError` when the processes of the executor are
    gone.
    """
    known = [store.find(point) for point in points]
    left = [
        point
        for point, outcome in zip(points, known, strict=True)
        if outcome is None or (retry and not outcome.good)
    ]
    progress = Progress(len(points), resumed=len(points) - len(left), began_s=time.monotonic())
    show(progress)
    finished = _one_by_one(left, evaluate) if executor is None else _all(left, evaluate, executor)
    for point, result, error in finished:
        _keep(store, point, result, error)
        progress.done += 1
        progress.failed += error is not None
        show(progress)
    return progress


Finished: TypeAlias = "tuple[Point, Mapping[str, Any] | None, BaseException | None]"


def _one_by_one(points: Sequence[Point], evaluate: Evaluate) -> Iterator[Finished]:
    for point in points:
        try:
            yield point, evaluate(point), None
        except FluxbedError as error:
            yield point, None, error


def _all(points: Sequence[Point], evaluate: Evaluate, executor: Executor) -> Iterator[Finished]:
    futures = {executor.submit(evaluate, point): point for point in points}
    try:
        for future in as_completed(futures):
            error = future.exception()
            if isinstance(error, BrokenExecutor):
                what = "a process of the sweep died"
                why = "the machine ended it, most often for lack of memory"
                fix = "use fewer --jobs; the same command goes on from here"
                raise MachineError(what, "sweep", why, fix) from error
            yield futures[future], None if error else future.result(), error
    finally:
        for future in futures:
            future.cancel()


def _keep(
    store: Store, point: Point, result: Mapping[str, Any] | None, error: BaseException | None
) -> None:
    if result is not None:
        store.put(point, {"status": "ok", **result})
        return
    sentence = str(error) if isinstance(error, FluxbedError) else f"{type(error).__name__}: {error}"
    status = "stalled" if isinstance(error, StalledError) else "failed"
    store.put(point, {"status": status}, sentence)


@contextmanager
def local(jobs: int) -> Iterator[Executor]:
    """Yield an executor of `jobs` processes, or of one thread, that ends with this process."""
    pool: Executor = (
        ThreadPoolExecutor(1)
        if jobs == 1
        else ProcessPoolExecutor(jobs, get_context("spawn"), initializer=_begin_worker)
    )
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin_worker() -> None:
    """Let Ctrl-C end a worker silently, and end it when the process that asked was killed."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = parent_process()
    assert parent is not None  # a worker has one

    def follow() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


@contextmanager
def cluster(address: str) -> Iterator[Executor]:
    """Yield the executor of the Dask cluster whose scheduler is at `address`.

    Its workers have fluxbed installed and the files of the experiment in the same places. Raises
    `MachineError` where distributed is not installed or the cluster does not answer.
    """
    try:
        from distributed import Client
    except ImportError as error:
        why = "the package distributed is not installed"
        fix = "install fluxbed[cluster]"
        raise MachineError("there is no Dask here", address, why, fix) from error
    try:
        client = Client(address, timeout="10s", set_as_default=False)
    except (OSError, ValueError) as error:
        why = f"its scheduler does not answer: {error}".rstrip(".")
        fix = "start dask scheduler, or correct the address"
        raise MachineError("no cluster is there", address, why, fix) from error
    with client:
        yield client.get_executor()
