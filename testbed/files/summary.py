"""summary.json: what a run amounts to, in numbers a person would quote.

The formulas are in `scheduler.model.metrics.measure`. Beyond those:

| field | meaning |
|---|---|
| lower_bound_ns, proven_optimal | what the plan promises |
| nic_peak_bytes_eager, _paced | largest peak of any node, transit included (`nic.parquet`) |
| nic_buffer_bytes | what each NIC holds of its own messages (`--nic-buffer`); null: no limit |
| reorder_bytes | largest reorder peak of any node |
| drops | frames the planes dropped, by cause; null in a simulation, which has no frames |
| frames_resent, frames_discarded | sent again; thrown away because one before them was missing |
| pace_kept | false: this machine did not keep up, the numbers are not the fabric's (emulation) |
| perturbed | true: durations or sizes differed from what was planned (`jitter` of the manifest) |
| replanning | the same with plans made anew where ranks drift (`simulate --replan`) |
| faulted | true: `--fault` was given, the numbers are those of a degraded fabric |
| faults | what each fault did |
| remarks | sentences about what makes a number above mean something else than it seems to |
| predicted_iteration_ns | simulated with the frames and guards of this run (emulation only) |
| predicted_ideal_iteration_ns | simulated without them (emulation only) |

Whatever is unknown is null, never 0; of a run that failed everything is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from msgspec import Struct

from testbed.files.codec import json_schema

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scheduler.model.nic import Injection, NicAccount
    from scheduler.model.taskgraph import TaskGraph
    from scheduler.model.timeline import Timeline
    from testbed.files.plan import Prediction
    from topologies import Fabric

__all__ = [
    "Drops",
    "FaultEffect",
    "Percentiles",
    "Replanning",
    "Status",
    "Summary",
    "summarise",
    "summary_schema",
]

_MOST_UNLIKE: Final = 0.02
_MEASURED_BELOW: Final = 0.999  # clocks and rates of an emulation are not exact

Status: TypeAlias = Literal["ok", "failed", "stalled", "interrupted"]


class Drops(Struct, kw_only=True):
    """Frames dropped by the crossbars, by cause, and by full queues of packet planes."""

    dark: int | None = None
    unconnected: int | None = None
    conflict: int | None = None
    queue: int | None = None


class Percentiles(Struct, kw_only=True):
    """Of achieved minus planned up, in ns."""

    p50: float | None = None
    p99: float | None = None


class FaultEffect(Struct, kw_only=True):
    """What one fault did: frames it cost, and what it delayed, in virtual bytes and ns.

    `frames_resent` includes those behind a lost one, which go-back-N sends again. `delayed` counts
    circuits that came late, or computations and frames that a paused host held back.
    """

    fault: str
    frames_lost: int = 0
    bytes_lost: int = 0
    frames_resent: int = 0
    delayed: int = 0
    delay_ns: int = 0
    delay_most_ns: int = 0


class Replanning(Struct, kw_only=True):
    """What the execution would be if it were planned anew, and how often that happened.

    A new plan was made where a rank's computing drifted by more than `threshold` (0.1: 10 %) from
    what the plan in force assumed. It took over `planning_ns` later, once the iteration under way
    had ended everywhere: before the iterations `takeovers`, counted from 0. Both costs are in
    `iteration_ns`, the mean of those after the skipped, and `iterations_ns`.
    """

    threshold: float
    planning_ns: int
    takeovers: list[int]
    iteration_ns: float
    iterations_ns: list[int]


class Summary(Struct, kw_only=True):
    """The numbers of a run; null where unknown. Field by field in the module's documentation."""

    scheduler: str
    status: Status
    iteration_ns: float | None = None
    iterations_ns: list[int | None] | None = None
    lower_bound_ns: float | None = None
    proven_optimal: bool | None = None
    nic_peak_bytes_eager: int | None = None
    nic_peak_bytes_paced: int | None = None
    nic_buffer_bytes: int | None = None
    reconfigurations: float | None = None
    dark_fraction: float | None = None
    circuit_utilisation: float | None = None
    exposed_comm_ns: float | None = None
    messages: int | None = None
    bytes: int | None = None
    drops: Drops
    lost_bytes: int | None = None
    reorder_bytes: int | None = None
    schedule_error_ns: Percentiles
    predicted_iteration_ns: float | None = None
    predicted_ideal_iteration_ns: float | None = None
    frames_resent: int | None = None
    frames_discarded: int | None = None
    pace_kept: bool | None = None
    perturbed: bool | None = None
    replanning: Replanning | None = None
    faulted: bool | None = None
    faults: list[FaultEffect] | None = None
    remarks: list[str] | None = None

    @classmethod
    def unfinished(cls, scheduler: str, status: Status) -> Summary:
        """Return the summary of a run that did not finish: nothing is known."""
        return cls(
            scheduler=scheduler, status=status, drops=Drops(), schedule_error_ns=Percentiles()
        )


