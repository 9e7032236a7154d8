"""SimAI and ASTRA-sim text, and AICB's CSV."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from scheduler.model.workload import Collective, Compute
from testbed.traces import load_recordings, load_workload
from testbed.traces.capture import BEFORE, Recording, Work
from testbed.traces.inspect import inspect
from topologies.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path


def one(path: Path) -> Recording:
    (recording,) = load_recordings(path)
    return recording


def full_bytes(recording: Recording) -> dict[tuple[str, str | None], tuple[int, int]]:
    """Count and full tensors by kind and group."""
    count: Counter[tuple[str, str | None]] = Counter()
    total: Counter[tuple[str, str | None]] = Counter()
    for call in recording.calls:
        if call.step != BEFORE:
            count[call.kind, call.group] += 1
            total[call.kind, call.group] += max(call.in_bytes or 0, call.out_bytes or 0)
    return {key: (count[key], total[key]) for key in count}


def work_ns(recording: Recording) -> int:
    assert recording.program is not None
    items = [item for listed in recording.program.values() for item in listed]
    return sum(item.dur_ns for item in items if isinstance(item, Work))


def test_simai_13b(shared: Path) -> None:
    recording = one(shared / "simai" / "gpt13b-tp8.txt")
    updates = 92 * 100
    assert work_ns(recording) == 74_645_010 + 73_471_011 + 60_080_012 + updates
    found = full_bytes(recording)
    assert found["all_reduce", "tp"] == (89 + 82, 2_026_397_712 + 4_947_312_640)
    assert found["all_gather", "tp"] == (1, 3_248_619_520)
    assert found["reduce_scatter", "dp"] == (1, 6_497_239_040)
    assert found["broadcast", "tp"] == (1, 16_384)


def test_simai_analytical(shared: Path) -> None:
    recording = one(shared / "simai" / "workload_analytical.txt")
    assert recording.world == 9216
    compute = 2_235_901_806 + 1_914_495_229 + 392_398_442
    assert work_ns(recording) == compute + 1789 * 100
    found = full_bytes(recording)
    assert found["all_gather", "tp"] == (600 + 576, 49_828_331_520 + 48_620_371_968)
    # of the 32 all_reduces one is in the input gradients' column
    assert found["all_reduce", "tp"] == (32, 1_208_008_720 + 50_331_648)
    assert found["all_to_all", "tp"] == (384 * 2, 9_663_676_416 * 2)
    assert found["all_to_all", "ep"] == (384 * 2, 38_654_705_664 * 2)
    assert found["reduce_scatter", "tp"] == (
        384 + 408 - recording.losses.counts["collectives of 0 bytes"],
        48_318_382_080 + 38_654_705_664,
    )
    assert recording.losses.counts["collectives of 0 bytes"] == 216
    assert found["all_gather", "dp"] == (1, 2_807_758_848)
    assert found["reduce_scatter", "dp"] == (1, 5_615_517_696)
    assert found["all_gather", "dp_ep"] == (1, 19_327_352_832)
    assert found["reduce_scatter", "dp_ep"] == (1, 38_654_705_664)
    assert recording.losses.examples["pipeline transfers (pp_comm), which no row places"] == (
        "50331648 bytes"
    )
    with pytest.raises(InputError, match="9216 ranks like rank 0 need about"):
        load_workload(shared / "simai" / "workload_analytical.txt")


def test_layers_run_forwards_then_backwards(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text(
        "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 1 pp: 1 all_gpus: 4\n2\n"
        "one -1 10 ALLREDUCE 8 20 ALLREDUCE 8 30 REDUCESCATTER 16 1\n"
        "two -1 11 NONE 0 21 ALLREDUCE 8 31 NONE 0 1\n"
    )
    workload = load_workload(path)
    mine = [op for op in workload.operations if isinstance(op, Compute) and op.rank == 0]
    assert [op.dur_ns for op in mine] == [10, 11, 21, 31, 20, 30, 2]
    groups = {name: group.ranks for name, group in workload.groups.items()}
    calls = [op for op in workload.operations if isinstance(op, Collective) and 0 in op.ranks]
    assert [(op.kind, groups[op.group]) for op in calls] == [
        ("all_reduce", (0, 1)), ("all_reduce", (0, 1)), ("all_reduce", (0, 1)),
        ("reduce_scatter", (0, 2)),
    ]  # fmt: skip
    assert mine[1].deps == (calls[0].id,)
    assert mine[3].deps == ()  # a weight gradient is computed beside the input gradient's travel
    assert mine[4].deps == (calls[1].id,)
    assert set(mine[6].deps) == {calls[2].id, calls[3].id}
    assert workload.synthesised_ranks == (1, 2, 3)
    assert {group.ranks for group in workload.groups.values()} == {(0, 1), (2, 3), (0, 2), (1, 3)}


def test_a_file_that_lies_about_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    row = "a -1 1 NONE 0 1 NONE 0 1 NONE 0 100\n"
    path.write_text("HYBRID_TRANSFORMER all_gpus: 2\n839\n" + row * 33)
    said = []
    for text in (path.read_text(), "HYBRID_TRANSFORMER\n1\na -1 1 NONE\n"):
        path.write_text(text)
        with pytest.raises(InputError) as caught:
            load_workload(path)
        said.append(str(caught.value).removeprefix(str(path)))
    assert said == [
        (
            ": the file declares 839 rows and has 33, because some are missing or the number is "
            "wrong: generate the file again, or correct line 2"
        ),
        (
            " line 3: this is not a row of a workload, because it has 4 columns, of which 12 hold "
            "a layer: correct the line"
        ),
    ]


def test_aicb_a100(shared: Path) -> None:
    recording = one(shared / "aicb" / "A100_example.csv")
    sized: Counter[tuple[str, str | None, bool]] = Counter()
    count: Counter[tuple[str, str | None, bool]] = Counter()
    assert len(recording.steps) == 10
    for call in recording.calls:
        if call.step != BEFORE:
            told = call.members is not None
            count[call.kind, call.group, told] += 1
            sized[call.kind, call.group, told] += max(call.in_bytes or 0, call.out_bytes or 0)
    assert count["all_to_all", "ep_group", False] == 1280
    assert sized["all_to_all", "ep_group", False] == 42_949_672_960
    assert count["reduce_scatter", "dp_group", True] == 10
    assert sized["reduce_scatter", "dp_group", True] == 356_342_824_960
    # the file leaves the group size out of 640 of each, which the others tell
    assert count["all_gather", "tp_group", True] == 3200 + 640
    assert sized["all_gather", "tp_group", True] == 32_254_218_240 + 85_899_345_920
    assert count["reduce_scatter", "tp_group", True] == 1280 + 640
    assert sized["reduce_scatter", "tp_group", True] == 21_474_836_480 + 85_899_345_920
    assert any("cannot be derived" in text for text in inspect(recording.path).missing)


def test_aicb_13b(shared: Path) -> None:
    workload = load_workload(shared / "aicb" / "gpt13b-tp8.csv")
    assert (workload.world, len(workload.synthesised_ranks)) == (128, 127)
    members = {group.ranks for group in workload.groups.values()}
    assert tuple(range(8)) in members
    assert tuple(range(0, 128, 8)) in members
    reduced = [
        op for op in workload.operations
        if isinstance(op, Collective) and op.kind == "reduce_scatter" and 0 in op.ranks
    ]  # fmt: skip
    assert [op.ranks[0].in_bytes for op in reduced] == [6_422_958_080]
    assert any(loss.what == "files without compute" for loss in workload.losses)


def test_aicb_rows(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    head = "comm_type,comm_group,comm_group_size,msg_size,stage,dst,src,additional,_elapsed_time\n"
    path.write_text(
        head + "CommType.all_reduce,CommGroup.tp_group,2,8,init.x,None,None,,1\n"
        "CommType.epoch_end,None,None,0,,None,None,,1\n"
        "CommType.computation,None,None,0,forward,None,None,,0.25\n"
        "CommType.barrier,CommGroup.tp_group,2,99,step,None,None,,1\n"
        "CommType.all_gather,CommGroup.dp_group,2,8,step,None,None,,1\n"
    )
    workload = load_workload(path)
    mine = [
        op for op in workload.operations
        if (op.rank == 0 if isinstance(op, Compute) else 0 in op.ranks)
    ]  # fmt: skip
    work, barrier, gather = mine
    assert isinstance(work, Compute)
    assert isinstance(barrier, Collective)
    assert isinstance(gather, Collective)
    assert work.dur_ns == 250_000
    assert barrier.ranks[0].in_bytes is None
    assert (gather.ranks[0].in_bytes, gather.ranks[0].out_bytes) == (4, 8)
    path.write_text(head + "CommType.all_reduce,CommGroup.tp_group,2,much,step,None,None,,1\n")
    with pytest.raises(InputError, match=r"line 2: msg_size is 'much', because it is a number"):
        load_workload(path)


@pytest.mark.parametrize(
    ("old", "new"), [(" ep: 16 ", " ep: 0 "), ("all_gpus: 9216", "all_gpus: 1000000")]
)
def test_simai_sizes_that_cannot_be(shared: Path, tmp_path: Path, old: str, new: str) -> None:
    text = (shared / "simai" / "workload_analytical.txt").read_text()
    path = tmp_path / "x.txt"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        load_workload(path)
    name, size = new.split(":")
    assert str(caught.value) == (
        f"{path} line 1: {name.strip()} is {size.strip()}, because fluxbed counts from 1 to 262144 "
        "ranks: correct the number"
    )


@pytest.mark.parametrize("size", ["0", "1" + "0" * 30])
def test_aicb_sizes_that_cannot_be(shared: Path, tmp_path: Path, size: str) -> None:
    text = (shared / "aicb" / "gpt13b-tp8.csv").read_text()
    head, *rows = text.splitlines()
    path = tmp_path / "x.csv"
    path.write_text(
        "\n".join([head, *(row.replace("tp_group,8,", f"tp_group,{size},") for row in rows)])
    )
    with pytest.raises(InputError) as caught:
        load_workload(path)
    assert str(caught.value) == (
        f"{path}: tp_group is {size}, because fluxbed counts from 1 to 262144 ranks: correct the "
        "number"
    )
