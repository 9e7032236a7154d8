"""How faults are written, which of them the simulator can bear, and what a run owns up to."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.check_faults import wrong_effects
from scheduler.check_run import check_run
from testbed.files.faults import (
    KINDS,
    effect_sentence,
    faulted_fabric,
    parse_fault,
    parse_faults,
    predictable,
)
from testbed.files.rundir import read_run
from testbed.files.summary import FaultEffect
from testbed.files.verify import _record
from topologies import UsageError, rails
from topologies.hybrid import hybrid

if TYPE_CHECKING:
    from pathlib import Path

FABRIC = rails(nodes=4, planes=2, rate_bps=400 * 10**9, delay_ns=10_000)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "stuck-dark:plane=1,port=3,at=2ms,for=1ms",
            {"plane": 1, "port": 3, "at_ns": 2_000_000, "for_ns": 1_000_000, "until_ns": 3_000_000},
        ),
        ("lost-plane:plane=0", {"plane": 0, "at_ns": 0, "until_ns": None, "whole_run": True}),
        ("slow-plane:plane=0,rate=100Gbps", {"rate_bps": 10**11}),
        ("paused-host:host=h2,for=1us", {"host": 2, "until_ns": 1_000, "whole_run": False}),
        ("frame-loss:share=0.5", {"share": 0.5, "plane": None, "port": None}),
        ("late-lock:mean=2us", {"dist": "exponential", "most_late_ns": 20_000}),
        ("late-commands:mean=2us,dist=uniform", {"most_late_ns": 4_000}),
        ("late-commands:mean=2us,dist=fixed", {"most_late_ns": 2_000}),
    ],
)
def test_a_fault_is_read(text: str, expected: dict[str, Any]) -> None:
    fault = parse_fault(text, FABRIC)
    assert fault.text == text
    assert {name: getattr(fault, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("broken", "there is no fault 'broken', because the faults are stuck-dark, lost-plane"),
        ("stuck-dark", "plane is missing, because stuck-dark needs plane and port"),
        ("stuck-dark:plane=0", "port is missing"),
        ("stuck-dark:plane=0,port=1,by=3", "there is no 'by', because stuck-dark has plane, port"),
        ("stuck-dark:plane=0,plane=1,port=1", "'plane' appears twice"),
        ("stuck-dark:plane", "'plane' is not key=value"),
        ("stuck-dark:plane=2,port=0", "there is no plane 2, because they are 0 to 1"),
        ("stuck-dark:plane=1,port=4", "plane 1 has no port 4, because it has 4"),
        ("stuck-dark:plane=one,port=4", "'one', because it must be a whole number"),
        ("lost-plane:plane=0,at=5", "'5' has no unit"),
        ("lost-plane:plane=0,for=0", "it lasts no time"),
        ("slow-plane:plane=0,rate=400Gbps", "the plane is not slower"),
        ("slow-plane:plane=0,rate=0", "the plane is not slower"),
        ("paused-host:host=2,for=1us", "'2' is no host"),
        ("paused-host:host=h4,for=1us", "there is no host h4, because they are h0 to h3"),
        ("frame-loss:share=1", "a share of 1, because it must be above 0 and below 1"),
        ("frame-loss:share=nan", "a share of nan"),
        ("frame-loss:share=0.1,port=1", "a port is given without its plane"),
        ("late-lock:mean=0", "nothing is late"),
        ("late-lock:mean=1us,dist=normal", "'normal' is no distribution"),
    ],
)
def test_a_fault_that_cannot_be_is_refused_in_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_fault(text, FABRIC)
    assert sentence in str(refused.value)
    assert str(refused.value).startswith("--fault")


@given(st.text(max_size=40))
def test_any_text_is_a_fault_or_a_sentence(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert parse_fault(text, FABRIC).kind in KINDS


def test_a_packet_plane_has_no_circuits_to_lose() -> None:
    fabric = hybrid(nodes=4)
    (packets,) = (k for k, plane in enumerate(fabric.planes) if plane.kind == "eps")
    with pytest.raises(UsageError, match="a packet plane has no circuits"):
        parse_fault(f"lost-plane:plane={packets}", fabric)
    assert parse_fault(f"frame-loss:share=0.1,plane={packets}", fabric).plane == packets


@pytest.mark.parametrize(
    ("text", "ordered", "timed"),
    [
        ("slow-plane:plane=0,rate=100Gbps", True, True),
        ("slow-plane:plane=0,rate=100Gbps,at=1us", False, False),
        ("late-lock:mean=2us,dist=fixed", True, True),
        ("late-lock:mean=2us", False, False),
        ("late-lock:mean=2us,dist=fixed,plane=0,port=1", False, False),
        ("late-commands:mean=2us,dist=fixed", True, False),
        ("late-commands:mean=2us,dist=fixed,plane=0", False, False),
        ("frame-loss:share=0.1", False, False),
        ("lost-plane:plane=0", False, False),
    ],
)
def test_what_lasts_and_is_always_alike_can_be_predicted(
    text: str, *, ordered: bool, timed: bool
) -> None:
    faults = parse_faults([text], FABRIC)
    assert predictable(faults, timed=False) is ordered
    assert predictable(faults, timed=True) is timed


def test_predictable_faults_become_the_fabric() -> None:
    texts = [
        "slow-plane:plane=1,rate=100Gbps",
        "late-lock:mean=2us,dist=fixed,plane=0",
        "late-commands:mean=3us,dist=fixed",
    ]
    fabric = faulted_fabric(FABRIC, parse_faults(texts, FABRIC))
    assert [plane.rate_bps for plane in fabric.planes] == [400 * 10**9, 100 * 10**9]
    assert [plane.delay_ns for plane in fabric.planes] == [12_000, 10_000]
    assert fabric.control_ns == 3_000
    assert faulted_fabric(FABRIC, ()) == FABRIC


def test_what_a_fault_did_is_a_sentence() -> None:
    late = FaultEffect(fault="late-lock:mean=1us", delayed=3, delay_ns=4_000, delay_most_ns=2_000)
    assert effect_sentence(late) == (
        "late-lock:mean=1us: 3 times something was late, 4 us in all, 2 us at most"
    )
    assert effect_sentence(FaultEffect(fault="lost-plane:plane=0")).endswith("it struck nothing")


def summary(**changed: Any) -> dict[str, Any]:
    effect = {"fault": "frame-loss:share=0.1", "frames_lost": 2, "bytes_lost": 20}
    effect |= {"frames_resent": 5, "delayed": 0, "delay_ns": 0, "delay_most_ns": 0}
    return {
        "faulted": True, "faults": [effect], "frames_resent": 5, "frames_discarded": 3, **changed,
    }  # fmt: skip


def test_a_run_must_own_up_to_its_faults() -> None:
    texts = ["frame-loss:share=0.1"]
    assert list(wrong_effects(summary(), texts)) == []
    for changed, where in (
        ({"faulted": False}, "summary faulted"),
        ({"faults": []}, "summary faults"),
        ({"frames_discarded": 4}, "summary frames_discarded"),
        ({"frames_discarded": -1}, "summary frames_discarded"),
        ({"frames_resent": 4}, "summary frames_discarded"),
    ):
        assert [place for place, _ in wrong_effects(summary(**changed), texts)] == [where]
    assert [place for place, _ in wrong_effects(summary(), [])] == [
        "summary faulted",
        "summary faults",
    ]


def test_only_a_fault_excuses_late_light(tmp_path: Path, make_run: Any) -> None:
    record = _record(read_run(make_run(tmp_path / "run", "in-order")))
    circuits = record.timeline.circuits
    late = replace(circuits, up_ns=circuits.up_ns + (circuits.request_ns >= 0))
    for fault, rules in (
        (0, {"a circuit is dark for the delay"}),
        (1, {"circuits say whose ports they join"}),
    ):
        marked = replace(late, fault=circuits.fault + fault)
        cause = [("program", "fault")[fault]] * len(circuits.plane)
        table = {**record.tables["circuits"], "up_ns": late.up_ns, "cause": cause}
        shifted = replace(
            record,
            timeline=replace(record.timeline, circuits=marked),
            tables={**record.tables, "circuits": {**table, "cause": np.asarray(cause)}},
        )
        found = {violation.rule for violation in check_run(shifted)}
        assert rules <= found
        borne = replace(shifted, faults=("late-lock:mean=1us",))
        excused = {violation.rule for violation in check_run(borne)}
        assert (rules & excused == set()) is bool(fault)
