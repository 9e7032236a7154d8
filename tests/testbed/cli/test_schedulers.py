"""`fluxbed schedulers NAME`: everything about one scheduler, its sources and options included."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scheduler.policies.registry import describe


@pytest.mark.parametrize("name", describe())
def test_each_scheduler_is_explained(fluxbed: Any, name: str) -> None:
    code, out, err = fluxbed("schedulers", name)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == describe()[name] or (name.endswith("-tuned") and "best" in lines[0])
    assert len(lines) >= 5


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("rotor-direct", ("SIGCOMM 2017", "no slot is spare", "1 2 3 4 and 5 6 7 1")),
        ("solstice", ("Where the residue goes", "CoNEXT 2015")),
        ("bvn", ("planes=aligned", "staggered", "Sinkhorn")),
        ("vermilion", ("k = 3",)),
        ("spectra-aggregate", ("mean slot",)),
        ("sunflow", ("CoNEXT 2016",)),
        ("static", ("DELTA",)),
        ("flux-timestamped", ("by the clock",)),
    ],
)
def test_what_a_paper_leaves_open_is_said(fluxbed: Any, name: str, words: tuple[str, ...]) -> None:
    out = fluxbed("schedulers", name).out
    assert all(word in out for word in words)


def test_options_and_their_defaults(fluxbed: Any) -> None:
    (record,) = json.loads(fluxbed("schedulers", "vermilion", "--format", "json").out)
    assert record["scheduler"] == "vermilion"
    assert record["options"] == [
        {"option": "slot", "default": "its own choice"},
        {"option": "phase", "default": "0 ns"},
        {"option": "k", "default": "3"},
    ]
    assert fluxbed("schedulers", "static").out.endswith("It has no options.\n")
    assert fluxbed("schedulers", "show", "greedy") == fluxbed("schedulers", "greedy")
    assert fluxbed("schedulers", "show") == fluxbed("schedulers")
    assert fluxbed("schedulers", "flux", "greedy").code == 2


def test_an_unknown_one_is_refused(fluxbed: Any) -> None:
    code, out, err = fluxbed("schedulers", "nope")
    assert (code, out) == (2, "")
    assert err.startswith("nope: there is no scheduler 'nope', because the schedulers are ")
