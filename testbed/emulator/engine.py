"""Execute a program on the emulated fabric in real time, and say what happened.

One compiled thread does it all (`_kernels_engine`), under SCHED_FIFO and pinned to a core. This
thread only watches: Ctrl-C, or `Monitor.stop`, ends the run early with what was recorded so far.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypedDict

import numpy as np

from scheduler.dispatch import _kernels_columns as col
from scheduler.dispatch.layout import prepare
from scheduler.dispatch.simulator import iteration_ends
from scheduler.dispatch.stalls import blocked, stalled
from scheduler.model.program import TimedProgram
from scheduler.model.taskgraph import MESSAGE
from scheduler.model.timeline import NONE, Timeline
from testbed.emulator import _kernels_engine_columns as e
from testbed.emulator import integrity
from testbed.emulator.crossbar import CAUSES
from testbed.emulator.dilation import Dilation, dilate
from testbed.emulator.engine_tables import (
    dispatcher_state,
    initial_circuits,
    new_engine,
    new_wire,
    read_timeline,
)
from testbed.emulator.faults import (
    RETRY_NS,
    effects_of,
    fault_rows,
    patience,
    require_bearable,
)
from testbed.emulator.packet_plane import wire_bps
from testbed.emulator.realtime import RealtimeThread, engine_place
from testbed.files.lateness import guard_outrun
from topologies.errors import CheckError, FluxbedError, MachineError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from scheduler.dispatch.layout import Layout
    from scheduler.model.program import Program
    from scheduler.model.taskgraph import Int64s, TaskGraph
    from testbed.emulator.network import EmulatedFabric
    from testbed.files.faults import Fault
    from testbed.files.summary import FaultEffect
    from topologies.fabric import Fabric

__all__ = ["Execution", "Monitor", "attempt", "execute", "require_drivable"]

_LEAD_NS: Final = 20_000_000  # from the thread's start to time zero
_PATIENCE: Final = 3  # times the prediction
_PATIENCE_NS: Final = 2_000_000_000  # and on top
_LOOK_S: Final = 0.05

_COUNTED: Final = {
    "turns": e.TURNS,
    "sleeps": e.SLEEPS,
    "naps": e.NAPS,
    "frames_sent": e.FRAMES_SENT,
    "frames_received": e.FRAMES_RECEIVED,
    "frames_resent": e.RESENT,
    "frames_disordered": e.DISORDER,
    "frames_duplicate": e.DUPLICATES,
    "frames_foreign": e.FOREIGN,
    "frames_discarded": e.DISCARDED,
    "frames_spoilt": e.SPOILT,
    "missed_slot_ends": e.MISSED,
    "late_arrivals": e.LATE_ARRIVALS,
    "send_errors": e.SEND_ERRORS,
}
_DISTRIBUTIONS: Final = {
    "lateness": e.LATENESS,
    "hop": e.HOP,
    "dispatch": e.DISPATCH,
    "transit": e.TRANSIT,
}


class _Held(TypedDict):
    """What simulator and engine are told alike, times on the wall."""

    lookahead_ns: int
    nic_buffer_bytes: int | None
    gather_ns: int


@dataclass(slots=True)
class Monitor:
    """How far an execution is, readable while it runs, and the way to stop it.

    `tables` are the engine's own from shortly before time zero on: for reading only.
    """

    control: Int64s = field(default_factory=lambda: np.zeros(1, np.int64))
    progress: Int64s = field(default_factory=lambda: np.zeros(2, np.int64))
    tables: e.Engine | None = None

    def stop(self) -> None:
        """Let the execution end within 10 ms."""
        self.control[e.STOP] = 1

    @property
    def tasks_done(self) -> int:
        """How many unrolled tasks have ended."""
        return int(self.progress[e.PROGRESS_DONE])

    @property
    def wall_ns(self) -> int:
        """How long ago time zero was; divide by the dilation's factor for virtual time."""
        return int(self.progress[e.PROGRESS_NS])


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """The end of an execution, whether good or not.

    `timeline` holds all that was recorded; `interrupted` says that it was stopped on request, and
    `error` why it could not be finished. `extents` int64[:, 4] are runs of bytes received in order:
    unrolled message, offset, length, transfer. `effects` say what each fault did.
    """

    timeline: Timeline
    extents: Int64s
    interrupted: bool
    error: FluxbedError | None
    effects: Sequence[FaultEffect] = ()


