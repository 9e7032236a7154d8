"""Runs side by side: ratios to the first finished one, and what was predicted against what came."""

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
    """A run beside the reference, which is the first that finished.

    `ratios` are its numbers over the reference's, by field of the summary; None where one is
    unknown or the reference's is 0. `off` is measured over predicted minus 1 (None: nothing was
    predicted). Of a run that did not end well `failure` says why, and all numbers are None.
    """

    run: Run
    reference: bool
    failure: str | None
    values: dict[str, float | None]
    ratios: dict[str, float | None]
    predicted_ns: float | None
    off: float | None


def compare_runs(runs: Sequence[Run]) -> list[Comparison]:
    """Compare runs with the first of them that finished.

    A measured run without a prediction of its own is held against the simulated run of the same
    plan, where there is one among them. NIC peaks are compared only at equal windows. Raises
    `UsageError` where none ended well, or for runs of different messages.
    """
    if not runs:
        why = "a comparison needs runs"
        raise UsageError("no run is given", "compare", why, "name at least one run directory")
    finished = [run for run in runs if run.manifest.status == "ok"]
    if not finished:
        why = f"{runs[0].path} {_failure(runs[0])}"
        raise UsageError("no run ended well", "compare", why, "name a finished run")
    first = finished[0]
    for run in runs:
        _check(run, first)
    predictions = {
        _identity(run): run.summary.iteration_ns
        for run in finished
        if run.manifest.origin == "simulated"
    }
    return [_compare(run, first, predictions.get(_identity(run))) for run in runs]


def _identity(run: Run) -> str:
    return run.manifest.files.get("plan.json", "")


def _check(run: Run, first: Run) -> None:
    if run.manifest.expansion.sha256 != first.manifest.expansion.sha256:
        why = f"its messages differ from those of {first.path}"
        fix = "use one workload for all"
        raise UsageError("the runs cannot be compared", str(run.path), why, fix)


def _failure(run: Run) -> str | None:
    """Say how a run ended that did not end well."""
    manifest = run.manifest
    if manifest.status == "ok":
        return None
    error = manifest.error
    return manifest.status if error is None else f"{manifest.status}: {error.what} ({error.why})"


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
    return Comparison(
        run=run,
        reference=run is first,
        failure=_failure(run),
        values=values,
        ratios=ratios,
        predicted_ns=expected,
        off=off,
    )
