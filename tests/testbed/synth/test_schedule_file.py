"""Pipeline schedules read from CSV, and joined to a model."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from scheduler.model.workload import Collective, Workload
from testbed.synth import synth
from topologies import InputError, UsageError

TOY = {"layers": 8, "hidden": 512, "ffn": 2048, "heads": 8, "vocab": 1000}
REPOSITORY = Path(__file__).resolve().parents[3]
SHARED = Path(os.environ.get("FLUXBED_TRACES", REPOSITORY.parent / "shared" / "traces"))


def toy(**options: Any) -> Workload:
    return synth(TOY, **{"seq": 4096, "mfu": 0.01, "layers": 8, **options})


def written(directory: Path, text: str) -> str:
    path = directory / "s.csv"
    path.write_text(text)
    return str(path)


def test_torchtitans_schedule() -> None:
    path = SHARED / "schedules" / "example.csv"
    if not path.is_file():
        pytest.skip("the shared traces are not here: set FLUXBED_TRACES")
    workload = toy(schedule=str(path))
    assert workload.world == 2
    sent = Counter(
        (op.root, op.peer) for op in workload.operations
        if isinstance(op, Collective) and op.kind == "send_recv"
    )  # fmt: skip
    # 4 micro-batches, stages 0 1 2 3 on ranks 0 1 0 1: 0-1, 1-2, 2-3 forward and back
    assert sent == {(0, 1): 12, (1, 0): 12}
    assert toy(schedule=str(path), dp=2).world == 4
    with pytest.raises(UsageError, match="micro_batches is 8, because the schedule has 4"):
        toy(schedule=str(path), micro_batches=8)


def test_a_file_and_a_name_mean_the_same(tmp_path: Path) -> None:
    text = "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n"
    ours = toy(schedule=written(tmp_path, text))
    assert ours.operations == toy(schedule="1f1b", pp=2, micro_batches=3).operations
    halved = "0F0,0F1,,0I0,0W0,0I1,0W1\n1F0,1I0,1F1,1I1,1W0,1W1\n"
    ours = toy(schedule=written(tmp_path, halved))
    assert ours.operations == toy(schedule="zero-bubble", pp=2, micro_batches=2).operations


GOOD = "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("\n,,\n", ": no pass is in it, because no cell is like 0F0"),
        ("0F0,0X0\n", " row 1 cell 2: '0X0' is no action, because it is not a stage, F, B"),
        ("0F0,1F0\n1B0,0B0\n", " row 1: 1F0 is not of this rank, because stage 1 of 2 lies on"),
        ("0F0,0F0,0B0\n", ": 0F0 is there twice, because a stage does it once"),
        ("0F0,0W0\n", ": the schedule is incomplete, because stage 0 does not do B, or I and W"),
        ("0F0,0B0,0F2,0B2\n", ": the schedule is incomplete, because stage 0 does not do F"),
        (GOOD.replace(",0RECV_B0", ""), ": its transfers are not those of its passes, because 4"),
        ("0B0,0F0\n", " row 1: 0B0 is never done, because what it needs comes after it"),
        ("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n", " row 1: 0B0 is never done, because what it"),
    ],
)
def test_golden_sentences(tmp_path: Path, text: str, sentence: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InputError) as refusal:
        toy(schedule=path)
    assert str(refusal.value).startswith(path + sentence)
    assert str(refusal.value).endswith(": give a pipeline schedule as PyTorch writes it")
    assert toy(schedule=written(tmp_path, GOOD)).world == 2
