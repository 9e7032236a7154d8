from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model.options import ExpansionOptions
from scheduler.model.program import Entry, OrderedProgram, Slot, TimedProgram
from testbed.files.plan import (
    Plan,
    Prediction,
    SchedulerRecord,
    decode_plan,
    encode_plan,
    plan_schema,
    read_plan,
    write_plan,
)
from topologies import Fabric, InputError, Plane, build_fabric

if TYPE_CHECKING:
    from scheduler.model.program import Program

SCHEMAS = Path(__file__).parents[3] / "docs" / "schemas"
PORTS = st.integers(0, 3)


def plan(program: Program, fabric: Fabric) -> Plan:
    return Plan(
        fabric=fabric,
        rank_to_node=(0, 1, 2, 3),
        workload_sha256="ab" * 32,
        options=ExpansionOptions(collectives={"all_reduce": "direct"}, chunk_bytes=4096),
        expansion_sha256="cd" * 32,
        scheduler=SchedulerRecord(
            name="flux", version="1", params={"seed": 3, "fast": True}, source_sha256=None
        ),
        program=program,
        seed=7,
        budget_s=0.5,
        predicted=Prediction(iteration_ns=10.5, lower_bound_ns=9.0, proven_optimal=False),
    )


def same(left: Program, right: Program) -> bool:
    if isinstance(left, OrderedProgram) and isinstance(right, OrderedProgram):
        names = ("plane", "src_port", "dst_port", "message_ptr", "message")
        return left.initial_circuits == right.initial_circuits and all(
            np.array_equal(getattr(left, name), getattr(right, name)) for name in names
        )
    return left == right


@settings(deadline=None)
@given(
    st.lists(
        st.lists(st.builds(Entry, PORTS, PORTS, st.lists(st.integers(0, 2**40)).map(tuple))),
        min_size=2,
        max_size=2,
    ),
    st.lists(st.tuples(st.integers(0, 1), PORTS, PORTS)),
    st.integers(0, 1),
)
def test_ordered_plans_survive_a_file(
    planes: list[list[Entry]], initial: list[tuple[int, int, int]], all_stop: int
) -> None:
    fabric = build_fabric(f"rails,nodes=4,all_stop={'yes' if all_stop else 'no'}")
    matchings = [[k // 2 for k in range(len(entries))] for entries in planes]
    program = OrderedProgram.from_entries(planes, initial, matchings if all_stop else None)
    written = plan(program, fabric)
    again = decode_plan(encode_plan(written), "plan.json")
    assert same(again.program, program)
    if all_stop:
        assert isinstance(again.program, OrderedProgram)
        assert again.program.matching.tolist() == program.matching.tolist()
    assert encode_plan(again) == encode_plan(written)
    assert again.options == written.options
    jsonschema.validate(json.loads(encode_plan(written)), json.loads(plan_schema()))


def timed() -> TimedProgram:
    slots = (Slot(0, (1, 0, 3, 2)), Slot(5_000, (-1, 2, 1, -1)))
    return TimedProgram(period_ns=10_000, planes=(slots, slots), phase_ns=3, guard_ns=9)


def test_timed_plans_survive_a_file(tmp_path: Path) -> None:
    written = plan(timed(), build_fabric("rails,nodes=4"))
    write_plan(written, tmp_path / "plan.json.gz")
    again = read_plan(tmp_path / "plan.json.gz")
    assert again.program == written.program
    assert again.predicted == written.predicted
    jsonschema.validate(json.loads(encode_plan(written)), json.loads(plan_schema()))


def broken(change: Any) -> bytes:
    document = json.loads(encode_plan(plan(timed(), build_fabric("rails,nodes=4"))))
    change(document)
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda d: d.update(colour="red"),
            (
                "p.json: this is not a fluxbed-plan, version 1, because object contains unknown "
                "field "
                "`colour`: correct it"
            ),
        ),
        (
            lambda d: d.update(version=2),
            (
                "p.json: this is not a fluxbed-plan, version 1, because invalid enum value 2 at "
                "`$.version`: correct it"
            ),
        ),
        (
            lambda d: d["program"]["planes"].pop(),
            "p.json: the program has 1 planes, because the fabric has 2: plan for this fabric",
        ),
        (
            lambda d: d["program"].update(phase_ns=10_000),
            (
                "p.json: phase_ns is 10000, because the period is 10000 ns: give a phase below the "
                "period"
            ),
        ),
        (
            lambda d: d["program"]["planes"][1].reverse(),
            (
                "p.json plane 1: the slots' offsets are [5000, 0], because they rise and stay "
                "below "
                "the period: correct them"
            ),
        ),
        (
            lambda d: d["program"]["planes"][0][0].__setitem__(1, [1, 0, 3, 4]),
            (
                "p.json plane 0: the slot at 0 ns joins 4 ports, up to 4, because the plane has "
                "ports "
                "0 to 3: correct the slot"
            ),
        ),
        (
            lambda d: d.update(rank_to_node=[0, 1, 2, 4]),
            "p.json: rank 3 is on node 4, because the nodes are 0 to 3: correct rank_to_node",
        ),
        (
            lambda d: d["fabric"]["planes"][0].update(rate_bps=0),
            "p.json: the plane has rate_bps=0, because the least possible is 1: correct rate_bps",
        ),
        (
            lambda d: d["expansion"].update(protocol="LL7"),
            (
                "p.json expansion: there is no protocol 'LL7', because the protocols are "
                "Simple, LL, "
                "LL128: choose one of them"
            ),
        ),
        (
            lambda d: d.update(program={"kind": "reactive", "policy": "nobody", "params": {}}),
            (
                "p.json: its policy is 'nobody', because this machine has no such scheduler: "
                "nobody: "
                "there is no scheduler 'nobody'"
            ),
        ),
    ],
)
def test_a_bad_plan_gets_one_sentence(change: Any, sentence: str) -> None:
    with pytest.raises(InputError) as refused:
        decode_plan(broken(change), "p.json")
    assert str(refused.value).startswith(sentence)
    assert refused.value.exit_code == 5


@pytest.mark.parametrize(
    ("entries", "all_stop", "sentence"),
    [
        ([[0, 9, []]], False, "p.json plane 0: a circuit joins ports 0 and 9, because the ports"),
        ([[[0, 1, []]]], False, "p.json plane 0: this is not a list of entries, because"),
        ([[0, 1, []]], True, "p.json plane 0: this is not a list of matchings, because"),
    ],
)
def test_entries_must_suit_their_plane(entries: Any, all_stop: Any, sentence: str) -> None:
    plane = Plane(node_of=(0, 1, 2, 3), rate_bps=10**9, all_stop=all_stop)
    empty = OrderedProgram.from_entries([[]])
    document = json.loads(encode_plan(plan(empty, Fabric(nodes=4, planes=(plane,)))))
    document["program"]["planes"] = [entries]
    with pytest.raises(InputError) as refused:
        decode_plan(json.dumps(document).encode(), "p.json")
    assert str(refused.value).startswith(sentence)


def test_the_committed_schema_is_the_one_of_the_code() -> None:
    assert (SCHEMAS / "plan.schema.json").read_bytes() == plan_schema()
