"""Whether a finished run obeys the model, from its records alone.

Everything is worked out again from the workload's graph, the fabric and the program: what tables
must say about tasks, when things may happen, what each port carried and when, which circuits the
program asks for in which order, what waited in the network cards, and the summary.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from scheduler.check import Violation, check_plan, examples
from scheduler.check_circuits import check_circuits
from scheduler.check_faults import wrong_effects
from scheduler.check_transfers import check_transfers
from scheduler.model.admission import as_admitted
from scheduler.model.metrics import measure
from scheduler.model.nic import FEEDBACK_NS, MTU_BYTES, account_nics
from scheduler.model.program import TimedProgram
from scheduler.model.taskgraph import COMPUTE, KINDS, MARKER, MESSAGE, ORIGINS
from scheduler.model.timeline import NONE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from scheduler.model.nic import Injection, NicAccount
    from scheduler.model.program import Program
    from scheduler.model.taskgraph import TaskGraph
    from scheduler.model.timeline import Timeline
    from topologies.fabric import Fabric

__all__ = ["Record", "check_run"]

_Table: TypeAlias = "Mapping[str, NDArray[Any]]"
_RELATIVE: float = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A finished run as it was recorded.

    `graph` is the workload expanded anew; `tables` the six tables by name, columns as arrays (null:
    `NONE`); `timeline` the execution they hold; `summary` the numbers claimed, nested ones as
    mappings. `tolerance_ns` is how far an emulation's times may be off; a simulation has 0.
    `injection` is the one whose queues are recorded, `nic_buffer_bytes` what each NIC held at most
    (None: anything). `faults` are those the run was made to bear,
    as they were written: what each may have done is allowed. `pace_kept` says whether the machine
    kept up (None: nothing had to), `guard_outrun` whether frames left so late that their circuit
    may have been gone.
    """

    graph: TaskGraph
    fabric: Fabric
    program: Program
    rank_to_node: Sequence[int]
    timeline: Timeline
    tables: Mapping[str, _Table]
    summary: Mapping[str, Any]
    skip: int
    tolerance_ns: int = 0
    injection: Injection = "eager"
    feedback_ns: int = FEEDBACK_NS
    mtu_bytes: int = MTU_BYTES
    quantum_bytes: int = 0
    lookahead_ns: int = 0
    nic_buffer_bytes: int | None = None
    faults: Sequence[str] = ()
    pace_kept: bool | None = None
    guard_outrun: bool = False
    promised: Mapping[str, Any] = field(default_factory=dict)

    def bears(self, *kinds: str) -> bool:
        """Say whether a fault of one of `kinds` was there."""
        return any(text.partition(":")[0].strip() in kinds for text in self.faults)


def check_run(record: Record) -> list[Violation]:
    """Return how a finished run breaks the model or contradicts itself; [] if it does not.

    Later groups of rules presuppose earlier ones, so a run whose tables do not describe its
    workload gets only that answer. O(records * log records).
    """
    violations = check_plan(record.program, record.graph, record.fabric)
    if not violations:
        violations = [
            *examples("tables describe the workload", _wrong_tasks(record)),
            *examples("tables describe the workload", _wrong_deps(record)),
        ]
    if not violations:
        violations = examples("records are whole", _broken_records(record))
    if violations:
        return violations
    admitted = as_admitted(record.graph, record.fabric, record.timeline, record.nic_buffer_bytes)
    violations = [
        *examples("dependencies hold", _early(record)),
        *examples("a message has room in its NIC", _crowded(record, admitted)),
        *examples("durations hold", _wrong_durations(record)),
        *examples("a stream runs in order", _overlapping_streams(record)),
        *check_circuits(
            record.graph,
            record.fabric,
            record.program,
            record.timeline,
            record.tables["circuits"],
            tolerance_ns=record.tolerance_ns,
            lookahead_ns=record.lookahead_ns,
            may_be_late=record.bears("late-commands", "late-lock"),
        ),
        *check_transfers(
            record.graph,
            record.fabric,
            record.program,
            admitted,
            tolerance_ns=record.tolerance_ns,
            quantum_bytes=record.quantum_bytes,
            may_be_slow=_held_up(record),
        ),
        *examples("every frame is accounted for", _frames(record)),
    ]
    return violations or _accounts(record)


