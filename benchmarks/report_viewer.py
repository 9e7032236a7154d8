"""How long a report with 100,000 intervals takes to load and to zoom, in a headless Chromium.

    python benchmarks/report_viewer.py

The run is simulated: as many iterations of a training step as give that many intervals. Reference
of the same browser: a page of nothing but a canvas on which as many rectangles are filled.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from testbed.report.data import viewer_data
from testbed.report.page import document, run_page
from tests.testbed.report.browser import CHROMIUM, Browser

INTERVALS = 100_000
TURNS = 20
ALLOWED_MS = (3000.0, 100.0)  # to load, to zoom
WIDTH, HEIGHT = 1280, 900

BARE = """<canvas id=c width=1100 height=470></canvas><script>
const pen = document.getElementById("c").getContext("2d");
for (let k = 0; k < COUNT; k++) {
  pen.fillStyle = k % 2 ? "#0072b2" : "#e69f00";
  pen.fillRect(k * 1100 / COUNT, 17 * (k % 27), 3, 13);
}</script>"""
# From the turn of the wheel until the frame that shows it is painted; everything is in view.
ZOOM = """(async () => {
  const lanes = document.getElementById("ranks"), spent = [];
  for (let turn = 0; turn < TURNS; turn++) {
    const began = performance.now();
    lanes.dispatchEvent(new WheelEvent("wheel", {deltaY: turn % 2 ? 60 : -60, cancelable: true,
      clientX: lanes.getBoundingClientRect().left + 600}));
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    spent.push(performance.now() - began);
  }
  return spent;
})()"""


def a_run(directory: Path) -> tuple[bytes, int]:
    """Return the report of a simulated run and how many intervals it shows."""
    from scheduler.dispatch.simulator import simulate
    from scheduler.model.options import ExpansionOptions
    from testbed.cli.pipeline import plan_job, prepare
    from testbed.files.rundir import RunDirectory, read_run
    from testbed.synth import synth

    workload = synth("llama3-8b", tp=4, dp=2, layers=8, seq=2048, mfu=0.5, embeddings="omitted")
    topology = "rails,planes=2,rate=800Gbps,delay=10us"
    options = ExpansionOptions(collectives={"all_gather": "direct", "reduce_scatter": "direct"})
    job = prepare(workload, topology, options)
    plan = plan_job(job, "greedy", {"budget_ns": 10**8, "seed": 0, "lookahead_ns": 0})
    iterations = 2
    while True:
        run = RunDirectory.create(
            directory / str(iterations),
            scheduler="greedy",
            plan=plan,
            workload=workload,
            expansion=job.expansion,
            origin="simulated",
            iterations=iterations,
            skip=1,
            topology=topology,
        )
        with run:
            timeline = simulate(
                job.expansion.graph, plan.fabric, plan.program, iterations=iterations
            )
            run.write_results(timeline)
        found = read_run(run.path)
        count = sum(lane["count"] for lane in viewer_data(found)[0]["lanes"])
        if count >= INTERVALS:
            return run_page(found), count
        iterations = max(iterations + 1, -(-iterations * INTERVALS // count))


def load_ms(browser: Browser, url: str) -> tuple[float, Any]:
    """Return how long a page took until it was painted, and the page."""
    began_s = time.perf_counter()
    page = browser.open(url, WIDTH, HEIGHT)
    return (time.perf_counter() - began_s) * 1e3, page


@click.command(help=__doc__)
def main() -> None:
    """Measure and print; the exit code says whether both limits are kept."""
    if CHROMIUM is None:
        raise click.ClickException("chromium is not installed")
    with tempfile.TemporaryDirectory() as name, Browser.started() as browser:
        home = Path(name)
        content, count = a_run(home)
        (home / "report.html").write_bytes(content)
        (home / "empty.html").write_bytes(document("empty", ""))
        (home / "bare.html").write_text(BARE.replace("COUNT", str(count)))
        loads: dict[str, list[float]] = {"empty": [], "bare": [], "report": []}
        zooms: list[float] = []
        for _ in range(3):
            for kind, spent in loads.items():
                spent_ms, page = load_ms(browser, (home / f"{kind}.html").as_uri())
                spent.append(spent_ms)
            page.evaluate("document.querySelector('[data-do=all]').click()")
            zooms += page.evaluate(ZOOM.replace("TURNS", str(TURNS)))[1:]
            assert page.complaints == []
    click.echo(f"{count} intervals, {len(content) / 1e6:.1f} MB, {WIDTH} x {HEIGHT}")
    names = {"empty": "an empty page", "bare": "filling as many rectangles", "report": "the report"}
    for kind, spent in loads.items():
        click.echo(f"load {names[kind]}: median {median(spent):.0f} ms, most {max(spent):.0f} ms")
    most = sorted(zooms)[round(0.95 * (len(zooms) - 1))]
    click.echo(f"zoom, everything in view: median {median(zooms):.0f} ms, 95 % below {most:.0f} ms")
    if median(loads["report"]) > ALLOWED_MS[0] or most > ALLOWED_MS[1]:
        sys.exit(1)


if __name__ == "__main__":
    main()
