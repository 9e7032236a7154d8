from __future__ import annotations

import base64
import csv
import io
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model.metrics import merged
from testbed.files.rundir import read_run
from testbed.report import render, write_comparison, write_report
from testbed.report.charts import columns, histogram, ticks
from testbed.report.data import plane_shares, tiles, viewer_data
from testbed.report.intervals import without
from topologies import UsageError


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, make_run: Any) -> list[Path]:
    home = tmp_path_factory.mktemp("runs")
    made = [Path(make_run(home / kind, kind)) for kind in ("in-order", "rotating")]
    for path in made:
        write_report(path)
    return made


def page(path: Path) -> str:
    return (path / "report.html").read_text()


def numbers(html: str) -> dict[str, str]:
    return dict(re.findall(r'data-key="(\w+)" data-value="([^"]*)"', html))


def test_the_numbers_are_those_of_the_summary(runs: list[Path]) -> None:
    for path in runs:
        summary = json.loads((path / "summary.json").read_bytes())
        shown = numbers(page(path))
        assert len(shown) == 8
        for key, text in shown.items():
            assert float(text) == summary[key]


def test_the_page_needs_nothing_else(runs: list[Path]) -> None:
    for path in runs:
        html = page(path)
        assert not re.findall(r"""(?:src|href)=["'](?!data:)""", html)
        assert "http://" not in html.replace("http://www.w3.org", "")
        assert "https://" not in html
        assert read_run(path).manifest.files["report.html"]


def test_the_viewer_is_given_every_interval(runs: list[Path]) -> None:
    for path in runs:
        run = read_run(path)
        data = viewer_data(run)
        tables = run.tables()
        by_kind: dict[str, int] = {}
        for lane in data["lanes"]:
            start = np.frombuffer(base64.b64decode(lane["start"]), "<f8")
            length = np.frombuffer(base64.b64decode(lane["length"]), "<f8")
            assert len(start) == len(length) == lane["count"]
            assert (length >= 0).all()
            assert (start[1:] >= start[:-1] + length[:-1]).all()
            by_kind[lane["kind"]] = by_kind.get(lane["kind"], 0) + lane["count"]
        made = int((tables["circuits"]["dark_ns"] >= 0).sum())
        assert by_kind["compute"] == int((tables["tasks"]["kind"] == "compute").sum())
        assert by_kind["send"] == len(tables["transfers"]["task"])
        assert by_kind["circuit"] == len(tables["circuits"]["plane"]) + made


def test_what_ranks_wait_adds_up_to_the_exposed_time(runs: list[Path]) -> None:
    run = read_run(runs[0])
    ends = run.timeline().iteration_ends_ns
    waited = 0.0
    for lane in viewer_data(run)["lanes"]:
        if lane["kind"] == "wait":
            start = np.frombuffer(base64.b64decode(lane["start"]), "<f8")
            end = start + np.frombuffer(base64.b64decode(lane["length"]), "<f8")
            inside = np.clip(end, ends[0], ends[-1]) - np.clip(start, ends[0], ends[-1])
            waited += inside.sum()
    assert waited / 4 / 2 == pytest.approx(run.summary.exposed_comm_ns)


def test_shares_of_port_time_are_those_of_the_summary(runs: list[Path]) -> None:
    for path in runs:
        run = read_run(path)
        shares = plane_shares(run.fabric(), run.timeline())
        for plane in shares:
            assert sum(plane.values()) - plane["plane"] == pytest.approx(1)
        dark = sum(plane["dark"] for plane in shares) / len(shares)
        assert dark == pytest.approx(run.summary.dark_fraction)
        lit = sum(plane["sending"] + plane["lit and idle"] for plane in shares)
        sending = sum(plane["sending"] for plane in shares)
        assert sending / lit == pytest.approx(run.summary.circuit_utilisation)


