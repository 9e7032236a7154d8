"""`fluxbed run`: the same on the emulated fabric, with real packets."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from testbed.cli.contest import COLUMNS, compete, row
from testbed.cli.output import Column, format_option, note, progress_line
from testbed.cli.parameters import (
    EXPANSION,
    IMPORT,
    OUTPUT,
    PLAN_FILES,
    PLANNING,
    SCHEDULERS,
    TOPOLOGY_UNLESS_PLANNED,
    options,
    steady_state,
    workload_argument,
)
from topologies.errors import CheckError, UsageError
from topologies.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scheduler.model.timeline import Timeline
    from testbed.cli.contest import Attempt
    from testbed.emulator.dilation import Dilation
    from testbed.emulator.engine import Monitor
    from testbed.emulator.network import EmulatedFabric
    from testbed.files.rundir import RunDirectory
    from testbed.files.summary import Summary

__all__ = ["Stage", "command"]

_LOOK_S: Final = 0.2
_LATE: Final = ("lateness", "hop")  # of a frame's departure, and of its arrival
_RESEND_US: Final = 1000.0  # a frame later than this is sent again: nothing is later unnoticed

_COLUMNS: Final[list[Column]] = [
    ("scheduler", "scheduler", str),
    ("predicted_iteration_ns", "predicted", format_duration),
    ("iteration_ns", "measured", format_duration),
    ("difference", "difference", lambda value: f"{100 * value:+.2f} %"),
    *COLUMNS[:4],
    ("lost_bytes", "lost bytes", str),
    ("dropped", "drops", str),
    *COLUMNS[4:],
]


@click.command("run")
@workload_argument
@options(TOPOLOGY_UNLESS_PLANNED, SCHEDULERS, PLAN_FILES, OUTPUT)
@options(steady_state(iterations=4, skip=1))
@click.option(
    "--dilation",
    default="auto",
    show_default=True,
    metavar="auto|FACTOR",
    help="How much slower than the fabric to run.",
)
@click.option("--dry-run", is_flag=True, help="Predict, and say how long the run would take.")
@options(PLANNING, EXPANSION, IMPORT)
@format_option
def command(**chosen: Any) -> None:  # noqa: ANN401 (options)
    """Replay WORKLOAD (a trace does too) over a software OCS and measure; needs root.

    Example: sudo fluxbed run examples/traces/llama-tp4-dp2 -t rails,planes=2,delay=10us -s flux
    """
    from testbed.emulator.capabilities import require_emulation

    factor = _factor(chosen["dilation"])
    require_emulation()
    with contextlib.ExitStack() as stack:
        stage = Stage(stack, factor, dry=chosen["dry_run"])
        compete(chosen, stage.execute, _COLUMNS)


def _factor(text: str) -> float | None:
    if text == "auto":
        return None
    try:
        factor = float(text)
    except ValueError:
        factor = math.nan
    if not 0 < factor < math.inf:
        why = "it is auto or a positive number"
        raise UsageError(f"{text!r} is no dilation", "--dilation", why, "write --dilation auto")
    return factor


class Stage:
    """The emulated fabric, built when the first contender needs it and shared by all."""

    def __init__(self, stack: contextlib.ExitStack, factor: float | None, *, dry: bool) -> None:
        self._stack = stack
        self._factor = factor
        self._dry = dry
        self._network: EmulatedFabric | None = None

    def network(self, attempt: Attempt) -> EmulatedFabric:
        """Return the fabric, built at the first call."""
        if self._network is None:
            from testbed.emulator.network import EmulatedFabric

            fabric = attempt.job.fabric
            note(f"building {fabric.nodes} hosts on {len(fabric.planes)} planes")
            run_id = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}"
            self._network = self._stack.enter_context(EmulatedFabric(fabric, run_id))
        return self._network

    def execute(self, attempt: Attempt) -> dict[str, Any]:
        """Predict and measure one contender; return its row."""
        from testbed.emulator.capacity import measure_capacity
        from testbed.emulator.dilation import choose

        network = self.network(attempt)
        chosen = attempt.options
        graph, plan = attempt.job.expansion.graph, attempt.plan
        dilation = choose(
            graph,
            plan.fabric,
            plan.program,
            measure_capacity(network),
            factor=self._factor,
            iterations=chosen["iterations"],
            lookahead_ns=chosen["lookahead_ns"],
        )
        wall = (
            "unknown" if dilation.expected_wall_s is None else f"{dilation.expected_wall_s:.2g} s"
        )
        note(
            f"{attempt.contender.label}: {dilation.factor:g} times slower than the fabric "
            f"({dilation.bound_by}), {wall} on the wall"
        )
        predicted = _predict(attempt, dilation)
        if self._dry:
            return {
                "status": "not run",
                "predicted_iteration_ns": predicted.iteration_ns(chosen["skip"]),
                "dilation": dilation.factor,
                "expected_wall_s": dilation.expected_wall_s,
            }
        return _measure(attempt, network, dilation, predicted)


def _predict(attempt: Attempt, dilation: Dilation | None) -> Timeline:
    """Simulate what is to be measured, with its frames and guard, or without them."""
    from scheduler.dispatch.simulator import simulate

    frames = (
        {}
        if dilation is None
        else {"quantum_bytes": dilation.quantum_bytes, "guard_ns": dilation.guard_ns}
    )
    return simulate(
        attempt.job.expansion.graph,
        attempt.plan.fabric,
        attempt.plan.program,
        iterations=attempt.options["iterations"],
        lookahead_ns=attempt.options["lookahead_ns"],
        **frames,
    )


def _measure(
    attempt: Attempt, network: EmulatedFabric, dilation: Dilation, predicted: Timeline
) -> dict[str, Any]:
    from scheduler.model.planned import with_planned
    from testbed.emulator.engine import Monitor
    from testbed.emulator.engine import attempt as execute

    chosen = attempt.options
    skip = chosen["skip"]
    ideal = _predict(attempt, None)
    monitor = Monitor()
    with attempt.directory(
        "emulated",
        skip=skip,
        quantum_bytes=dilation.quantum_bytes,
        guard_ns=dilation.guard_ns,
        dilation=dilation.factor,
        bytes_per_wall_byte=dilation.bytes_per_wall_byte,
    ) as run:
        with _progress(attempt, monitor, dilation):
            execution = execute(
                attempt.job.expansion.graph,
                attempt.plan.fabric,
                attempt.plan.program,
                network,
                dilation=dilation,
                iterations=chosen["iterations"],
                lookahead_ns=chosen["lookahead_ns"],
                monitor=monitor,
            )
        timeline = with_planned(execution.timeline, predicted)
        late_us = sum(timeline.measures[f"{name}_max_us"] or 0.0 for name in _LATE)
        late_us = max(late_us, _RESEND_US)
        run.update(tolerance_ns=math.ceil(late_us * 1e3 / dilation.factor))
        summary = run.write_results(
            timeline,
            predicted_ns=predicted.iteration_ns(skip),
            predicted_ideal_ns=ideal.iteration_ns(skip),
        )
        if execution.interrupted:
            note(f"interrupted; what was measured until then is in {run.path}")
            raise KeyboardInterrupt
        if execution.error is not None:
            raise execution.error
    _verify(run)
    return row(summary, run.path) | {
        "dropped": sum(msgspec.to_builtins(summary.drops).values()),
        "difference": _difference(summary),
    }


def _difference(summary: Summary) -> float | None:
    if summary.iteration_ns is None or not summary.predicted_iteration_ns:
        return None
    return summary.iteration_ns / summary.predicted_iteration_ns - 1


def _verify(run: RunDirectory) -> None:
    """Re-check the run from its files; one that breaks the model has failed."""
    from testbed.files.verify import check_run_directory

    violations = check_run_directory(run.path)
    if violations:
        what = f"{len(violations)} rules of the model are broken"
        fix = f"see fluxbed check {run.path}"
        error = CheckError(what, str(run.path), str(violations[0]), fix)
        run.finish("failed", error)
        raise error


@contextlib.contextmanager
def _progress(attempt: Attempt, monitor: Monitor, dilation: Dilation) -> Iterator[None]:
    """Show how far the execution is, on a line that moves."""
    total = attempt.job.expansion.graph.tasks * attempt.options["iterations"]
    label, over = attempt.contender.label, threading.Event()

    def watch(show: Callable[[str], None]) -> None:
        while not over.wait(_LOOK_S):
            virtual = format_duration(monitor.wall_ns / dilation.factor)
            show(f"{label}: {monitor.tasks_done} of {total} tasks, {virtual} of virtual time")

    with progress_line() as show:
        thread = threading.Thread(target=watch, args=(show,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
