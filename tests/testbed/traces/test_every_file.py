"""Every captured file imports, with what it does not say told; none is left out of this list."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import pytest
from shared_files import EIGHT, EVERYONE, FILES, G, load, paths, told

from scheduler.model.workload import Collective
from testbed.synth.schedule_file import read_schedule
from testbed.traces import load_workload
from topologies.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from scheduler.model.workload import Workload

ANALYTICAL: Final = "simai/workload_analytical.txt"


@pytest.mark.parametrize("pattern", FILES)
def test_it_imports(shared: Path, pattern: str) -> None:
    _, world, derived, collectives = FILES[pattern]
    workload = load(shared, pattern)
    assert workload.world == world
    assert len(workload.synthesised_ranks) == derived
    assert sum(isinstance(op, Collective) for op in workload.operations) == collectives


def test_no_file_is_left_out(shared: Path) -> None:
    seen = {path for pattern in FILES for path in shared.glob(pattern.partition("!")[0])}
    captured = {path for path in shared.rglob("*") if path.is_file() and path.parent != shared}
    others = {path.relative_to(shared).as_posix() for path in captured - seen}
    assert others == {
        f"{G}/cap.py",  # how that capture was made
        "execution-trace/linear-1.0.1.json.gz",  # one process: nothing to replay (test_values)
        ANALYTICAL,  # too many ranks to take them all (below)
        "schedules/example.csv",  # a schedule, for a synthetic step
    }
    assert len(read_schedule(shared / "schedules/example.csv")) > 1


# What is refused until it is told: the sentence says what is missing, and how to tell it.
UNTOLD: Final = {
    "kineto/torchrec-rank0of16.json.gz": (
        "only rank 0 of 16 is recorded, because the others cannot be derived: the group of "
        "reduce_scatter calls is not recorded: give the traces of all ranks, or the members of "
        "unknown groups with --group"
    ),
    "aicb/A100_example.csv": (
        "only rank 0 of 8 is recorded, because the others cannot be derived: the group of "
        "all_to_all calls is not recorded: give the traces of all ranks, or the members of unknown "
        "groups with --group"
    ),
    f"{G}/et_*": (
        "the groups of rank 0's calls cannot be told apart, because this format lists groups but "
        "not which call used which: give the Kineto traces of the same run as well, or tell the "
        "members with --group"
    ),
    ANALYTICAL: (
        "9216 ranks like rank 0 need about 42.92 GB of memory, because at most 840 MB is taken "
        "unasked: choose some ranks with --ranks, best those of whole groups"
    ),
    "schedules/example.csv": (
        "this is a pipeline schedule, because it says in which order stages work, not what they "
        "compute and send: make a step that runs it with fluxbed synth MODEL --schedule"
    ),
    "chakra/json_trace.tar.gz": (
        "rank 0 appears twice, because jsonData/chakra.0.json is of the same rank and steps: give "
        "each rank once, as ARCHIVE!MEMBER for one file of an archive"
    ),
}


@pytest.mark.parametrize("pattern", UNTOLD)
def test_what_a_file_lacks_is_said(shared: Path, pattern: str) -> None:
    given = paths(shared, pattern)
    with pytest.raises(InputError) as caught:
        load_workload(given)
    said = str(caught.value).replace(f"{given[0]}!", "")
    assert said.partition(": ")[2] == UNTOLD[pattern]


def test_a_group_told_wrongly(shared: Path) -> None:
    path = shared / "kineto/torchrec-rank0of128-sampled.json.gz"
    wrong = told(*EVERYONE, "all_gather", among=128)
    with pytest.raises(InputError) as caught:
        load_workload(path, **wrong)
    assert str(caught.value) == (
        f"{path}: the group told for all_gather has 128 ranks, because an all_gather that makes "
        "1073741824 bytes of 16777216 has 64: correct --group, or tell KIND:BYTES=RANKS where a "
        "kind is used in several groups"
    )


def bytes_by_kind(workload: Workload) -> Counter[tuple[str, int | None, int | None]]:
    """Count collectives by kind and what rank 0 puts in and gets out."""
    return Counter(
        (op.kind, op.ranks[0].in_bytes, op.ranks[0].out_bytes)
        for op in workload.operations
        if isinstance(op, Collective) and 0 in op.ranks
    )


@pytest.mark.parametrize("which", ["implicit_sync", "long"])
def test_a_summary_tells_counts_and_bytes(shared: Path, which: str) -> None:
    workload = load(shared, f"summaries/*{which}.csv")
    assert bytes_by_kind(workload) == {
        ("all_gather", 213_913_600, 8 * 213_913_600): 318,
        ("all_gather", 525_338_624, 8 * 525_338_624): 2,
        ("reduce_scatter", 3_422_617_600, 3_422_617_600 // 8): 160,
        ("reduce_scatter", 8_405_417_984, 8_405_417_984 // 8): 2,
        ("all_reduce", 4, 4): 6,
    }
    counts = {loss.what: loss.count for loss in workload.losses}
    order = "calls whose order is not in the file: spread evenly by kind and size"
    assert counts[order] == 488 * (8 if which == "long" else 1)
    (group,) = workload.groups.values()
    assert group.ranks == EIGHT
    assert group.origin == ("recorded" if which == "long" else "default")


def test_one_server_of_the_analytical_workload(shared: Path) -> None:
    """Of 9216 ranks the first 32: whole tensor and expert groups, no whole data groups."""
    workload = load_workload(shared / ANALYTICAL, ranks=range(32))
    assert (workload.world, workload.synthesised_ranks) == (9216, tuple(range(1, 32)))
    found: Counter[tuple[str, int]] = Counter()
    for op in workload.operations:
        if isinstance(op, Collective) and 0 in op.ranks:
            part = op.ranks[0]
            size = max(part.in_bytes or 0, part.out_bytes or 0)
            found[op.kind, len(workload.groups[op.group].ranks)] += size
    assert found == {
        ("all_gather", 2): 49_828_331_520 + 48_620_371_968,
        ("reduce_scatter", 2): 48_318_382_080 + 38_654_705_664,
        ("all_reduce", 2): 1_208_008_720 + 50_331_648,
        ("all_to_all", 2): 2 * 9_663_676_416,
        ("all_to_all", 16): 2 * 38_654_705_664,
    }
    lost = {loss.what: loss.count for loss in workload.losses}
    assert lost["calls of groups with ranks that were left out"] == 4 * 32


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            "0,0,,all_reduce,8,Float,many,6",
            "line 2: In msg nelems is 'many', because it must be a whole number at least 0",
        ),
        ("0,0,,all_reduce,8,Whole,1,6", "line 2: dtype is 'Whole', because its bytes are not"),
        ("0,0,,all_reduce,0,Float,1,6", "line 2: Group size is 0, because there are 1 to"),
        (
            '0,0,"[0, 1]",all_reduce,8,Float,1,6',
            "line 2: Group size is 8, because the row lists 2",
        ),
        (f"0,0,,all_reduce,8,Float,1,{10**9}", "line 2: the count is 1000000000, because more"),
        ("0,0,,wait,8,Float,1,6", "no collective is summarised, because no row has a"),
    ],
)
def test_summaries_that_are_wrong(tmp_path: Path, row: str, said: str) -> None:
    path = tmp_path / "x.csv"
    head = "rank,Process Group Name,Process Group Ranks,Collective name,Group size,dtype"
    path.write_text(f"{head},In msg nelems,operation_count\n{row}\n")
    with pytest.raises(InputError) as caught:
        load_workload(path)
    assert said in str(caught.value)
