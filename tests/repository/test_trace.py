"""The bundled trace holds what its README says, and its ranks fit together."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
TRACE = REPOSITORY / "examples/traces/llama-tp4-dp2"
WORLD = 8
ELEMENT_BYTES = {"BFloat16": 2, "Float": 4}


def read(path: Path) -> dict[str, Any]:
    with gzip.open(path) as stream:
        content: dict[str, Any] = json.load(stream)
    return content


@pytest.fixture(scope="module")
def kineto() -> list[dict[str, Any]]:
    return [read(TRACE / f"kineto_rank{rank}.json.gz") for rank in range(WORLD)]


def steps(trace: dict[str, Any]) -> list[dict[str, Any]]:
    marks = [e for e in trace["traceEvents"] if e.get("name", "").startswith("ProfilerStep#")]
    return sorted(marks, key=lambda e: e["ts"])


def collectives(trace: dict[str, Any], step: int) -> list[dict[str, Any]]:
    mark = steps(trace)[step]
    return [
        event["args"]
        for event in trace["traceEvents"]
        if event.get("name") == "record_comms"
        and 0 <= event["ts"] - mark["ts"] < mark["dur"]
        and event["args"]["Collective name"] != "wait"
    ]


def test_it_is_small() -> None:
    assert sum(path.stat().st_size for path in TRACE.iterdir()) < 3_000_000


def test_every_rank_says_who_it_is_and_marks_its_steps(kineto: list[dict[str, Any]]) -> None:
    assert [trace["distributedInfo"]["rank"] for trace in kineto] == list(range(WORLD))
    for trace in kineto:
        assert [mark["name"] for mark in steps(trace)] == ["ProfilerStep#2", "ProfilerStep#3"]


@pytest.mark.parametrize("step", [0, 1])
def test_a_rank_takes_part_in_what_the_readme_lists(
    kineto: list[dict[str, Any]], step: int
) -> None:
    for trace in kineto:
        found = Counter(
            (
                args["Process Group Description"],
                args["Collective name"],
                args["In msg nelems"] * ELEMENT_BYTES[args["dtype"]],
                args["Out msg nelems"] * ELEMENT_BYTES[args["dtype"]],
            )
            for args in collectives(trace, step)
        )
        assert found == {
            ("tp", "_allgather_base", 1_048_576, 4_194_304): 21,
            ("tp", "_reduce_scatter_base", 4_194_304, 1_048_576): 14,
            ("tp", "allreduce", 8_192, 8_192): 3,
            ("tp", "allreduce", 14_336, 14_336): 1,
            ("tp", "allreduce", 4, 4): 1,
            ("dp", "allreduce", 7_081_984, 7_081_984): 1,
            ("dp", "allreduce", 8_523_776, 8_523_776): 1,
            ("dp", "allreduce", 9_705_472, 9_705_472): 1,
        }


@pytest.mark.parametrize("step", [0, 1])
def test_ranks_agree_on_every_collective(kineto: list[dict[str, Any]], step: int) -> None:
    seen: dict[tuple[str, int], list[tuple[int, str, int]]] = {}
    for rank, trace in enumerate(kineto):
        for args in collectives(trace, step):
            key = (args["Process Group Ranks"], args["Seq"])
            what = (rank, args["Collective name"], args["In msg nelems"])
            seen.setdefault(key, []).append(what)
    assert len(seen) == 92
    for (members, _), parts in seen.items():
        assert [rank for rank, _, _ in parts] == json.loads(members)
        assert len({(name, size) for _, name, size in parts}) == 1


def test_every_collective_is_waited_for(kineto: list[dict[str, Any]]) -> None:
    for trace in kineto:
        calls = [e["args"] for e in trace["traceEvents"] if e.get("name") == "record_comms"]
        name = "Collective name"
        issued = Counter((a["Process Group Name"], a["Seq"]) for a in calls if a[name] != "wait")
        waited = Counter((a["Process Group Name"], a["Seq"]) for a in calls if a[name] == "wait")
        assert issued == waited


def test_execution_traces_hold_the_last_step() -> None:
    for rank in range(WORLD):
        trace = read(TRACE / f"et_rank{rank}.json.gz")
        assert trace["schema"].startswith("1.")
        texts = [
            json.loads(node["inputs"]["values"][0])
            for node in trace["nodes"]
            if node["name"] == "record_comms"
        ]
        assert {text["Rank"] for text in texts} == {rank}
        assert len([text for text in texts if text["Collective name"] != "wait"]) == 43


def test_the_compute_scale_is_roofline_over_captured_time() -> None:
    meta = json.loads((TRACE / "meta.json").read_text())
    assert meta["tp"] * meta["dp"] == WORLD
    seconds = meta["flops_per_rank_and_step"] / (meta["gpu_peak_flops"] * meta["mfu"])
    assert meta["roofline_compute_ns"] == pytest.approx(seconds * 1e9, rel=1e-6)
    by_rank = meta["captured_compute_ns_by_rank"]
    assert meta["captured_compute_ns"] == pytest.approx(sum(by_rank) / WORLD, rel=1e-6)
    scale = meta["roofline_compute_ns"] / meta["captured_compute_ns"]
    assert meta["compute_scale"] == pytest.approx(scale, rel=1e-4)