def execute(
    graph: TaskGraph,
    fabric: Fabric,
    program: Program,
    network: EmulatedFabric,
    *,
    dilation: Dilation,
    iterations: int = 4,
    lookahead_ns: int = 0,
    nic_buffer_bytes: int | None = None,
    monitor: Monitor | None = None,
    limit_ns: int | None = None,
    sabotage: Callable[[EmulatedFabric], None] | None = None,
    faults: Sequence[Fault] = (),
    seed: int = 0,
    rank_to_node: Sequence[int] | None = None,
) -> Timeline:
    """Execute `iterations` iterations of `program` on `network`; times are virtual.

    A run stopped by Ctrl-C or `monitor` returns what it has, with `measures["interrupted"]` 1.
    Otherwise every virtual byte arrived exactly once. Raises what `attempt` raises and the `error`
    it reports: `CheckError` for lost or disordered bytes, `StalledError`, `MachineError` where the
    machine did not keep up.
    """
    execution = attempt(
        graph,
        fabric,
        program,
        network,
        dilation=dilation,
        iterations=iterations,
        lookahead_ns=lookahead_ns,
        nic_buffer_bytes=nic_buffer_bytes,
        monitor=monitor,
        limit_ns=limit_ns,
        sabotage=sabotage,
        faults=faults,
        seed=seed,
        rank_to_node=rank_to_node,
    )
    if execution.error is not None:
        raise execution.error
    return execution.timeline


def attempt(
    graph: TaskGraph,
    fabric: Fabric,
    program: Program,
    network: EmulatedFabric,
    *,
    dilation: Dilation,
    iterations: int = 4,
    lookahead_ns: int = 0,
    nic_buffer_bytes: int | None = None,
    monitor: Monitor | None = None,
    limit_ns: int | None = None,
    sabotage: Callable[[EmulatedFabric], None] | None = None,
    faults: Sequence[Fault] = (),
    seed: int = 0,
    rank_to_node: Sequence[int] | None = None,
) -> Execution:
    """Execute as `execute` does, but return a failed run too, with all that it recorded.

    `limit_ns` (virtual) is when the run is given up, by default three times the prediction and two
    seconds, more under `faults`, which draw from `seed` and find their hosts by `rank_to_node`
    (None: in order). `nic_buffer_bytes` is as in `simulate`. `sabotage` is called when the initial
    circuits stand, just before time zero: a test breaks something there. Raises `UsageError` where
    the parts do not fit or a rotation shares packet planes, `MachineError` without SCHED_FIFO.
    """
    require_drivable(fabric, program)
    require_bearable(faults, program)
    monitor = monitor or Monitor()
    slow = dilate(graph, fabric, program, dilation.factor)
    for plane, bridge in network.packet_planes.items():
        bridge.shape(wire_bps(fabric.planes[plane].rate_bps, dilation))
    carried = packet_counts(network)
    lookahead_wall_ns = round(lookahead_ns * dilation.factor)
    held: _Held = {
        "lookahead_ns": lookahead_wall_ns,
        "nic_buffer_bytes": nic_buffer_bytes,
        "gather_ns": round(dilation.gather_ns * dilation.factor),
    }
    layout = prepare(*slow, iterations=iterations, **held)
    guard_wall_ns = round(max(dilation.guard_ns, _own_guard_ns(program)) * dilation.factor)
    if limit_ns is None:
        ends = iteration_ends(*slow, iterations=iterations, guard_ns=guard_wall_ns, **held)
        times, beyond_ns = patience(faults, fabric)
        limit_wall_ns = round(_PATIENCE * times * int(ends[-1]) + beyond_ns * dilation.factor)
        limit_wall_ns += _PATIENCE_NS
    else:
        limit_wall_ns = round(limit_ns * dilation.factor)
    tables = new_engine(
        layout,
        dilation,
        limit_ns=limit_wall_ns,
        guard_ns=guard_wall_ns,
        epoll_fd=network.epoll_fd,
        control=monitor.control,
        progress=monitor.progress,
        faults=fault_rows(faults, fabric, dilation.factor, seed),
        rank_to_node=rank_to_node,
    )
    if faults:
        retry_ns = round(RETRY_NS * dilation.factor)
        tables.numbers[e.N_RESEND] = max(e.RESEND_NS, retry_ns)
    monitor.tables = tables
    wire = new_wire(network.sockets, dilation.frame_bytes)
    cpu_ns = _run_in_real_time(layout, network, tables, wire, monitor=monitor, sabotage=sabotage)
    counted = network.crossbar.totals()
    for name, value in packet_counts(network).items():
        counted[name] = counted.get(name, 0) + value - carried[name]
    return _conclude(
        layout, fabric, tables, counted, dilation=dilation, cpu_ns=cpu_ns, faults=faults
    )


