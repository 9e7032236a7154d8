from __future__ import annotations

import base64
import csv
import dataclasses
import io
import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from browser import CHROMIUM, Browser
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model.metrics import merged
from testbed.files.excerpt import Excerpt, begin_times, choose_excerpt
from testbed.files.rundir import read_run
from testbed.files.verify import check_run_directory
from testbed.report import render, rewrite_timeline, write_comparison, write_report
from testbed.report.charts import columns, histogram, ticks
from testbed.report.circuits import circuit_uses
from testbed.report.data import _queue_lines, plane_shares, tiles, viewer_data
from testbed.report.intervals import without
from topologies import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator


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


def test_circuits_carry_what_was_sent_in_their_light(runs: list[Path]) -> None:
    for path in runs:
        run = read_run(path)
        fabric, timeline = run.fabric(), run.timeline()
        uses = circuit_uses(fabric, timeline)
        assert sum(use.made for use in uses) == len(timeline.circuits.plane)
        assert sum(use.bytes for use in uses) == run.summary.bytes
        busy_ns = [use.bytes * 8 / 400 for use in uses]
        assert sum(busy_ns) == pytest.approx(
            sum((use.used or 0.0) * use.lit_ns for use in uses), rel=1e-3
        )
        assert all(0 <= (use.used or 0.0) <= 1 for use in uses)
        assert [use.bytes for use in uses] == sorted((use.bytes for use in uses), reverse=True)
        assert f"all {len(uses)}." in page(path)


def test_circuits_are_held_against_the_prediction(runs: list[Path]) -> None:
    run = read_run(runs[0])
    timeline = run.timeline()
    uses = circuit_uses(run.fabric(), timeline)
    assert all(use.late_p50_ns is use.late_most_ns is None for use in uses)
    early = dataclasses.replace(timeline.circuits, planned_up_ns=timeline.circuits.up_ns - 7)
    uses = circuit_uses(run.fabric(), dataclasses.replace(timeline, circuits=early))
    assert {use.late_p50_ns for use in uses} <= {7.0, None}
    assert {use.late_most_ns for use in uses} >= {7}


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
        data, excerpt = viewer_data(run)
        assert excerpt.whole
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


@settings(deadline=None, max_examples=10)
@given(data=st.data())
def test_a_part_of_a_run_is_that_part_and_says_so(data: Any, runs: list[Path]) -> None:
    run = read_run(data.draw(st.sampled_from(runs)))
    timeline = run.timeline()
    last = int(timeline.end_ns.max())
    cuts = st.tuples(st.integers(0, last), st.integers(1, last)).map(lambda t: (t[0], t[0] + t[1]))
    asked, most = data.draw(st.none() | cuts), data.draw(st.integers(1, 400))
    whole, all_of_it = viewer_data(run)
    part, excerpt = viewer_data(run, asked, most=most)
    assert excerpt.intervals == all_of_it.intervals
    assert excerpt.drawn <= most
    if asked is None and all_of_it.intervals <= most:
        assert part == whole
    begin, end = excerpt.begin_ns, excerpt.end_ns
    assert asked is None or (begin == asked[0] and end <= asked[1])
    full = {(lane["group"], lane["name"]): lane for lane in whole["lanes"]}
    for lane in part["lanes"]:
        name = (lane["group"], lane["name"])
        if lane["kind"] == "wait":  # cut where the messages that explain it are
            continue
        everything, mine = (
            np.stack(
                [
                    np.frombuffer(base64.b64decode(each["start"]), "<f8"),
                    np.frombuffer(base64.b64decode(each["length"]), "<f8"),
                    np.frombuffer(base64.b64decode(each["second"]), "<f8"),
                ]
            )
            for each in (full[name], lane)
        )
        seen = (everything[0] < end) & (everything[0] + everything[1] >= begin)
        inside = mine[:, (mine[0] < end) & (mine[0] + mine[1] >= begin)]
        assert np.array_equal(everything[:, seen], inside)


