"""Chakra files: the official field numbers, byte for byte, and back to the same workload."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model.workload import Collective, Compute, Group, Participation, Source, Workload
from testbed.synth import synth
from testbed.traces.chakra_schema import (
    COMM_TYPES,
    NODE_TYPES,
    GlobalMetadata,
    Node,
    attributes,
    frames,
    set_attribute,
    write_frames,
)
from testbed.traces.export_chakra import GROUPS_FILE, export_chakra, restore
from topologies import InputError

TOY = {"layers": 4, "hidden": 512, "ffn": 2048, "heads": 8, "vocab": 1000}
MIX = {**TOY, "experts": 8, "experts_per_token": 2}


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return value, at


def fields(data: bytes) -> list[tuple[int, Any]]:
    """Decode a message's (field number, value) by hand: varints and bytes only."""
    found: list[tuple[int, Any]] = []
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
            found.append((key >> 3, value))
        else:
            assert key & 7 == 2
            size, at = varint(data, at)
            found.append((key >> 3, data[at : at + size]))
            at += size
    return found


def packed(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        value, at = varint(data, at)
        found.append(value)
    return found


def files_of(directory: Path) -> list[tuple[str, bytes]]:
    return [(str(path), path.read_bytes()) for path in sorted(directory.glob("*.et"))]


def all_reduce(**changes: Any) -> Workload:
    part = Participation(in_bytes=300, out_bytes=300, stream=1, deps=(5,))
    first = Compute(id=5, rank=0, stream=0, dur_ns=2_600, start_ns=7_000, iter=3)
    other = dataclasses.replace(first, id=6, rank=1)
    op = Collective(
        id=7, kind="all_reduce", group="tp", iter=3, dtype="bfloat16",
        ranks={0: part, 1: dataclasses.replace(part, deps=(6,))},
    )  # fmt: skip
    return Workload(
        world=2, groups={"tp": Group(ranks=(0, 1))}, operations=(first, other, op),
        iterations=(3,), source=Source(path="x", sha256=None, format="test"), **changes,
    )  # fmt: skip


def test_every_field_has_its_official_number(tmp_path: Path) -> None:
    """et_def.proto: id 1, name 2, type 3, deps 4 and 5, times 6 and 7, attr 10; int64 is 9."""
    export_chakra(all_reduce(compute_scale=0.5), tmp_path)
    metadata, compute, collective = map(fields, frames((tmp_path / "trace.0.et").read_bytes(), ""))
    assert metadata[0] == (1, b"0.0.4")
    assert {number for number, _ in metadata} == {1, 2}
    plain = {number: value for number, value in compute if number != 10}
    assert plain == {2: b"compute_5", 3: 4, 6: 7, 7: 1}  # COMP_NODE, us; id 0 is not written
    plain = {number: value for number, value in collective if number != 10}
    assert packed(plain.pop(5)) == [0]
    assert plain == {1: 2, 2: b"all_reduce_7", 3: 7}
    attrs = [dict(fields(value)) for number, value in collective if number == 10]
    by_name = {attr[1]: {k: v for k, v in attr.items() if k != 1} for attr in attrs}
    assert by_name[b"comm_size"] == {9: 300}
    assert by_name[b"comm_type"] == {9: 0}  # ALL_REDUCE, present though 0
    assert by_name[b"pg_name"] == {29: b"0"}
    assert by_name[b"is_cpu_op"] == {27: 0}
    assert json.loads((tmp_path / GROUPS_FILE).read_text()) == {"0": [0, 1]}


def test_scalars_and_lists_have_their_official_numbers() -> None:
    numbers = {
        "double": 3, "float": 5, "int32": 7, "int64": 9, "uint32": 11, "uint64": 13, "sint32": 15,
        "sint64": 17, "fixed32": 19, "fixed64": 21, "sfixed32": 23, "sfixed64": 25, "bool": 27,
        "string": 29, "bytes": 31,
    }  # fmt: skip
    by_name = Node.DESCRIPTOR.fields_by_name["attr"].message_type.fields_by_name
    for kind, number in numbers.items():
        assert by_name[f"{kind}_val"].number == number
        assert by_name[f"{kind}_list"].number == number + 1
    assert [by_name[name].number for name in ("name", "doc_string")] == [1, 2]
    assert NODE_TYPES.index("COMM_COLL_NODE") == 7
    assert [COMM_TYPES.index(name) for name in ("ALL_TO_ALL", "REDUCE_SCATTER", "BARRIER")] == [
        6, 7, 9,
    ]  # fmt: skip


def test_golden_bytes() -> None:
    node = Node(id=300, name="a", type=4, data_deps=[1, 300], duration_micros=5)
    set_attribute(node, "n", "int64", -1)
    expected = bytes.fromhex(
        "08ac02"  # 1: 300
        "120161"  # 2: "a"
        "1804"  # 3: COMP_NODE
        "2a0301ac02"  # 5: packed 1, 300
        "3805"  # 7: 5
        "520e0a016e48ffffffffffffffffff01"  # 10: name "n", 9: -1
    )
    assert node.SerializeToString(deterministic=True) == expected
    assert b"".join(write_frames([node])) == bytes([len(expected)]) + expected
    assert attributes(Node.FromString(expected)) == {"n": -1}


def test_official_files_read_as_expected(shared: Path) -> None:
    data = (shared / "chakra" / "resnet50.0.et").read_bytes()
    metadata, *nodes = frames(data, "resnet50.0.et")
    assert GlobalMetadata.FromString(metadata).version == ""
    decoded = [Node.FromString(node) for node in nodes]
    assert len(decoded) == 3_664
    assert sum(len(node.ctrl_deps) + len(node.data_deps) for node in decoded) == 185_542
    compute = [node for node in decoded if node.type == NODE_TYPES.index("COMP_NODE")]
    assert sum(node.duration_micros for node in compute) == 343_769
    assert restore([("resnet50.0.et", data)]) is None


@settings(max_examples=15, deadline=None)
@given(
    tp=st.sampled_from([1, 2]), pp=st.sampled_from([1, 2]), dp=st.sampled_from([1, 2]),
    zero=st.sampled_from([0, 1, 3]), mixture=st.integers(0, 1),
)  # fmt: skip
def test_a_step_comes_back_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    mixture: int,
    **grid: int,
) -> None:
    directory = tmp_path_factory.mktemp("chakra")
    more = {"ep": grid["dp"], "expert_skew": 0.5} if mixture else {}
    workload = synth(MIX if mixture else TOY, layers=2, seq=64, **grid, **more)
    paths = export_chakra(workload, directory)
    assert len(paths) == workload.world + 1
    assert restore(files_of(directory)) == workload