def _differences(name: str, found: _Table, expected: _Table) -> Iterator[tuple[str, str]]:
    for column, wanted in expected.items():
        if len(found[column]) != len(wanted):
            yield name, f"it has {len(found[column])} rows and not {len(wanted)}"
            return
        for row in np.flatnonzero(found[column] != wanted).tolist():
            what = f"{column} is {_said(found[column][row])} and not {_said(wanted[row])}"
            yield f"{name} row {row}", what


def _said(value: Any) -> str:  # noqa: ANN401 (an int or a word)
    return "null" if value == NONE else str(value)


def _wrong_tasks(record: Record) -> Iterator[tuple[str, str]]:
    graph, n = record.graph, record.timeline.iterations
    kind = np.tile(graph.kind, n)
    message = kind == MESSAGE
    expected = {
        "task": np.arange(n * graph.tasks),
        "base": np.tile(np.arange(graph.tasks), n),
        "kind": np.asarray(KINDS)[kind],
        "iteration": np.repeat(np.arange(n), graph.tasks),
        "op": np.tile(graph.op, n),
        "rank": np.tile(graph.rank, n),
        "stream": np.tile(graph.stream, n),
        "position": np.tile(graph.position, n),
        "src": np.where(message, np.tile(graph.src, n), NONE),
        "dst": np.where(message, np.tile(graph.dst, n), NONE),
        "bytes": np.where(message, graph.sizes_bytes(n), NONE),
        "dur_ns": np.where(kind == COMPUTE, graph.durations_ns(n), NONE),
    }
    yield from _differences("tasks", record.tables["tasks"], expected)


def _wrong_deps(record: Record) -> Iterator[tuple[str, str]]:
    before, after, origin = record.graph.unrolled_arcs(record.timeline.iterations)
    order = np.lexsort((origin, before, after))
    words = np.asarray(ORIGINS)
    expected = {
        "task": after[order],
        "after": before[order],
        "on": np.full(len(order), "end"),
        "origin": words[origin[order]],
    }
    found = record.tables["deps"]
    number = {word: k for k, word in enumerate(ORIGINS)}
    codes = np.asarray([number.get(word, NONE) for word in found["origin"].tolist()], np.int64)
    order = np.lexsort((codes, found["after"], found["task"]))
    yield from _differences("deps", {k: v[order] for k, v in found.items()}, expected)


def _broken_records(record: Record) -> Iterator[tuple[str, str]]:
    """Find ids that lead nowhere, times that are missing, and statuses that say otherwise."""
    timeline, tables, fabric = record.timeline, record.tables, record.fabric
    for name, key in (("transfers", "transfer"), ("circuits", "circuit")):
        rows = tables[name][key]
        if not np.array_equal(rows, np.arange(len(rows))):
            yield name, f"{key} does not number the rows"
    for name in ("ready_ns", "start_ns", "end_ns"):
        missing = np.flatnonzero(getattr(timeline, name) == NONE)
        if len(missing):
            yield f"task {missing[0]}", f"it has no {name}, as {len(missing) - 1} others"
    for task in np.flatnonzero(tables["tasks"]["status"] != "done").tolist():
        yield f"task {task}", f"its status is {tables['tasks']['status'][task]} and not done"
    moved, circuits = timeline.transfers, timeline.circuits
    total = timeline.iterations * record.graph.tasks
    ranges = (
        ("transfer", "task", moved.task, 0, total),
        ("transfer", "plane", moved.plane, 0, len(fabric.planes)),
        ("transfer", "circuit", moved.circuit, NONE, len(circuits.plane)),
        ("transfer", "hop", moved.hop, 0, 2),
        ("transfer", "from_node", moved.from_node, 0, fabric.nodes),
        ("transfer", "to_node", moved.to_node, 0, fabric.nodes),
        ("transfer", "bytes", moved.size_bytes, 1, 2**62),
        ("transfer", "start_ns", moved.start_ns, 0, 2**62),
        ("transfer", "end_ns", moved.end_ns, 0, 2**62),
        ("circuit", "plane", circuits.plane, 0, len(fabric.planes)),
        ("circuit", "up_ns", circuits.up_ns, 0, 2**62),
    )
    for what, column, values, least, beyond in ranges:
        for row in np.flatnonzero((values < least) | (values >= beyond)).tolist():
            yield f"{what} {row}", f"{column} is {_said(values[row])}"
    yield from _broken_ports(record)
    if ((moved.task >= 0) & (moved.task < total)).all():
        kind = record.graph.kind[moved.task % record.graph.tasks]
        for row in np.flatnonzero(kind != MESSAGE).tolist():
            yield f"transfer {row}", f"task {moved.task[row]} is no message"