def test_a_long_run_is_drawn_in_whole_iterations_of_its_steady_state(runs: list[Path]) -> None:
    run = read_run(runs[0])
    timeline = run.timeline()
    times = begin_times(run.expansion().graph, timeline)
    ends = timeline.iteration_ends_ns.tolist()
    skip = run.manifest.skip
    times = np.concatenate([times, times + ends[-1] + 1])  # a run twice as long has twice as many
    two = dataclasses.replace(
        timeline,
        iterations=2 * timeline.iterations,
        end_ns=np.concatenate([timeline.end_ns, timeline.end_ns + ends[-1] + 1]),
    )
    ends = two.iteration_ends_ns.tolist()
    last = skip + 1
    most = int(((times >= ends[skip - 1]) & (times < ends[last])).sum())
    found = choose_excerpt(times, two, skip=skip, most=most + 1)
    assert (found.begin_ns, found.end_ns) == (ends[skip - 1], ends[last])
    assert found.drawn == most
    little = choose_excerpt(times, timeline, skip=skip, most=3)
    assert little.begin_ns == ends[skip - 1]
    assert little.drawn <= 3


def test_no_peak_is_lost_where_queues_are_thinned(runs: list[Path]) -> None:
    run = read_run(runs[0])
    all_of_it, _ = viewer_data(run)
    begin, end = 0, int(run.timeline().end_ns.max()) + 1
    thinned, _ = viewer_data(run, (begin, end), most=20)

    def peaks(data: dict[str, Any]) -> list[list[float]]:
        return [
            [float(np.frombuffer(base64.b64decode(line["bytes"]), "<f8").max()) for line in node]
            for node in data["queues"]
        ]

    def points(data: dict[str, Any]) -> int:
        return sum(len(line["t"]) for node in data["queues"] for line in node)

    if thinned["span"] == all_of_it["span"]:
        assert peaks(thinned) == peaks(all_of_it)
    assert points(thinned) < points(all_of_it)


def test_where_nothing_ever_waits_there_are_no_queues() -> None:
    whole = Excerpt(begin_ns=0, end_ns=9, intervals=1, drawn=1)
    empty = {name: np.zeros(0, np.int64) for name in ("node", "dst", "t_ns", "bytes")}
    assert _queue_lines(empty, 3, whole, 10) == [[], [], []]
    still = {name: np.zeros(2, np.int64) for name in empty} | {"dst": np.ones(2, np.int64)}
    assert _queue_lines(still, 3, whole, 10) == [[], [], []]
    waiting = still | {"bytes": np.array([5, 0])}
    (line,) = _queue_lines(waiting, 3, whole, 10)[0]
    assert line["dst"] == 1


