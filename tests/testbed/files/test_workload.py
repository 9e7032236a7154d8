from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model.workload import (
    Collective,
    Compute,
    Group,
    Loss,
    Participation,
    Source,
    Workload,
)
from testbed.files.workload import (
    decode_workload,
    encode_workload,
    read_workload,
    workload_schema,
    write_workload,
)
from topologies.errors import InputError, UsageError

SCHEMA = Path(__file__).resolve().parents[3] / "docs" / "schemas" / "workload.schema.json"


def small() -> Workload:
    parts = {
        rank: Participation(in_bytes=4, out_bytes=None, stream=1, deps=(rank,)) for rank in (0, 1)
    }
    return Workload(
        world=2,
        groups={"w": Group(ranks=(0, 1), desc="all", origin="inferred")},
        source=Source(path="x.json", sha256=None, format="kineto", schema="1"),
        operations=(
            Compute(id=0, rank=0, stream=0, dur_ns=5, start_ns=-3, iter=7),
            Compute(id=1, rank=1, stream=0, dur_ns=6, iter=7, starts_after=()),
            Collective(
                id=2, kind="all_to_all", group="w", ranks=parts, seq=0, iter=7, dtype="float",
                splits={0: (1, 3), 1: (4, 0)}, tag=9, root=1,
            ),
            Compute(id=3, rank=1, stream=0, dur_ns=0, deps=(2,), starts_after=(1,)),
        ),
        iterations=(7,),
        placement={0: "a", 1: "b"},
        compute_scale=0.25,
        losses=(Loss(what="something", count=2, example="here"),),
        synthesised_ranks=(1,),
        notes=("a note",),
    )  # fmt: skip


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_round_trip_and_determinism(tmp_path: Path, suffix: str) -> None:
    one, two = (tmp_path / f"{name}.workload.jsonl{suffix}" for name in ("one", "two"))
    write_workload(small(), one)
    write_workload(small(), two)
    assert read_workload(one) == small()
    assert one.read_bytes() == two.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == [one.name, two.name]


def test_the_lines_are_the_contract() -> None:
    header, first, _, comm, _ = (json.loads(line) for line in encode_workload(small()))
    assert list(header)[:11] == [
        "format", "version", "world", "source", "placement", "time_base", "compute_scale",
        "groups", "iterations", "losses", "synthesised_ranks",
    ]  # fmt: skip
    assert (header["format"], header["version"]) == ("fluxbed-workload", 1)
    assert header["groups"] == {"w": {"ranks": [0, 1], "desc": "all", "origin": "inferred"}}
    assert first == {
        "op": "compute", "id": 0, "rank": 0, "stream": 0, "start_ns": -3, "dur_ns": 5,
        "iter": 7, "deps": [],
    }  # fmt: skip
    assert comm["op"] == "comm"
    assert comm["ranks"]["0"] == {
        "in_bytes": 4, "out_bytes": None, "stream": 1, "arrive_ns": None, "end_ns": None,
        "deps": [0], "starts_after": [],
    }  # fmt: skip
    assert "algo" not in comm
    assert "peer" not in comm


def test_schema_is_the_committed_one_and_fits_the_examples() -> None:
    assert SCHEMA.read_bytes() == workload_schema()
    schema = json.loads(SCHEMA.read_text())
    validator = jsonschema.Draft202012Validator(schema)
    for line in encode_workload(small()):
        validator.validate(json.loads(line))
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({"op": "compute", "id": 0, "extra": 1})


def damaged(lines: list[Any]) -> str:
    encoded = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    with pytest.raises(InputError) as caught:
        decode_workload(encoded, "x.workload.jsonl")
    assert caught.value.exit_code == 5
    return str(caught.value)


def parsed() -> list[Any]:
    return [json.loads(line) for line in encode_workload(small())]