@settings(deadline=None)
@given(
    *[st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)).map(lambda t: (t[0], sum(t))))] * 2
)
def test_intervals_without_others(
    mine: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    arrays = [np.array(each, np.int64).reshape(-1, 2).T for each in (mine, other)]
    begin, end = without(*merged(*arrays[0]), *merged(*arrays[1]))
    covered = {t for a, b in mine for t in range(a, b)} - {t for a, b in other for t in range(a, b)}
    found = [t for a, b in zip(begin.tolist(), end.tolist(), strict=True) for t in range(a, b)]
    assert found == sorted(covered)


def test_a_failed_run_says_why(tmp_path: Path, runs: list[Path]) -> None:
    copy = Path(shutil.copytree(runs[0], tmp_path / "copy"))
    document = json.loads((copy / "manifest.json").read_bytes())
    document["status"] = "stalled"
    document["scheduler"] = "<script>alert(1)</script>"
    error = {"exit": 6, "what": "message 3 waits", "where": "rank 1", "why": "dark", "fix": "x"}
    document["error"] = error
    (copy / "manifest.json").write_text(json.dumps(document))
    for table in copy.glob("*.parquet"):
        table.unlink()
    html = write_report(copy).read_text()
    assert "rank 1: message 3 waits, because dark: x" in html
    assert "<script>alert" not in html
    assert 'id="run-data"' not in html


def test_text_forms_hold_the_summary(runs: list[Path]) -> None:
    summaries = [json.loads((path / "summary.json").read_bytes()) for path in runs]
    records = json.loads(render(runs, "json"))
    for record, summary in zip(records, summaries, strict=True):
        assert record.items() >= summary.items()
    rows = list(csv.DictReader(io.StringIO(render(runs, "csv"))))
    assert [float(row["iteration_ns"]) for row in rows] == [s["iteration_ns"] for s in summaries]
    assert rows[0]["drops.dark"] == ""
    text = render(runs, "md")
    for tile in tiles(read_run(runs[1])):
        assert f"| {tile.name} | {tile.text} |" in text
    with pytest.raises(UsageError, match="the formats are html, md, csv, json"):
        render(runs, "pdf")


def test_charts_cope_with_little() -> None:
    assert ticks(0) == [0.0]
    assert ticks(9.99) == [0.0, 5.0]
    assert "iteration 2: 3 us" in columns([None, 3000.0], 1)
    assert histogram([5.0]).count("<rect") == 40


def test_a_comparison_shows_every_run(runs: list[Path], tmp_path: Path) -> None:
    html = write_comparison(runs, tmp_path / "both.html").read_text()
    assert "<h1>in-order, rotating</h1>" in html
    with pytest.raises(UsageError, match="the page cannot be written"):
        write_comparison(runs, tmp_path / "no" / "where.html")


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update --enable-logging=stderr "
    "--virtual-time-budget=3000 --window-size=1280,900 --dump-dom"
)


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_a_browser_draws_the_page_without_complaint(runs: list[Path], tmp_path: Path) -> None:
    comparison = write_comparison(runs, tmp_path / "both.html")
    for target in (*[path / "report.html" for path in runs], comparison):
        command = [
            str(CHROMIUM), *FLAGS.split(), f"--user-data-dir={tmp_path / 'profile'}",
            target.as_uri(),
        ]  # fmt: skip
        done = subprocess.run(  # noqa: S603 (our own page in the installed browser)
            command, capture_output=True, text=True, timeout=120, check=True
        )
        assert "CONSOLE" not in done.stderr
        if target == comparison:
            continue
        assert re.search(r'<body data-draw-ms="[\d.]+"', done.stdout)
        assert numbers(done.stdout) == numbers(page(target.parent))
        assert done.stdout.count("<option") == 4
        heights = [int(h) for h in re.findall(r'<canvas[^>]*height="(\d+)"', done.stdout)]
        assert len(heights) == 4
        assert min(heights) > 20
