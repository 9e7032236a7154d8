"""Finished runs side by side: ratios to the first, and what was predicted against what came."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from topologies.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from testbed.files.rundir import Run

__all__ = ["RATIOS", "Comparison", "compare_runs"]

RATIOS: Final = (
    "iteration_ns",
    "exposed_comm_ns",
    "nic_peak_bytes_eager",
    "nic_peak_bytes_paced",
    "reconfigurations",
    "circuit_utilisation",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A run beside the first one.

    `ratios` are its numbers over the first's, by field of the summary; None where one is unknown or
    the first is 0. `off` is measured over predicted minus 1 (None: nothing was predicted).
    """

    run: Run
    values: dict[str, float | None]
    ratios: dict[str, float | None]
    predicted_ns: float | None
    off: float | None


def compare_runs(runs: Sequence[Run]) -> list[Comparison]:
    """Compare finished runs with the first of them.

    A measured run without a prediction of its own is held against the simulated run of the same
    plan, where there is one among them. NIC peaks are compared only at equal windows. Raises
    `UsageError` for a run that did not end well, or runs of different messages.
    """
    if not runs:
        why = "a comparison needs runs"
        raise UsageError("no run is given", "compare", why, "name at least one run directory")
    for run in runs:
        _check(run, runs[0])
    predictions = {
        _identity(run): run.summary.iteration_ns
        for run in runs
        if run.manifest.origin == "simulated"
    }
    return [_compare(run, runs[0], predictions.get(_identity(run))) for run in runs]


def _identity(run: Run) -> str:
    return run.manifest.files.get("plan.json", "")


def _check(run: Run, first: Run) -> None:
    where = str(run.path)
    if run.manifest.status != "ok":
        error = run.manifest.error
        why = f"it {run.manifest.status}" if error is None else f"{error.what} ({error.why})"
        raise UsageError("the run did not end well", where, why, "compare finished runs")
    if run.manifest.expansion.sha256 != first.manifest.expansion.sha256:
        why = f"its messages differ from those of {first.path}"
        raise UsageError("the runs cannot be compared", where, why, "use one workload for all")


def _compare(run: Run, first: Run, predicted_ns: float | None) -> Comparison:
    same_window = run.manifest.injection == first.manifest.injection
    values: dict[str, float | None] = {}
    ratios: dict[str, float | None] = {}
    for name in RATIOS:
        own, other = getattr(run.summary, name), getattr(first.summary, name)
        values[name] = own
        known = own is not None and other and (same_window or not name.startswith("nic_"))
        ratios[name] = own / other if known else None
    measured = run.manifest.origin == "emulated"
    expected = run.summary.predicted_iteration_ns or (predicted_ns if measured else None)
    reached = run.summary.iteration_ns
    off = reached / expected - 1 if expected and reached is not None else None
    return Comparison(run=run, values=values, ratios=ratios, predicted_ns=expected, off=off)