def test_everything_a_workload_can_say_comes_back(tmp_path: Path) -> None:
    workload = all_reduce(
        placement={0: "a", 1: "b"}, time_base="utc", compute_scale=0.3, synthesised_ranks=(1,)
    )
    part = Participation(
        in_bytes=None, out_bytes=40, stream=9, arrive_ns=-5, end_ns=12, starts_after=(5,)
    )
    nothing = Participation(in_bytes=None, out_bytes=None, stream=2)
    more = (
        Collective(id=8, kind="barrier", group="tp", iter=3, seq=1,
                   ranks=dict.fromkeys((0, 1), nothing)),
        Collective(id=99, kind="send_recv", group="tp", iter=3, root=0, peer=1, tag=4, algo="x",
                   ranks={0: part, 1: nothing}),
        Collective(id=11, kind="all_to_all", group="tp", iter=None, splits={0: (1, 2)},
                   ranks={r: Participation(in_bytes=3, out_bytes=None, stream=2) for r in (0, 1)}),
    )  # fmt: skip
    workload = dataclasses.replace(workload, operations=workload.operations + more)
    export_chakra(workload, tmp_path)
    assert restore(files_of(tmp_path)) == workload
    assert restore(files_of(tmp_path)[::-1]) == workload


def test_damaged_and_missing_files_are_named(tmp_path: Path) -> None:
    export_chakra(all_reduce(), tmp_path)
    (first, data), (second, other) = files_of(tmp_path)
    with pytest.raises(InputError, match="rank 1 is missing, because the workload has 2 ranks"):
        restore([(first, data)])
    with pytest.raises(InputError, match="rank 0 appears twice"):
        restore([(first, data), ("copy.et", data)])
    with pytest.raises(InputError, match=r"copy\.et: the message at byte \d+ is incomplete"):
        restore([(first, data), ("copy.et", other[:-3])])
    with pytest.raises(InputError, match="this is no Chakra trace"):
        restore([("text.et", b"\x05hello")])
    with pytest.raises(InputError, match="the directory cannot be made, because"):
        export_chakra(all_reduce(), Path(second) / "below")


def read_or_refused(data: bytes) -> bool:
    try:
        restore([("noise.et", data)])
    except InputError as error:
        return "noise.et" in str(error)
    return True


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    assert read_or_refused(data)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_change_to_an_export_is_read_or_refused(data: Any, alone: bytes) -> None:
    changed = bytearray(alone)
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    assert read_or_refused(bytes(changed))


def test_a_header_of_another_type_is_refused(alone: bytes) -> None:
    changed = alone.replace(b"fluxbed_header\xea\x01", b"fluxbed_header\xfa\x01")  # a string: bytes
    with pytest.raises(InputError) as refused:
        restore([("noise.et", changed)])
    assert str(refused.value) == (
        "noise.et: it is not as fluxbed wrote it, because fluxbed_header or fluxbed_rank is of "
        "another type: export it again"
    )


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """One rank's computations and a group of itself."""
    directory = tmp_path_factory.mktemp("alone")
    part = Participation(in_bytes=300, out_bytes=300, stream=1, deps=(5,))
    first = Compute(id=5, rank=0, stream=0, dur_ns=2_600, start_ns=7_000, iter=3)
    op = Collective(id=7, kind="all_reduce", group="tp", iter=3, ranks={0: part})
    source = Source(path="x", sha256=None, format="test")
    groups = {"tp": Group(ranks=(0,))}
    export_chakra(
        Workload(world=1, groups=groups, operations=(first, op), iterations=(3,), source=source),
        directory,
    )
    return (directory / "trace.0.et").read_bytes()