def _broken_ports(record: Record) -> Iterator[tuple[str, str]]:
    circuits, fabric = record.timeline.circuits, record.fabric
    if ((circuits.plane >= 0) & (circuits.plane < len(fabric.planes))).all():
        ports = np.asarray([plane.ports for plane in fabric.planes])[circuits.plane]
        for port in (circuits.src_port, circuits.dst_port):
            for row in np.flatnonzero((port < 0) | (port >= ports)).tolist():
                yield f"circuit {row}", f"plane {circuits.plane[row]} has no port {port[row]}"


def _early(record: Record) -> Iterator[tuple[str, str]]:
    """A task is ready when the last of what it waits for has ended, and starts no earlier."""
    timeline, tolerance = record.timeline, record.tolerance_ns
    before, after, _ = record.graph.unrolled_arcs(timeline.iterations)
    last = np.zeros(len(timeline.ready_ns), np.int64)
    np.maximum.at(last, after, timeline.end_ns[before])
    for task in np.flatnonzero(np.abs(timeline.ready_ns - last) > tolerance).tolist():
        what = f"it is ready at {timeline.ready_ns[task]} ns, what it waits for ended at "
        yield f"task {task}", f"{what}{last[task]} ns"
    for task in np.flatnonzero(timeline.start_ns < timeline.ready_ns - tolerance).tolist():
        what = f"it starts at {timeline.start_ns[task]} ns and is ready at "
        yield f"task {task}", f"{what}{timeline.ready_ns[task]} ns"


def _crowded(record: Record, admitted: Timeline) -> Iterator[tuple[str, str]]:
    """A message is sent only after its NIC let it in, once those before it left it room."""
    if record.nic_buffer_bytes is None:
        return
    since, start = admitted.ready_ns, record.timeline.start_ns
    for task in np.flatnonzero((since == NONE) | (start < since - record.tolerance_ns)).tolist():
        room = "never" if since[task] == NONE else f"not before {since[task]} ns"
        yield f"task {task}", f"it starts at {start[task]} ns, its NIC has room {room}"


def _wrong_durations(record: Record) -> Iterator[tuple[str, str]]:
    timeline, tolerance = record.timeline, record.tolerance_ns
    kind = np.tile(record.graph.kind, timeline.iterations)
    lasts = timeline.end_ns - timeline.start_ns
    wanted = record.graph.durations_ns(timeline.iterations)
    own = (kind == COMPUTE) | (kind == MARKER)
    paused = record.bears("paused-host")
    longer = (lasts - wanted > tolerance) & (not paused)
    for task in np.flatnonzero(own & (longer | (wanted - lasts > tolerance))).tolist():
        yield f"task {task}", f"it lasts {lasts[task]} ns and not {wanted[task]} ns"
    waited = timeline.start_ns - timeline.ready_ns
    late = (waited > tolerance) & (not paused)
    for task in np.flatnonzero(own & (late | (waited < -tolerance))).tolist():
        yield f"task {task}", f"it starts {waited[task]} ns after it is ready"


