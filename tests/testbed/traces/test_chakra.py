from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from scheduler.model.workload import Collective, Compute, Workload
from testbed.traces import load_recordings, load_workload
from testbed.traces.chakra_schema import GlobalMetadata, Node, set_attribute, write_frames
from topologies.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def collectives(workload: Workload) -> list[Collective]:
    return [op for op in workload.operations if isinstance(op, Collective)]


def test_converted_resnet(shared: Path) -> None:
    (recording,) = load_recordings(shared / "chakra" / "resnet50.0.et")
    assert recording.program is not None
    sizes: Counter[str] = Counter()
    for call in recording.calls:
        sizes[call.kind] += call.in_bytes or 0
    assert Counter(call.kind for call in recording.calls) == {"all_reduce": 5, "broadcast": 2}
    assert sizes == {"all_reduce": 102_228_128, "broadcast": 212_904}
    workload = load_workload(shared / "chakra" / "resnet50.0.et")
    work = [op for op in workload.operations if isinstance(op, Compute)]
    assert sum(op.dur_ns for op in work) == 343_769_000
    counts = {loss.what: loss.count for loss in workload.losses}
    assert counts["dependencies on nodes that are not in the file"] == 1277
    assert counts["CPU wrappers of collectives, which are no traffic"] == 14


def test_json_has_the_same_compute_and_no_sizes(shared: Path) -> None:
    recordings = load_recordings(shared / "chakra" / "json_trace.tar.gz")
    small, whole = sorted(recordings, key=lambda r: len(r.calls))
    assert Counter(call.kind for call in whole.calls) == {"all_reduce": 5, "broadcast": 2}
    assert {call.in_bytes for call in whole.calls} == {None}
    assert [call.kind for call in small.calls] == ["broadcast"]
    assert "rank 0 appears twice" in refusal([shared / "chakra" / "json_trace.tar.gz"])


@pytest.mark.parametrize(
    ("kind", "received"),
    [
        ("all_reduce", 1048576),
        ("all_gather", 4 * 1048576),
        ("reduce_scatter", 262144),
        ("all_to_all", 1048576),
    ],
)
def test_microbenchmarks(shared: Path, kind: str, received: int) -> None:
    workload = load_workload(sorted((shared / "chakra").glob(f"micro_{kind}.*")))
    (op,) = collectives(workload)
    assert (workload.world, op.kind, op.ranks[3].in_bytes) == (4, kind, 1048576)
    assert op.ranks[3].out_bytes == received


def test_groups_of_the_side_file(shared: Path) -> None:
    workload = load_workload(sorted((shared / "chakra").glob("T1D*")))
    (op,) = collectives(workload)
    assert (op.kind, op.group) == ("all_reduce", "0")
    assert workload.groups["0"].ranks == tuple(range(8))
    assert workload.groups["0"].origin == "recorded"
    assert not workload.losses


def node(number: int, kind: int, deps: Iterable[int] = (), us: int = 0, **about: Any) -> Any:
    made = Node(id=number, name=f"n{number}", type=kind, duration_micros=us)
    made.data_deps.extend(deps)
    for name, value in about.items():
        set_attribute(made, name, "bool" if isinstance(value, bool) else "int64", value)
    return made


def put(directory: Path, name: str, *nodes: Any) -> Path:
    path = directory / name
    path.write_bytes(b"".join(write_frames([GlobalMetadata(version="0.0.4"), *nodes])))
    return path


def refusal(paths: list[Path]) -> str:
    with pytest.raises(InputError) as caught:
        load_workload(paths)
    return str(caught.value)


def test_pairs_dependencies_and_overlap(tmp_path: Path) -> None:
    first = put(
        tmp_path, "t.0.et",
        node(1, 4, us=10, is_cpu_op=False),
        node(2, 5, [1], comm_src=0, comm_dst=1, comm_size=8, comm_tag=3, is_cpu_op=False),
        node(3, 4, [1], us=5, is_cpu_op=False),
        node(4, 1, [2, 3]),
        node(5, 4, [4], us=7, is_cpu_op=False),
    )  # fmt: skip
    second = put(
        tmp_path, "t.1.et",
        node(1, 6, comm_src=0, comm_dst=1, comm_size=8, comm_tag=3, is_cpu_op=False),
        node(2, 4, [1], us=1, is_cpu_op=False),
    )  # fmt: skip
    workload = load_workload([second, first])
    (pair,) = collectives(workload)
    assert (pair.kind, pair.root, pair.peer, pair.tag) == ("send_recv", 0, 1, 3)
    assert (pair.ranks[0].in_bytes, pair.ranks[1].out_bytes) == (8, 8)
    mine = [op for op in workload.operations if isinstance(op, Compute) and op.rank == 0]
    assert [op.dur_ns for op in mine] == [10_000, 5_000, 7_000]
    assert mine[2].deps == tuple(sorted((pair.id, mine[1].id)))  # through the metadata node
    (after,) = [op for op in workload.operations if isinstance(op, Compute) and op.rank == 1]
    assert after.deps == (pair.id,)


def test_a_long_chain_and_a_circle(tmp_path: Path) -> None:
    call = node(90_000, 7, comm_size=4, is_cpu_op=False)
    chain = [node(i, 1, [i - 1]) for i in range(1, 50_000)]
    path = put(tmp_path, "c.0.et", *chain, node(50_000, 4, [49_999], us=1, is_cpu_op=False), call)
    assert len(load_workload(path).operations) == 2
    path = put(tmp_path, "c.0.et", node(1, 4, [2]), node(2, 4, [1]), call)
    assert refusal([path]) == (
        f"{path}: node 1 waits for itself, because the dependencies form a circle: "
        "convert the trace again"
    )


def test_damage(tmp_path: Path) -> None:
    path = put(tmp_path, "d.0.et", node(1, 4, us=1), node(2, 7, [1], comm_size=4, is_cpu_op=False))
    path.write_bytes(path.read_bytes()[:-3])
    assert "is incomplete" in refusal([path])
    path.write_bytes(b"\x00\x06\x08\x01\x12\xff\xff\x01")
    assert "this is no Chakra trace" in refusal([path])
    odd = tmp_path / "j.0.json"
    odd.write_text(json.dumps({"workload_graph": [{"Id": 1, "NodeType": "four"}]}))
    assert "this is not a Chakra graph" in refusal([odd])
    twice = put(tmp_path, "e.0.et", node(1, 4), node(1, 4))
    assert "two nodes have the same id" in refusal([twice])
