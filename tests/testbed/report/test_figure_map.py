"""Maps: who suffices where, the least ratio of the others, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from testbed.report.figure_map import Tile, compose_map, draw_map
from topologies.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

TIMES = {  # (x, y): scheduler: iteration time
    (0.1, 1.0): {"flux": 100.0, "static": 100.0, "greedy": 102.0, "packet-ideal": 10.0},
    (0.1, 4.0): {"flux": 100.0, "greedy": 103.0, "bvn-tuned": 150.0},
    (1.0, 4.0): {"flux": 100.0, "greedy": 300.0, "bvn-tuned": 90.0},
}


@pytest.fixture
def frame() -> pl.DataFrame:
    return pl.DataFrame(
        [
            {"mode": "simulate", "synth.seq": 2048, "topology.delay": f"{x}", "topology.planes": y,
             "x": x, "y": y, "scheduler": name, "iteration_ns": ns, "iterations": 12, "skip": 2}
            for (x, y), cell in TIMES.items() for name, ns in cell.items()
        ]
    )  # fmt: skip


WHAT: dict[str, Any] = {"x": "x", "y": "y", "value": "iteration_ns", "relative_to": "flux"}


def test_a_tile_says_the_least_ratio_and_who_suffices(frame: pl.DataFrame) -> None:
    found = compose_map(frame, **WHAT)
    assert found.letters == {"static": "S", "greedy": "G", "bvn-tuned": "B"}
    assert found.panels == {
        (): (
            Tile(0.1, 1.0, 1.0, "static", ("static", "greedy")),
            Tile(0.1, 4.0, 1.03, "greedy", ()),
            Tile(1.0, 4.0, 0.9, "bvn-tuned", ("bvn-tuned",)),
        )
    }
    assert "taking at most 2 % more than flux (S static, G greedy, B bvn-tuned)" in found.caption
    assert "Injection: unlimited" in found.caption
    assert "Window: iterations 3 to 12" in found.caption


@pytest.mark.parametrize("kind", ["svg", "pdf", "png"])
def test_a_map_is_drawn_with_its_numbers_and_caption(
    frame: pl.DataFrame, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / f"map.{kind}"
    draw_map(compose_map(frame, **WHAT, facets=["synth.seq"]), path)
    data = path.read_bytes()
    assert data.startswith({"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG"}[kind])
    if kind == "svg":
        text = data.decode()
        for word in ("1.03", "0.9", "SG", "sequence length 2048", "best other over flux"):
            assert word in text


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no such column": ({"x": "z"}, "map: there is no column 'z', because the columns are mode, "),
    "words": ({"x": "topology.delay"}, "map: 'topology.delay' has no numbers, because "),
    "of nothing": (
        {"relative_to": None},
        "map: a map is of nothing, because its colours are ratios: add --relative-to, as flux",
    ),
    "no others": (
        {"where": {"scheduler": ["flux", "packet-ideal"]}},
        (
            "map: nothing is left to draw, because no point of flux has another's beside it: "
            "ask for less with --where"
        ),
    ),
    "a place for several": (
        {"x": "synth.seq"},
        (
            "map: several points share synth.seq = 2048 and y = 4, because a tile is one workload "
            "on one fabric: give another --facet, or less with --where"
        ),
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_map_is_one_sentence(frame: pl.DataFrame, case: str) -> None:
    changed, sentence = WRONG[case]
    with pytest.raises(UsageError) as refused:
        compose_map(frame, **{**WHAT, **changed})
    assert str(refused.value).startswith(sentence)