def summary_schema() -> bytes:
    """Write the JSON Schema of summaries."""
    return json_schema("The summary of a run", "summary", Summary)


def summarise(
    graph: TaskGraph,
    fabric: Fabric,
    timeline: Timeline,
    accounts: Mapping[Injection, NicAccount],
    *,
    scheduler: str,
    rank_to_node: Sequence[int],
    skip: int,
    promised: Prediction,
    nic_buffer_bytes: int | None = None,
    predicted_ns: float | None = None,
    predicted_ideal_ns: float | None = None,
    pace_kept: bool | None = None,
    faults: Sequence[FaultEffect] = (),
    replanning: Replanning | None = None,
) -> Summary:
    """Summarise a finished execution; `accounts` are its NICs by injection."""
    from scheduler.model.metrics import measure

    metrics = measure(graph, fabric, timeline, rank_to_node=rank_to_node, skip=skip)
    counts = {
        cause: None if (count := timeline.measures.get(f"drops_{cause}")) is None else int(count)
        for cause in ("dark", "unconnected", "conflict", "queue")
    }
    measures = timeline.measures
    lost, again, discarded = (
        None if (count := measures.get(name)) is None else int(count)
        for name in ("lost_bytes", "frames_resent", "frames_discarded")
    )
    return Summary(
        scheduler=scheduler,
        status="ok",
        iteration_ns=metrics.iteration_ns,
        iterations_ns=list(metrics.iterations_ns),
        lower_bound_ns=promised.lower_bound_ns,
        proven_optimal=promised.proven_optimal,
        nic_peak_bytes_eager=int(accounts["eager"].peak_bytes.max()),
        nic_peak_bytes_paced=int(accounts["paced"].peak_bytes.max()),
        nic_buffer_bytes=nic_buffer_bytes,
        reconfigurations=metrics.reconfigurations,
        dark_fraction=metrics.dark_fraction,
        circuit_utilisation=metrics.circuit_utilisation,
        exposed_comm_ns=metrics.exposed_comm_ns,
        messages=metrics.messages,
        bytes=metrics.bytes,
        drops=Drops(**counts),
        lost_bytes=metrics.lost_bytes if lost is None else lost,
        reorder_bytes=int(accounts["eager"].reorder_peak_bytes.max()),
        schedule_error_ns=Percentiles(
            p50=metrics.schedule_error_p50_ns, p99=metrics.schedule_error_p99_ns
        ),
        predicted_iteration_ns=predicted_ns,
        predicted_ideal_iteration_ns=predicted_ideal_ns,
        frames_resent=again,
        frames_discarded=discarded,
        pace_kept=pace_kept,
        perturbed=graph.variation is not None,
        replanning=replanning,
        faulted=bool(faults),
        faults=list(faults),
        remarks=[
            *_below_bound(graph, timeline, metrics.iteration_ns, promised),
            *_unlike_ideal(predicted_ns, predicted_ideal_ns),
        ],
    )


def _below_bound(
    graph: TaskGraph, timeline: Timeline, iteration_ns: float | None, promised: Prediction
) -> list[str]:
    """Say where an iteration is shorter than its bound; a measured one may be by a little.

    The bound is of the period that an endless execution settles to. What is executed may be too
    short for that: computations that wait for no message run ahead, circuits that stand at the
    start are never missed, and a few iterations are over before the rest has to wait for them.
    """
    bound_ns = promised.lower_bound_ns
    allowed = 1 if timeline.origin == "simulated" else _MEASURED_BELOW
    if graph.variation is not None or not iteration_ns or not bound_ns:
        return []
    if iteration_ns >= bound_ns * allowed - 1:
        return []
    less = f"{1 - iteration_ns / bound_ns:.2%}"
    why = f"{timeline.iterations} iterations do not settle to the period that the bound is of"
    fix = "execute more with -n, or skip more with --skip"
    return [f"the iteration is {less} shorter than its lower bound, because {why}: {fix}"]


def _unlike_ideal(predicted_ns: float | None, ideal_ns: float | None) -> list[str]:
    """Say where what the emulation does differently from the ideal fabric shows."""
    if not predicted_ns or not ideal_ns or abs(predicted_ns / ideal_ns - 1) <= _MOST_UNLIKE:
        return []
    more, far = predicted_ns > ideal_ns, abs(predicted_ns / ideal_ns - 1)
    what = f"with this run's frames, guard and window of simultaneity {far:.1%} "
    what += "more than the ideal iteration" if more else "less than the ideal iteration"
    return [f"{what} is predicted: hold the measurement against predicted_iteration_ns"]