GOLDEN = {
    "empty": "x.workload.jsonl: there is no header, because the file is empty: write it again",
    "version": (
        "x.workload.jsonl line 1: this is not a fluxbed-workload header, version 1, because "
        "invalid enum value 2 at `$.version`: correct it"
    ),
    "cut": (
        "x.workload.jsonl line 3: this is not an operation, because the JSON ends early: "
        "copy or write the file again, completely"
    ),
    "unknown key": (
        "x.workload.jsonl line 2: this is not an operation, because object contains unknown field "
        "`colour`: correct it"
    ),
    "id twice": (
        "x.workload.jsonl line 3: operation 0 appears twice, because x.workload.jsonl line 2 has "
        "the same id: correct the operation"
    ),
    "rank": (
        "x.workload.jsonl line 2: the rank is 2, because the world has 2 ranks: "
        "correct the operation"
    ),
    "group": (
        "x.workload.jsonl line 4: the group is 'v', because the header's groups are w: "
        "correct the operation"
    ),
    "members": (
        "x.workload.jsonl line 4: the ranks of a all_to_all are [0], because its members are "
        "[0, 1]: correct the operation"
    ),
    "dangling": (
        "x.workload.jsonl line 2: operation 77 is awaited, because there is none of that id: "
        "correct the operation"
    ),
    "foreign": (
        "x.workload.jsonl line 3: operation 0 is awaited by rank 1, because rank 1 has no part in "
        "it: correct the operation"
    ),
    "circle": (
        "x.workload.jsonl line 3: operation 1 waits for itself, because the dependencies form a "
        "circle: correct the operation"
    ),
    "splits": (
        "x.workload.jsonl line 4: the splits of rank 0 are [1, 2], because it needs one size per "
        "member, 4 bytes in all: correct the operation"
    ),
}


def test_golden_sentences() -> None:
    said: dict[str, str] = {"empty": damaged([])}
    edits: dict[str, tuple[int, Any]] = {
        "version": (0, {"version": 2}),
        "unknown key": (1, {"colour": 1}),
        "id twice": (2, {"id": 0}),
        "rank": (1, {"rank": 2}),
        "group": (3, {"group": "v"}),
        "dangling": (1, {"deps": [77]}),
        "foreign": (2, {"deps": [0]}),
        "circle": (2, {"deps": [3]}),
        "splits": (3, {"splits": {"0": [1, 2], "1": [4, 0]}}),
    }
    for name, (index, change) in edits.items():
        lines = parsed()
        lines[index] |= change
        said[name] = damaged(lines)
    lines = parsed()
    del lines[3]["ranks"]["1"]
    said["members"] = damaged(lines)
    lines = parsed()
    lines[2] = json.dumps(lines[2]).encode()[:20]
    said["cut"] = damaged(lines)
    assert said == GOLDEN


def test_a_dependency_may_come_later_in_the_file() -> None:
    workload = dataclasses.replace(
        small(),
        operations=(
            Compute(id=5, rank=0, stream=1, dur_ns=1, deps=(6,)),
            Compute(id=6, rank=0, stream=0, dur_ns=1),
        ),
    )
    assert decode_workload(encode_workload(workload), "x") == workload


def test_unreadable_and_damaged_files(tmp_path: Path) -> None:
    missing = tmp_path / "no.workload.jsonl"
    with pytest.raises(InputError, match="cannot be read, because no such file"):
        read_workload(missing)
    cut = tmp_path / "cut.workload.jsonl.gz"
    write_workload(small(), cut)
    cut.write_bytes(cut.read_bytes()[:60])
    with pytest.raises(InputError, match="compressed data is damaged"):
        read_workload(cut)
    with pytest.raises(UsageError, match="cannot be written, because no such file"):
        write_workload(small(), tmp_path / "no" / "x.workload.jsonl")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_mutated_bytes_never_escape_as_anything_else(data: st.DataObject) -> None:
    content = bytearray(b"".join(encode_workload(small())))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=4))
    with contextlib.suppress(InputError):
        decode_workload(bytes(content).splitlines(keepends=True), "x")