def _overlapping_streams(record: Record) -> Iterator[tuple[str, str]]:
    tasks, timeline = record.tables["tasks"], record.timeline
    rows = np.flatnonzero(tasks["stream"] >= 0)
    keys = (tasks["position"], tasks["iteration"], tasks["stream"], tasks["rank"])
    order = rows[np.lexsort([key[rows] for key in keys])]
    same = np.ones(max(len(order) - 1, 0), bool)
    for key in ("rank", "stream"):
        same &= tasks[key][order[1:]] == tasks[key][order[:-1]]
    early = timeline.start_ns[order[1:]] < timeline.end_ns[order[:-1]] - record.tolerance_ns
    for k in np.flatnonzero(same & early).tolist():
        yield f"task {order[k + 1]}", f"it starts before task {order[k]} on its stream has ended"


def _frames(record: Record) -> Iterator[tuple[str, str]]:
    """Frames exist exactly in an emulation; each was received, none dropped."""
    moved, simulated = record.timeline.transfers, record.timeline.origin == "simulated"
    names = ("wall_bytes_sent", "wall_bytes_received", "frames_sent", "frames_received")
    for name in (*names, "frames_dark", "frames_resent"):
        column = getattr(moved, name)
        if simulated != (column is None):
            yield "transfers", f"{name} is {'given' if simulated else 'missing'}"
            return
        if column is not None:
            for row in np.flatnonzero(column < (1 if name in names else 0)).tolist():
                yield f"transfer {row}", f"{name} is {_said(column[row])}"
    if simulated:
        return
    sent, received = moved.frames_sent, moved.frames_received
    again, dark = moved.frames_resent, moved.frames_dark
    assert sent is not None
    assert received is not None
    assert again is not None
    assert dark is not None
    for row in np.flatnonzero((received > sent) | (received < sent - again)).tolist():
        yield f"transfer {row}", f"{received[row]} of {sent[row]} frames were received"
    darkened = record.bears("stuck-dark", "lost-plane")
    excused = np.full(len(dark), fill_value=True) if darkened else _too_late(record)
    for row in np.flatnonzero((dark > 0) & ~excused).tolist():
        yield f"transfer {row}", f"{dark[row]} frames were sent into the dark"
    for cause, count in (record.summary.get("drops") or {}).items():
        owned = cause == "dark" and count and (darkened or count == dark.sum())
        if count != 0 and not owned:
            yield "drops", f"{_said(NONE if count is None else count)} frames, cause {cause}"


def _held_up(record: Record) -> NDArray[np.bool_]:
    """Tell which transfers may have lasted longer than at line rate.

    With faults all of them; else those of which frames were sent again, where the run says that
    pace was not kept.
    """
    again = record.timeline.transfers.frames_resent
    slow = np.full(len(record.timeline.transfers.task), bool(record.faults))
    if again is not None and record.pace_kept is False:
        slow |= again > 0
    return slow


def _too_late(record: Record) -> NDArray[np.bool_]:
    """Tell which transfers may have had frames dropped because this machine was late.

    Only where the run says that pace was not kept and its lateness is larger than the guard, only
    under a program whose slots wait for nobody, and only transfers that last until their circuit
    goes down or longer. The numbers are worthless then; the model is not broken.
    """
    moved, circuits = record.timeline.transfers, record.timeline.circuits
    excused = np.zeros(len(moved.task), bool)
    late = record.pace_kept is False and record.guard_outrun
    if not late or not isinstance(record.program, TimedProgram):
        return excused
    rows = np.flatnonzero(moved.circuit != NONE)
    down = circuits.down_ns[moved.circuit[rows]]
    excused[rows] = (down != NONE) & (moved.end_ns[rows] >= down - record.tolerance_ns)
    return excused


# --- what follows from the times: network cards and the summary


def _accounts(record: Record) -> list[Violation]:
    order: tuple[Injection, Injection] = (
        ("eager", "paced") if record.injection == "eager" else ("paced", "eager")
    )
    accounts = {
        kind: account_nics(
            record.graph,
            record.fabric,
            record.timeline,
            kind,
            feedback_ns=record.feedback_ns,
            mtu_bytes=record.mtu_bytes,
            nic_buffer_bytes=record.nic_buffer_bytes,
        )
        for kind in order
    }
    return [
        *examples("network cards follow from the times", _wrong_nics(record, accounts)),
        *examples("a NIC holds what it can", _overfilled(record, accounts["eager"])),
        *examples("the summary follows from the tables", _wrong_summary(record, accounts)),
        *examples("faults are accounted for", wrong_effects(record.summary, record.faults)),
    ]


