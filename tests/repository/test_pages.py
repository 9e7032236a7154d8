"""The pages of docs/results say what their tables hold."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from experiments.pages import page_of
from experiments.pages.tables import cells, middle, ratios, time_of
from testbed.sweep import read_experiment
from testbed.sweep.point import quantity
from testbed.sweep.store import Outcome, table_of

if TYPE_CHECKING:
    from testbed.sweep import Point

ROOT = Path(__file__).parents[2]
EXPERIMENTS = sorted((ROOT / "experiments").glob("*.toml"))
TABLES = sorted((ROOT / "docs" / "results").glob("*.parquet"))


def made_up(point: Point) -> dict[str, Any]:
    """Return results that depend on scheduler and tau, and look like those of a sweep."""
    base = str(point["scheduler"]).split(",")[0].split(":")[-1]
    delay = quantity(point.settings.get("topology.delay", "100us"))
    assert delay is not None
    factor = {"flux": 1.0, "packet-ideal": 0.5, "static": 3.0, "bvn": 4.0}.get(base, 2.0)
    iteration_ns = factor * (1e6 + delay[1])
    result: dict[str, Any] = {
        "iteration_ns": iteration_ns,
        "lower_bound_ns": 0.9 * iteration_ns,
        "proven_optimal": base == "flux",
        "nic_peak_bytes_eager": 0 if base == "flux" else 1000,
        "nic_peak_bytes_paced": 500,
        "reconfigurations": 100.0,
        "dark_fraction": 0.1,
        "ranks": 8,
        "tasks": 100,
        "compute_window_ns": 1e5,
        "delay_over_window": delay[1] / 1e5,
        "peers_per_port": int(point.get("synth.tp", 4)) / int(point.get("topology.planes", 2)),
        "plan_wall_s": 0.25,
    }
    if point.mode == "run":
        result |= {
            "predicted_iteration_ns": iteration_ns / 1.01, "difference": 0.01, "lost_bytes": 0,
            "dilation": 100.0, "pace": "kept",
        }  # fmt: skip
    return result


def swept(path: Path, every: int = 1) -> tuple[Any, list[Point], pl.DataFrame]:
    experiment = read_experiment(path)
    points = experiment.points(path)
    outcomes = [
        Outcome(settings=point.settings, result={"status": "ok", **made_up(point)})
        for point in points[::every]
    ]
    return experiment, points, table_of(list(zip(points[::every], outcomes, strict=True)))


def page_from(path: Path, every: int = 1) -> str:
    return " ".join(page_of(path.stem, *swept(path, every)).split())


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_every_experiment_has_a_page_whatever_is_there_of_it(path: Path) -> None:
    whole = page_from(path)
    experiment = read_experiment(path)
    assert whole.startswith(f"# {experiment.title} ## What was run fluxbed sweep ")
    assert "were not run" not in whole
    assert not re.search(r"\bnan\b", whole)
    for spec in experiment.figures:
        assert f"../figures/{path.stem}-{spec.name}.svg" in whole
    assert "The others were not run" in page_from(path, every=7)


def test_the_headline_names_ratios_and_what_was_on_packets() -> None:
    page = page_from(ROOT / "experiments" / "flux-headline.toml")
    assert "| bvn, aligned, slots of 10 tau | 4x |" in page
    assert "| rotor-direct-tuned, best slot and phase | 2x |" in page
    assert re.search(
        r"\| the best other in each cell \| 2x \| .*tau \w+ \([^)]*\) \| 90 % \|", page
    )
    assert "All of 29 points are within 2 % of their prediction" in page
    assert "bytes lost in all of them together: 0." in page
    assert page.count("| +1.00 % | 0 | 100 | kept |") == 29


def test_cells_and_ratios() -> None:
    rows = [
        {"mode": "simulate", "status": "ok", "topology.delay": delay, "scheduler": name,
         "phases": phases, "iteration_ns": value, "iteration_mean_ns": mean}
        for delay, name, phases, value, mean in (
            ("1us", "flux", None, 10.0, None), ("1us", "rotor", 16, 30.0, 40.0),
            ("1ms", "flux", None, 20.0, None), ("1ms", "bvn", None, 0.0, None),
        )
    ]  # fmt: skip
    grouped = cells(pl.DataFrame(rows))
    assert [sorted(cell) for cell in grouped] == [["flux", "rotor"], ["bvn", "flux"]]
    assert [ratio for ratio, _ in ratios(grouped, "rotor")] == [4.0]
    assert [ratio for ratio, _ in ratios(grouped, "flux", to="bvn")] == [float("inf")]
    assert time_of(grouped[0]["rotor"]) == 40.0
    assert middle([3, 1, 2, 10]) == 2.5


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_the_committed_page_is_what_its_table_says(path: Path) -> None:
    file = ROOT / "experiments" / f"{path.stem}.toml"
    experiment = read_experiment(file)
    page = page_of(path.stem, experiment, experiment.points(file), pl.read_parquet(path))
    assert path.with_suffix(".md").read_text("utf-8") == page
