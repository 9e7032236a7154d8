"""The simulator: the dispatcher on a virtual clock.

Both `simulate` and the emulator obey the same model. A transfer lasts ceil(bytes * 8e9 / rate_bps);
`latency_ns` later its last byte has arrived, and `notify_ns` after that the dispatcher knows. An
output sends the messages granted to it one by one, each once it is ready and its circuit is up.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from scheduler.dispatch import _kernels_columns as col
from scheduler.dispatch.layout import new_state, prepare
from scheduler.dispatch.records import circuits_of, new_lines, new_progress
from scheduler.dispatch.stalls import stalled
from scheduler.kernel import interpreted
from scheduler.model.program import ReactiveProgram, TimedProgram
from scheduler.model.taskgraph import MESSAGE
from scheduler.model.timeline import NONE, Timeline, Transfers
from topologies.errors import UsageError

if TYPE_CHECKING:
    from scheduler.dispatch._kernels_events import Progress
    from scheduler.dispatch._kernels_grants import Lines
    from scheduler.dispatch.layout import Layout
    from scheduler.model.program import Program
    from scheduler.model.taskgraph import Int64s, TaskGraph
    from topologies.fabric import Fabric

__all__ = ["Phases", "iteration_ends", "simulate", "simulate_phases"]


class Phases(NamedTuple):
    """The steady state of a timed program over its start phases, in ns.

    `phase_ns` and `each_ns` have one value per phase.
    """

    mean_ns: float
    least_ns: float
    most_ns: float
    phase_ns: tuple[int, ...]
    each_ns: tuple[float, ...]


def _run_grants(layout: Layout) -> tuple[Progress, Lines, Int64s]:
    """Run a program that grants messages: what became of its tasks, and the log of circuits."""
    from scheduler.dispatch._kernels_grants import run_grants

    progress = new_progress(layout)
    lines, log, size = new_lines(layout)
    program, run = layout.program, run_grants
    plain = isinstance(program, ReactiveProgram) and not hasattr(program.function, "py_func")
    if isinstance(program, ReactiveProgram) and plain:
        run = interpreted(run_grants)
        state = new_state(layout, policy=program.function)
    else:
        state = new_state(layout)
    log, size = run(state, layout.work, layout.route, progress, lines, log, size)
    if progress.tally[-1] < len(layout.work.kind):
        raise stalled(layout, progress.times, progress.admitted)
    return progress, lines, log[:size]


def _simulate_grants(layout: Layout) -> Timeline:
    progress, lines, log = _run_grants(layout)
    ready, start, end = progress.times
    circuits, place = circuits_of(log)
    task = np.flatnonzero(layout.work.kind == MESSAGE)
    task = task[np.lexsort((task, start[task]))]
    port, circuit = lines.port_of[task], lines.circuit_of[task]
    transfers = Transfers(
        task=task,
        hop=np.zeros(len(task), np.int64),
        from_node=layout.work.src[task],
        to_node=layout.work.dst[task],
        plane=layout.ports[port, col.PORT_PLANE],
        circuit=np.where(circuit >= 0, place[circuit], NONE) if len(log) else circuit,
        size_bytes=layout.work.size_bytes[task],
        start_ns=start[task],
        end_ns=end[task],
    )
    return Timeline(
        iterations=layout.iterations,
        ready_ns=ready,
        start_ns=start,
        end_ns=end,
        transfers=transfers,
        circuits=circuits,
    )


def simulate(
    graph: TaskGraph,
    fabric: Fabric,
    program: Program,
    *,
    iterations: int = 12,
    quantum_bytes: int = 0,
    guard_ns: int | None = None,
    lookahead_ns: int = 0,
    nic_buffer_bytes: int | None = None,
    gather_ns: int = 0,
) -> Timeline:
    """Execute `iterations` iterations of `program` on a virtual clock, to the nanosecond.

    `quantum_bytes` and `guard_ns` matter to timed programs only: messages move in frames of so many
    bytes (0: bytes flow), and no frame is sent in the last `guard_ns` of a slot (None: as the
    program says). `nic_buffer_bytes` is how much of its own messages each NIC holds (None: without
    end); a message waits for room as `scheduler.model.admission` says. A reactive policy decides of
    all that happens within `gather_ns` of an event (or its program's, if that is more) at once,
    when the last of it has happened: 0 is what happens at the same instant. Raises `UsageError`
    where workload, fabric and program do not fit, `StalledError` naming the blocked operation where
    one waits for a circuit, or for room, that will not come. A reactive policy that is a plain
    Python function runs uncompiled, and slowly.
    """
    layout = prepare(
        graph,
        fabric,
        program,
        iterations=iterations,
        lookahead_ns=lookahead_ns,
        nic_buffer_bytes=nic_buffer_bytes,
        gather_ns=gather_ns,
    )
    if isinstance(program, TimedProgram):
        from scheduler.dispatch.timed import simulate_timed

        return simulate_timed(layout, quantum_bytes=quantum_bytes, guard_ns=guard_ns)
    return _simulate_grants(layout)


def iteration_ends(
    graph: TaskGraph,
    fabric: Fabric,
    program: Program,
    *,
    iterations: int = 12,
    quantum_bytes: int = 0,
    guard_ns: int | None = None,
    lookahead_ns: int = 0,
    nic_buffer_bytes: int | None = None,
    gather_ns: int = 0,
) -> Int64s:
    """Simulate without keeping records: when each iteration ended, ns, shape (iterations,).

    The same times as `simulate`'s, for searches over parameters.
    """
    layout = prepare(
        graph,
        fabric,
        program,
        iterations=iterations,
        lookahead_ns=lookahead_ns,
        nic_buffer_bytes=nic_buffer_bytes,
        gather_ns=gather_ns,
    )
    if isinstance(program, TimedProgram):
        from scheduler.dispatch.timed import run_timed

        progress = run_timed(layout, quantum_bytes=quantum_bytes, guard_ns=guard_ns)[0]
    else:
        progress = _run_grants(layout)[0]
    ends: Int64s = progress.times[2].reshape(iterations, -1).max(axis=1)
    return ends


def simulate_phases(
    graph: TaskGraph,
    fabric: Fabric,
    program: TimedProgram,
    *,
    phases: int = 16,
    iterations: int = 12,
    skip: int = 2,
    quantum_bytes: int = 0,
    guard_ns: int | None = None,
    nic_buffer_bytes: int | None = None,
) -> Phases:
    """Return the steady-state iteration of a timed program over start phases spread evenly.

    A workload does not begin where the cycle does, so its time depends on the phase: phase k of n
    is k * period_ns // n later than the program's own. The steady state is (end_n - end_k)/(n - k)
    with k = `skip`.
    """
    if phases < 1 or not 0 < skip < iterations:
        what = f"phases={phases}, skip={skip}, iterations={iterations}"
        why = "there is at least one phase, and 0 < skip < iterations"
        raise UsageError(what, "simulation", why, "correct them")
    offsets = tuple(
        (program.phase_ns + k * program.period_ns // phases) % program.period_ns
        for k in range(phases)
    )
    each = []
    for phase_ns in offsets:
        ends = iteration_ends(
            graph,
            fabric,
            dataclasses.replace(program, phase_ns=phase_ns),
            iterations=iterations,
            quantum_bytes=quantum_bytes,
            guard_ns=guard_ns,
            nic_buffer_bytes=nic_buffer_bytes,
        )
        each.append(float(ends[-1] - ends[skip - 1]) / (iterations - skip))
    return Phases(sum(each) / phases, min(each), max(each), offsets, tuple(each))