def _wrong_nics(
    record: Record, accounts: Mapping[Injection, NicAccount]
) -> Iterator[tuple[str, str]]:
    main, tables = accounts[record.injection], record.tables
    yield from _differences("tasks", tables["tasks"], {"inject_ns": main.inject_ns})
    series = {name: getattr(main, name) for name in ("node", "dst", "t_ns", "bytes")}
    yield from _differences("queues", tables["queues"], series)
    nic = tables["nic"]
    nodes = np.arange(record.fabric.nodes)
    for kind, account in accounts.items():
        rows = np.flatnonzero(nic["injection"] == kind)
        found = {name: column[rows] for name, column in nic.items()}
        names = ("peak_bytes", "transit_peak_bytes", "reorder_peak_bytes", "peak_ns")
        happened = record.timeline.origin == "emulated" and kind == record.injection
        origin = np.full(len(nodes), "executed" if happened else "derived")
        expected = {"node": nodes, "origin": origin}
        expected |= {name: getattr(account, name) for name in names}
        yield from _differences(f"nic {kind}", found, expected)


def _overfilled(record: Record, eager: NicAccount) -> Iterator[tuple[str, str]]:
    """A NIC without transit never holds more than its buffer."""
    if record.nic_buffer_bytes is None:
        return
    own = eager.transit_peak_bytes == 0
    for node in np.flatnonzero(own & (eager.peak_bytes > record.nic_buffer_bytes)).tolist():
        what = f"it holds {eager.peak_bytes[node]} bytes at {eager.peak_ns[node]} ns"
        yield f"node {node}", f"{what}, its buffer {record.nic_buffer_bytes}"


def _wrong_summary(
    record: Record, accounts: Mapping[Injection, NicAccount]
) -> Iterator[tuple[str, str]]:
    metrics = measure(
        record.graph,
        record.fabric,
        record.timeline,
        rank_to_node=record.rank_to_node,
        skip=record.skip,
    )
    names = (
        "iteration_ns", "reconfigurations", "dark_fraction", "circuit_utilisation",
        "exposed_comm_ns", "messages", "bytes", "lost_bytes",
    )  # fmt: skip
    expected: dict[str, Any] = {name: getattr(metrics, name) for name in names}
    expected |= {
        "status": "ok",
        "perturbed": record.graph.variation is not None,
        "iterations_ns": list(metrics.iterations_ns),
        "nic_peak_bytes_eager": int(accounts["eager"].peak_bytes.max()),
        "nic_peak_bytes_paced": int(accounts["paced"].peak_bytes.max()),
        "nic_buffer_bytes": record.nic_buffer_bytes,
        "reorder_bytes": int(accounts["eager"].reorder_peak_bytes.max()),
        "schedule_error_ns": {
            "p50": metrics.schedule_error_p50_ns,
            "p99": metrics.schedule_error_p99_ns,
        },
        "frames_resent": _total(record.timeline.transfers.frames_resent),
        "pace_kept": record.pace_kept,
        **record.promised,
    }
    for name, wanted in expected.items():
        found = record.summary.get(name)
        if not _equal(found, wanted):
            yield f"summary {name}", f"it is {found} and not {wanted}"
    if metrics.lost_bytes:
        yield "summary lost_bytes", f"{metrics.lost_bytes} bytes are lost"


def _total(column: NDArray[np.int64] | None) -> int | None:
    return None if column is None else int(column.sum())


def _equal(found: Any, wanted: Any) -> bool:  # noqa: ANN401 (numbers, words, lists of them)
    if isinstance(found, float) or isinstance(wanted, float):
        if found is None or wanted is None:
            return False
        return bool(abs(found - wanted) <= _RELATIVE * max(abs(found), abs(wanted)))
    if isinstance(wanted, dict) and isinstance(found, dict):
        return all(_equal(found.get(key), value) for key, value in wanted.items())
    return bool(found == wanted)
