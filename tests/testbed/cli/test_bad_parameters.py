"""Parameters that cannot be, or that nobody would choose: one sentence, or an honest result."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from scheduler.model.workload import Compute, Workload
from scheduler.policies.registry import BUILT_IN
from testbed.files.workload import read_workload, write_workload

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SCHEDULERS = [name for name in BUILT_IN if name != "flux-exact"]


@pytest.fixture
def lines(step: Path) -> list[dict[str, Any]]:
    """The workload file, line by line."""
    return [json.loads(line) for line in step.read_text().splitlines()]


@pytest.fixture
def refused(fluxbed: Any, tmp_path: Path) -> Callable[[list[dict[str, Any]]], str]:
    """Simulate a workload of these lines; return the one sentence that refuses it."""

    def simulate(lines: list[dict[str, Any]]) -> str:
        path = tmp_path / "bad.workload.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        code, out, err = fluxbed("simulate", path, "-t", "rails,planes=2", "-s", "greedy")
        assert (code, out) == (5, ""), err
        assert err.count("\n") == 1, err
        assert err.startswith(str(path)), err
        return str(err)

    return simulate


@pytest.mark.parametrize(
    ("topology", "sentence"),
    [
        ("rails,nodes=1", "rails,nodes=1: nodes=1, because a fabric joins two nodes or more"),
        ("rails,nodes=0", "because a fabric joins two nodes or more"),
        ("rails,nodes=-4", "-4"),
        ("rails,planes=0", "fabric: the fabric has planes=0, because the least possible is 1"),
        ("rails,planes=many", "many"),
        ("rails,rate=0Gbps", ""),
        ("rails,delay=-1us", "rails,delay=-1us: delay='-1us' is not a duration"),
        ("rails,delay=1e400s", ""),
        ("rails,delay=nan us", ""),
    ],
)
def test_a_fabric_that_cannot_be(fluxbed: Any, step: Path, topology: str, sentence: str) -> None:
    code, out, err = fluxbed("simulate", step, "-t", topology, "-s", "greedy")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert sentence in err


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_delay_longer_than_the_iteration(
    fluxbed: Any, step: Path, tmp_path: Path, name: str
) -> None:
    words = ["-t", "rails,planes=3,delay=1s", "-s", name, "-n", "3", "--budget", "1ms"]
    code, out, err = fluxbed("simulate", step, *words, "--format", "json", "-o", tmp_path / "o")
    if code:
        assert (code, err.count("\n")) == (2, 1), err
        return
    (row,) = json.loads(out)
    assert row["status"] == "ok"
    assert row["iteration_ns"] > 0


def test_a_message_to_oneself(
    lines: list[dict[str, Any]], refused: Callable[[list[dict[str, Any]]], str]
) -> None:
    comm = next(line for line in lines if line.get("op") == "comm")
    part = next(iter(comm["ranks"].values()))
    rank = int(next(iter(comm["ranks"])))
    own = {**comm, "kind": "send_recv", "root": rank, "peer": rank, "ranks": {str(rank): part}}
    kept = [own if line is comm else line for line in lines]
    assert "rank" in refused(kept)


def test_operations_in_a_circle(
    lines: list[dict[str, Any]], refused: Callable[[list[dict[str, Any]]], str]
) -> None:
    computes = [line for line in lines if line.get("op") == "compute" and line["rank"] == 0]
    first, last = computes[0], computes[-1]
    first["deps"], last["deps"] = [last["id"]], [first["id"]]
    assert "waits for itself, because the dependencies form a circle" in refused(lines)


def test_negative_durations_and_sizes(
    lines: list[dict[str, Any]], refused: Callable[[list[dict[str, Any]]], str]
) -> None:
    compute = next(line for line in lines if line.get("op") == "compute")
    compute["dur_ns"] = -1
    assert "dur_ns" in refused(lines)


def test_a_collective_of_no_bytes_moves_nothing(
    fluxbed: Any, lines: list[dict[str, Any]], tmp_path: Path
) -> None:
    for line in lines:
        for part in line.get("ranks", {}).values() if line.get("op") == "comm" else ():
            part["in_bytes"] = part["out_bytes"] = 0
    path = tmp_path / "empty.workload.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ["-t", "rails,planes=2", "-s", "greedy", "-s", "flux", "-s", "rotor-direct"]
    code, out, err = fluxbed(
        "simulate", path, *words, "-n", "3", "--format", "json", "-o", tmp_path / "o"
    )
    assert code == 0, err
    for row in json.loads(out):
        assert (row["messages"], row["bytes"]) == (0, 0)


def test_a_workload_of_one_rank_has_no_fabric(fluxbed: Any, step: Path, tmp_path: Path) -> None:
    whole = read_workload(step)
    own = tuple(op for op in whole.operations if isinstance(op, Compute) and op.rank == 0)
    alone = tuple(
        Compute(
            id=op.id, rank=0, stream=op.stream, dur_ns=op.dur_ns, start_ns=op.start_ns,
            iter=op.iter,
        )
        for op in own[:3]
    )  # fmt: skip
    path = tmp_path / "one.workload.jsonl"
    write_workload(
        Workload(
            world=1, source=whole.source, operations=alone, groups={}, iterations=whole.iterations
        ),
        path,
    )
    code, out, err = fluxbed("simulate", path, "-t", "rails,planes=2", "-s", "flux")
    assert (code, out) == (2, "")
    assert "least possible is 2" in err or "nodes" in err
    assert err.count("\n") == 1


def test_more_tasks_than_memory_holds(
    fluxbed: Any, step: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.model.memory.available_bytes", lambda: 50_000)
    words = ["-t", "rails,planes=2", "-s", "greedy", "-n", "100", "-o", tmp_path / "o"]
    code, out, err = fluxbed("simulate", step, *words)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("simulation: 12 iterations of")
    assert err.endswith("execute fewer iterations, or use larger chunks or fewer channels\n")


def test_more_tasks_than_fluxbed_holds(
    fluxbed: Any, step: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.model.layout._MOST_TASKS", 100)
    code, out, err = fluxbed("simulate", step, "-t", "rails,planes=2", "-s", "greedy")
    assert (code, out) == (2, "")
    assert "fluxbed holds up to 100: use larger chunks" in err
    assert err.count("\n") == 1