def require_drivable(fabric: Fabric, program: Program) -> None:
    """Raise `UsageError` for what the engine cannot execute: rotations that share packet planes."""
    if not isinstance(program, TimedProgram) or program.routing != "direct":
        return
    packets = [k for k, plane in enumerate(fabric.planes) if plane.kind == "eps"]
    if packets:
        why = "the fair shares of a rotation's queues on a packet plane are computed, not sent"
        fix = "simulate it instead, or leave out its packet planes"
        raise UsageError(f"plane {packets[0]} is a packet switch", "engine", why, fix)


def _own_guard_ns(program: Program) -> int:
    return program.guard_ns if isinstance(program, TimedProgram) else 0


def _run_in_real_time(
    layout: Layout,
    network: EmulatedFabric,
    tables: e.Engine,
    wire: e.Wire,
    *,
    monitor: Monitor,
    sabotage: Callable[[EmulatedFabric], None] | None,
) -> int:
    """Run the compiled loop on its own thread, watching for Ctrl-C; return its CPU time, ns."""
    from testbed.emulator._kernels_engine import run, warm_up

    state = dispatcher_state(layout)
    crossbar = network.crossbar
    warm_up()

    def body() -> int:
        drain(network)
        crossbar.reset()
        for src, dst in initial_circuits(layout).tolist():
            crossbar.set_circuit_at(src, dst)
        if sabotage is not None:
            sabotage(network)
        tables.numbers[e.N_ZERO] = time.monotonic_ns() + _LEAD_NS
        begun_ns = time.thread_time_ns()
        run(tables, state, wire, crossbar.tables, crossbar.counters)
        return time.thread_time_ns() - begun_ns

    thread = RealtimeThread(body, core=engine_place())
    thread.start()
    ended = False
    while not ended:
        try:
            ended = thread.wait(_LOOK_S)
        except KeyboardInterrupt:
            monitor.stop()
    return thread.result()


def packet_counts(network: EmulatedFabric) -> dict[str, int]:
    """Return what the packet planes have carried and dropped so far, named like the crossbar's."""
    names = {"forwarded_frames": "forwarded_frames", "queue_frames": "dropped_frames"}
    counts = [bridge.counts() for bridge in network.packet_planes.values()]
    return {ours: sum(count[theirs] for count in counts) for ours, theirs in names.items()}


def drain(network: EmulatedFabric) -> None:
    """Throw away what an earlier, stopped execution left in the sockets."""
    for descriptor in network.sockets.fd.tolist():
        with contextlib.suppress(BlockingIOError):
            while True:
                os.read(descriptor, 1)


def _conclude(
    layout: Layout,
    fabric: Fabric,
    tables: e.Engine,
    drops: Mapping[str, int],
    *,
    dilation: Dilation,
    cpu_ns: int,
    faults: Sequence[Fault],
) -> Execution:
    """Gather records, measures and the verdict."""
    outcome = int(tables.counters[e.OUTCOME])
    measures = _measures(tables, drops, cpu_ns)
    timeline = read_timeline(layout, fabric, tables, dilation.factor, measures)
    extents = tables.extents[: tables.counters[e.EXTENTS]].copy()
    error = _error(layout, tables, drops, faults, measures)
    interrupted = outcome == e.STOPPED
    if error is None and not interrupted:
        error = integrity.violation(layout, timeline, _at_home(layout, tables), drops)
    return Execution(
        timeline=timeline,
        extents=extents,
        interrupted=interrupted,
        error=error,
        effects=effects_of(faults, tables.faults, dilation.factor),
    )


def _at_home(layout: Layout, tables: e.Engine) -> Int64s:
    """Return the extents that were received where their messages go, not by a relay."""
    extents = tables.extents[: tables.counters[e.EXTENTS]]
    far = tables.transfers[extents[:, e.E_TRANSFER], e.T_FAR]
    home = layout.ports[far, col.PORT_NODE] == layout.work.dst[extents[:, e.E_TASK]]
    found: Int64s = extents[home]
    return found


def _percentile_us(tables: e.Engine, quantity: int, fraction: float) -> float | None:
    """Return the upper edge of the bucket that holds the quantile; None without samples."""
    counts = np.cumsum(tables.histograms[quantity])
    if counts[-1] == 0:
        return None
    bucket = int(np.searchsorted(counts, fraction * counts[-1]))
    most_ns = int(tables.extremes[quantity, e.MOST])
    return min((bucket + 1) * e.HISTOGRAM_NS, most_ns) / 1e3


