"""The HTML report: one file that needs nothing else, not even a network."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from scheduler.model.timeline import NONE
from testbed.files.summary import FaultEffect
from testbed.report import charts
from testbed.report.circuits import circuit_uses
from testbed.report.data import percent, plane_shares, tiles, viewer_data
from topologies.units import format_bytes, format_duration, format_rate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scheduler.model.timeline import Timeline
    from testbed.files.excerpt import Excerpt
    from testbed.files.rundir import Run
    from topologies import Fabric

__all__ = ["document", "run_page"]

_KINDS = (("#0072b2", "compute"), ("#d55e00", "waits for messages"))
_BUSIEST = 24  # circuits that a page lists
_PLANES = ("#e69f00", "#009e73", "#cc79a7", "#b5a800")  # as the viewer's, over and over


def _asset(name: str) -> str:
    return (files("testbed.report") / "assets" / name).read_text(encoding="utf-8")


def document(title: str, body: str, data: Any = None) -> bytes:  # noqa: ANN401 (what JSON can say)
    """Put a page together; `data` is what its viewer draws."""
    script = ""
    if data is not None:
        encoded = msgspec.json.encode(data).decode().replace("</", "<\\/")
        script = (
            f'<script type="application/json" id="run-data">{encoded}</script>'
            f"<script>{_asset('viewer.js')}</script>"
        )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title>'
        f"<style>{_asset('style.css')}</style></head>\n"
        f"<body><main>{body}</main>{script}</body></html>\n"
    ).encode()


def run_page(run: Run, asked: tuple[int, int] | None = None) -> bytes:
    """Return the report of a run; of one that failed, what is known and why it failed.

    `asked` is the stretch of virtual time that its timeline draws, as `viewer_data` says.
    """
    body = [_header(run)]
    if run.manifest.error is not None:
        body.append(_error(run))
    body += [_overload(run), _remarks(run), _faults(run)]
    data = None
    if (run.path / "tasks.parquet").is_file():
        data, excerpt = viewer_data(run, asked)
        body += [_tiles(run), _timeline(data, excerpt), _queues(run), *_details(run)]
    body.append(_facts(run))
    return document(f"{run.manifest.scheduler}: fluxbed run", "".join(body), data)


def _header(run: Run) -> str:
    manifest = run.manifest
    good = "" if manifest.status == "ok" else " bad"
    origin = "emulated with real packets" if manifest.origin == "emulated" else "simulated"
    if manifest.faults:
        origin += '</span><span class="chip bad">faulted'
    if manifest.overload:
        origin += '</span><span class="chip bad">pace not kept'
    reference = '<span class="chip plain">reference</span>' if manifest.reference else ""
    return (
        f"<header><h1>{escape(manifest.scheduler)}</h1>"
        f'<span class="chip{good}">{manifest.status}</span>'
        f'<span class="chip plain">{origin}</span>{reference}'
        f"<p>{escape(manifest.topology)}, {len(manifest.rank_to_node)} ranks, "
        f"{manifest.iterations} iterations, the first {manifest.skip} left out</p></header>"
    )


def _error(run: Run) -> str:
    error = run.manifest.error
    assert error is not None
    text = f"{error.where}: {error.what}, because {error.why}: {error.fix}"
    return f'<section class="card error"><h2>Why it failed</h2><p>{escape(text)}</p></section>'


def _overload(run: Run) -> str:
    """Say where the machine did not keep up; nothing where it did."""
    if not run.manifest.overload:
        return ""
    said = "".join(f"<li>{escape(sentence)}</li>" for sentence in run.manifest.overload)
    return (
        '<section class="card error"><h2>Not the fabric\'s numbers</h2><p>This machine did not '
        f"keep up:</p><ul>{said}</ul></section>"
    )


def _remarks(run: Run) -> str:
    """Say what makes a number mean something else than it seems to."""
    said = "".join(f"<p>{escape(sentence)}</p>" for sentence in run.summary.remarks or ())
    return f'<section class="card"><h2>To be noted</h2>{said}</section>' if said else ""


def _faults(run: Run) -> str:
    """Say what the run was made to bear and what it cost; nothing where that is nothing."""
    manifest = run.manifest
    if not manifest.faults:
        return ""
    effects = manifest.fault_effects or [FaultEffect(fault=text) for text in manifest.faults]
    rows = [
        (
            escape(effect.fault),
            f"{effect.frames_lost:,} ({format_bytes(effect.bytes_lost)})",
            f"{effect.frames_resent:,}",
            f"{effect.delayed:,}",
            format_duration(effect.delay_ns),
            format_duration(effect.delay_most_ns),
        )
        for effect in effects
    ]
    heads = ("fault", "frames lost", "sent again", "times late", "late in all", "at most")
    head = "".join(f"<th>{name}</th>" for name in heads)
    cells = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    sound = "bore them too" if manifest.fault_predicted else "is that of a sound fabric"
    hint = f"Seed {manifest.fault_seed}. The prediction {sound}."
    return _card("Faulted", hint, f"<table><tr>{head}</tr>{cells}</table>")


def _tiles(run: Run) -> str:
    cells = [
        f'<div class="tile{" first" if k == 0 else ""}" data-key="{tile.key}" '
        f'data-value="{"" if tile.value is None else repr(tile.value)}">'
        f'<div class="name">{tile.name}</div><div class="value">{tile.text}</div>'
        f'<div class="note">{escape(tile.note)}</div></div>'
        for k, tile in enumerate(tiles(run))
    ]
    return f'<section class="tiles">{"".join(cells)}</section>'


def _timeline(data: dict[str, Any], excerpt: Excerpt) -> str:
    part = "" if excerpt.whole else (
        f'<p class="hint part"><b>A part of the run: {excerpt.told()}.</b> '
        "<code>fluxbed report RUN --iterations 3-4</code> or <code>--span 5ms-6ms</code> draws "
        "another. All other numbers and charts of this page, and the tables, are of the whole run."
        "</p>"
    )  # fmt: skip
    legend = "".join(
        f'<span style="--c:{colour}">{name}</span>'
        for colour, name in (*_KINDS, *_plane_names(data["planes"]))
    )
    buttons = "".join(
        f'<button data-do="{action}">{name}</button>'
        for action, name in (
            ("one", "One iteration"), ("all", "Everything drawn" if part else "Everything"),
            ("in", "Zoom in"), ("out", "Zoom out"),
        )
    )  # fmt: skip
    return (
        '<section class="card"><h2>Timeline</h2><p class="hint">Every rank above, the circuits of '
        "every plane below. Turn the wheel to zoom, drag to move, double-click to come back; over "
        "the names the wheel scrolls. Dashed: an iteration ends.</p>"
        f"{part}"
        f'<div class="bar">{buttons}<div class="legend">{legend}'
        '<span class="hatch">dark: a circuit is being made</span></div></div>'
        '<canvas id="axis"></canvas><div class="scroll ranks"><canvas id="ranks"></canvas></div>'
        '<div class="scroll planes"><canvas id="planes"></canvas></div><div id="tip"></div>'
        "</section>"
    )


def _plane_names(planes: int) -> list[tuple[str, str]]:
    """Name the planes of each colour.

    >>> _plane_names(5)[:2]
    [('#e69f00', 'planes 0, 4: sends, circuits paler'), ('#009e73', 'plane 1')]
    """
    found = []
    for index, colour in enumerate(_PLANES[:planes]):
        numbers = range(index, planes, len(_PLANES))
        name = f"plane{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
        found.append((colour, name if index else f"{name}: sends, circuits paler"))
    return found


def _queues(run: Run) -> str:
    kind = run.manifest.injection.kind
    return (
        '<section class="card"><h2>What waits in the network cards</h2>'
        f'<p class="hint">Bytes per destination, {kind} injection, over the same span of time.</p>'
        '<div class="bar"><label>at <select id="node"></select></label>'
        '<div class="legend" id="queue-legend"></div></div>'
        '<canvas id="queues"></canvas></section>'
    )


def _details(run: Run) -> list[str]:
    timeline, summary = run.timeline(), run.summary
    planes = plane_shares(run.fabric(), timeline)
    cards = [_prediction(run)]
    durations = summary.iterations_ns or []
    hint = "Pale: left out of the steady state."
    cards.append(_card("Iterations", hint, charts.columns(durations, run.manifest.skip)))
    legend = "".join(
        f'<span style="--c:{colour}">{name}</span>' for name, colour in charts.SHARES.items()
    )
    if planes:
        chart = f'<div class="legend bar">{legend}</div>{charts.shares(planes)}'
        cards.append(_card("Use of the planes", "Whole run, outputs of every port.", chart))
    circuits = timeline.circuits
    known = (circuits.planned_up_ns != NONE) & (circuits.request_ns != NONE)
    errors = (circuits.up_ns - circuits.planned_up_ns)[known]
    if len(errors):
        spread = summary.schedule_error_ns
        hint = f"Median {_duration(spread.p50)}, 99th percentile {_duration(spread.p99)}."
        chart = charts.histogram(np.asarray(errors, np.float64).tolist())
        cards.append(_card("Circuits: achieved minus planned", hint, chart))
    return [f'<div class="columns">{"".join(cards)}</div>', _circuits(run.fabric(), timeline)]


def _circuits(fabric: Fabric, timeline: Timeline) -> str:
    """Show the circuits that carried most; nothing where none stood."""
    uses = circuit_uses(fabric, timeline)
    if not uses:
        return ""
    rows = [
        (
            f"{use.plane}",
            f"{use.src_port} to {use.dst_port}",
            f"{use.src} to {use.dst}",
            f"{use.made:,}",
            format_bytes(use.bytes),
            format_duration(use.lit_ns),
            "unknown" if use.used is None else percent(use.used),
            _duration(use.late_p50_ns),
            _duration(use.late_most_ns),
        )
        for use in uses[:_BUSIEST]
    ]
    heads = (
        "plane", "ports", "nodes", "times made", "carried", "lit", "of it used",
        "up after planned", "at most",
    )  # fmt: skip
    head = "".join(f'<th class="number">{name}</th>' for name in heads)
    lines = ["".join(f'<td class="number">{cell}</td>' for cell in row) for row in rows]
    cells = "".join(f"<tr>{line}</tr>" for line in lines)
    hint = f"Whole run, the most bytes first; all {len(uses)}."
    if len(uses) > _BUSIEST:
        hint = (
            f"Whole run, the {_BUSIEST} of {len(uses)} with the most bytes; fluxbed inspect RUN "
            "--format json has all."
        )
    return _card("Circuits", hint, f"<table><tr>{head}</tr>{cells}</table>")


def _card(title: str, hint: str, content: str) -> str:
    head = f'<h2>{title}</h2><p class="hint">{escape(hint)}</p>'
    return f'<section class="card">{head}{content}</section>'


def _duration(value_ns: float | None) -> str:
    return "unknown" if value_ns is None else format_duration(value_ns)


def _prediction(run: Run) -> str:
    summary, plan = run.summary, run.plan()
    reached = summary.iteration_ns

    def row(name: str, value: float | None) -> str:
        off = ""
        if value and reached and value != reached:
            off = f"{100 * (reached / value - 1):+.2f} %"
        return (
            f'<tr><td>{name}</td><td class="number">{_duration(value)}</td>'
            f'<td class="number">{off}</td></tr>'
        )

    measured = run.manifest.origin == "emulated"
    rows = [
        ("measured" if measured else "simulated", reached),
        ("predicted, with this run's frames and guards", summary.predicted_iteration_ns),
        ("predicted, ideal", summary.predicted_ideal_iteration_ns),
        ("promised by the plan", plan.predicted.iteration_ns),
        ("lower bound", summary.lower_bound_ns),
    ]
    if not measured:
        del rows[1:3]
    table = (
        '<table><tr><th>iteration</th><th class="number">duration</th>'
        '<th class="number">off by</th></tr>'
        f"{''.join(row(name, value) for name, value in rows)}</table>"
    )
    proven = "proven optimal" if summary.proven_optimal else "not proven optimal"
    hint = f"Off by: what was {rows[0][0]} against that line. The plan is {proven}."
    return _card("Prediction and result", hint, table)


def _facts(run: Run) -> str:
    manifest = run.manifest
    fabric = manifest.fabric
    planes = sorted(
        {
            f"{plane.kind}, {plane.ports} ports, {format_rate(plane.rate_bps)}, "
            f"delay {format_duration(plane.delay_ns)}"
            f"{', duplex' if plane.duplex else ''}{', all-stop' if plane.all_stop else ''}"
            for plane in fabric.planes
        }
    )
    rows: list[tuple[str, str]] = [
        ("run", manifest.run_id),
        ("began", f"{manifest.created_utc} on {manifest.kernel}"),
        ("fabric", f"{fabric.nodes} nodes, {len(fabric.planes)} planes: {'; '.join(planes)}"),
        ("control, notify, latency", ", ".join(
            format_duration(v) for v in (fabric.control_ns, fabric.notify_ns, fabric.latency_ns)
        )),
        ("messages of the run", _total(run)),
        ("versions", ", ".join(f"{name} {v}" for name, v in manifest.versions.items())),
    ]  # fmt: skip
    if manifest.dilation is not None:
        rows.append(("dilation", f"{manifest.dilation:g} (wall time over virtual time)"))
    if manifest.measures:
        said = ", ".join(
            f"{name} {'unknown' if value is None else format(value, 'g')}"
            for name, value in manifest.measures.items()
        )
        rows.append(("measures", said))
    rows.append(("files", ", ".join(f"{n} {h[:8]}" for n, h in manifest.files.items())))
    return f'<section class="card"><h2>This run</h2>{facts_table(rows)}</section>'


def facts_table(rows: Sequence[tuple[str, str]]) -> str:
    """Return a table of names and texts."""
    cells = "".join(
        f'<tr><th>{escape(name)}</th><td class="path">{escape(text)}</td></tr>'
        for name, text in rows
    )
    return f"<table>{cells}</table>"


def _total(run: Run) -> str:
    summary = run.summary
    if summary.messages is None or summary.bytes is None:
        return "unknown"
    return f"{summary.messages:,} messages, {format_bytes(summary.bytes)}"