def test_the_page_of_a_part_says_how_to_see_the_rest(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Path(shutil.copytree(runs[0], tmp_path / "run"))
    monkeypatch.setattr("testbed.files.timeline_json._MOST_EVENTS", 50)
    begin, end = 10_000, 200_000
    rewrite_timeline(copy, (begin, end))
    write_report(copy, (begin, end))
    html = page(copy)
    assert "A part of the run: 10 us to 200 us: " in html
    assert "--iterations" in html
    assert "A part of the run" not in page(runs[0])
    trace = json.loads((copy / "timeline.json").read_bytes())
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert 0 < len(spans) < 200
    assert trace["otherData"]["complete"] is False
    assert trace["otherData"]["begin_ns"] == begin
    assert not check_run_directory(copy)  # its hashes are in the manifest


def test_what_ranks_wait_adds_up_to_the_exposed_time(runs: list[Path]) -> None:
    run = read_run(runs[0])
    ends = run.timeline().iteration_ends_ns
    waited = 0.0
    for lane in viewer_data(run)[0]["lanes"]:
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
    assert "iteration 1: 3 us" in columns([None, 3000.0], 1)
    assert histogram([5.0]).count("<rect") == 40


def test_a_comparison_shows_every_run(runs: list[Path], tmp_path: Path) -> None:
    html = write_comparison(runs, tmp_path / "both.html").read_text()
    assert "<h1>in-order, rotating</h1>" in html
    with pytest.raises(UsageError, match="the page cannot be written"):
        write_comparison(runs, tmp_path / "no" / "where.html")


def test_a_comparison_has_a_row_for_a_failure(runs: list[Path], tmp_path: Path) -> None:
    failed = Path(shutil.copytree(runs[0], tmp_path / "failed"))
    manifest = json.loads((failed / "manifest.json").read_bytes())
    error = {"exit": 6, "what": "<it> waits", "where": "rank 1", "why": "dark", "fix": "x"}
    (failed / "manifest.json").write_text(
        json.dumps({**manifest, "status": "stalled", "error": error})
    )
    (failed / "summary.json").unlink()
    html = write_comparison([failed, runs[1]], tmp_path / "both.html").read_text()
    assert "stalled: &lt;it&gt; waits (dark)" in html
    assert "ratios are to rotating" in html
    assert html.count(">stalled</td>") == 6  # in place of every number


needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser.started() as started:
        yield started


VIEW = "window.fluxbedViewer.view()"
TOP = "document.getElementById('ranks').getBoundingClientRect().top"
PIXELS = "document.getElementById('ranks').toDataURL()"


@needs_browser
@pytest.mark.parametrize("width", [1280, 1920])
def test_a_browser_shows_the_numbers_of_the_summary_and_complains_of_nothing(
    runs: list[Path], browser: Browser, width: int
) -> None:
    for path in runs:
        opened = browser.open((path / "report.html").as_uri(), width)
        summary = json.loads((path / "summary.json").read_bytes())
        shown = opened.evaluate(
            "Object.fromEntries([...document.querySelectorAll('[data-key]')]"
            ".map((tile) => [tile.dataset.key, Number(tile.dataset.value)]))"
        )
        assert len(shown) == 8
        assert shown == {key: summary[key] for key in shown}
        lanes = viewer_data(read_run(path))[0]["lanes"]
        intervals = sum(lane["count"] for lane in lanes)
        assert opened.evaluate("window.fluxbedViewer.intervals") == intervals
        assert opened.evaluate("document.querySelectorAll('#node option').length") == 4
        wide = "document.documentElement.scrollWidth"
        assert opened.evaluate(wide) <= width
        assert opened.complaints == []


@needs_browser
def test_the_wheel_zooms_and_a_drag_moves(runs: list[Path], browser: Browser) -> None:
    opened = browser.open((runs[0] / "report.html").as_uri())
    y = opened.evaluate(TOP) + 40
    before, drawn = opened.evaluate(VIEW), opened.evaluate(PIXELS)
    opened.wheel(700, y, -200)
    near = opened.evaluate(VIEW)
    assert before[0] < near[0] < near[1] < before[1]
    assert opened.evaluate(PIXELS) != drawn
    opened.wheel(700, y, 200)
    assert opened.evaluate(VIEW) == pytest.approx(before)
    opened.wheel(700, y, -200)
    opened.drag((700, y), (600, y))
    moved = opened.evaluate(VIEW)
    assert moved[1] - moved[0] == pytest.approx(near[1] - near[0])
    assert moved[0] > near[0]
    opened.evaluate("document.querySelector('[data-do=all]').click()")
    ends = read_run(runs[0]).timeline().iteration_ends_ns
    everything = opened.evaluate(VIEW)
    assert everything[0] <= 0 < ends[-1] <= everything[1]
    assert opened.complaints == []


@needs_browser
def test_a_comparison_opens_with_a_link_to_each_report(
    runs: list[Path], browser: Browser, tmp_path: Path
) -> None:
    opened = browser.open(write_comparison(runs, tmp_path / "both.html").as_uri())
    links = opened.evaluate("[...document.querySelectorAll('a')].map((a) => a.href)")
    assert links == [(path / "report.html").as_uri() for path in runs]
    assert opened.complaints == []


@needs_browser
def test_what_a_page_says_to_its_console_is_heard(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text("<script>console.log('here'); nothing();</script>")
    assert len(browser.open(page.as_uri()).complaints) >= 2