def _measures(
    tables: e.Engine, drops: Mapping[str, int], cpu_ns: int
) -> dict[str, int | float | None]:
    counters, wall_ns = tables.counters, int(tables.progress[e.PROGRESS_NS])
    tasks = tables.tasks[tables.tasks[:, e.KIND] == MESSAGE]
    measures: dict[str, int | float | None] = {
        "wall_s": wall_ns / 1e9,
        "cpu_share": cpu_ns / (wall_ns + _LEAD_NS),
        "zero_monotonic_ns": int(tables.numbers[e.N_ZERO]),
        "interrupted": int(counters[e.OUTCOME] == e.STOPPED),
        "lost_bytes": int((tasks[:, e.SENT] - tasks[:, e.GOT]).sum()),
    }
    for name, index in _COUNTED.items():
        measures[name] = int(counters[index])
    for cause in CAUSES[1:]:
        measures[f"drops_{cause}"] = drops[f"{cause}_frames"]
    measures["drops_queue"] = drops.get("queue_frames", 0)
    for name, quantity in _DISTRIBUTIONS.items():
        samples, total_ns, most_ns = tables.extremes[quantity].tolist()
        measures[f"{name}_mean_us"] = total_ns / samples / 1e3 if samples else None
        measures[f"{name}_p50_us"] = _percentile_us(tables, quantity, 0.5)
        measures[f"{name}_p99_us"] = _percentile_us(tables, quantity, 0.99)
        measures[f"{name}_max_us"] = most_ns / 1e3 if samples else None
    return measures


def _error(
    layout: Layout,
    tables: e.Engine,
    drops: Mapping[str, int],
    faults: Sequence[Fault],
    measures: Mapping[str, int | float | None],
) -> FluxbedError | None:
    """Return why the loop ended, where it should not have; under faults it may have to."""
    counters, outcome = tables.counters, int(tables.counters[e.OUTCOME])
    if outcome in (e.FINISHED, e.STOPPED):
        return None
    done, total = int(counters[e.DONE]), len(tables.tasks)
    where = f"{done} of {total} tasks done"
    if outcome == e.LOST and faults:
        _, port, far = tables.transfers[counters[e.CULPRIT_ROW], [e.T_TASK, e.T_PORT, e.T_FAR]]
        why = f"passes nothing under {', '.join(fault.text for fault in faults)}"
        return blocked(layout, int(counters[e.CULPRIT]), int(port), int(far), why)
    if outcome == e.STALLED or (outcome == e.OVERDUE and faults):
        columns = [e.READY, e.START, e.END]
        times = tables.tasks[:, columns].T.copy()
        times[0] = np.where(tables.tasks[:, e.MISSING] == 0, times[0], NONE)
        admitted = tables.tasks[:, e.SINCE] if layout.nic_buffer_bytes is not None else None
        return stalled(layout, times, admitted)
    if outcome == e.LOST:
        return _lost(layout, tables, drops, measures)
    if outcome == e.FULL:
        table = e.TABLES[counters[e.FULL_TABLE]]
        what, why = "the recording had to stop", f"its table of {table} is full"
        return FluxbedError(what, where, why, "raise the dilation: this machine does not keep up")
    limit_s = tables.numbers[e.N_LIMIT] / 1e9
    what, why = "the run is not over", f"its limit of {limit_s:.1f} s on the wall has passed"
    return MachineError(what, where, why, "raise the dilation, or leave the machine more alone")


def _lost(
    layout: Layout,
    tables: e.Engine,
    drops: Mapping[str, int],
    measures: Mapping[str, int | float | None],
) -> FluxbedError:
    """Return what to say of a frame that never arrived: the machine's fault, or a broken fabric."""
    iteration, message = divmod(int(tables.counters[e.CULPRIT]), layout.graph.tasks)
    where = f"iteration {iteration}"
    what = f"a frame of message {message} was lost {e.MOST_TRIES} times"
    late = guard_outrun(measures, int(tables.numbers[e.N_GUARD]), 1.0)
    if late and isinstance(layout.program, TimedProgram):
        why = f"frames left up to {measures['lateness_max_us'] or 0:.0f} us late for their slot"
        fix = "raise the dilation, or leave the machine more alone"
        return MachineError(what, where, why, fix)
    counted = ", ".join(f"{cause} {drops[f'{cause}_frames']}" for cause in CAUSES[1:])
    why = f"the crossbar dropped frames ({counted}) or the host did"
    return CheckError(what, where, why, "look for what changed the circuits")
