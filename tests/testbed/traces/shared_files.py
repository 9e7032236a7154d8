"""The shared traces that import: which files are one run, what to tell of it, what comes out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from testbed.traces import load_workload

if TYPE_CHECKING:
    from scheduler.model.workload import Workload

G: Final = "captured-gloo-4rank"
EVERYONE: Final = ("all_to_all", "all_reduce")


def told(*kinds: str, among: int, **others: tuple[int, ...]) -> dict[str, Any]:
    return {"groups": {**dict.fromkeys(kinds, tuple(range(among))), **others}}


PAIRS: Final = {  # tensor parallel 0, 1 and 2, 3; data parallel 0, 2 and 1, 3
    "all_to_all": (0, 1, 2, 3), "barrier": (0, 1, 2, 3), "all_reduce:131072": (0, 1),
    "all_reduce": (0, 2), "all_gather": (0, 2), "reduce_scatter": (0, 2),
}  # fmt: skip
EIGHT: Final = tuple(range(8))
# files; what the user tells; world, ranks derived by symmetry, collectives
FILES: Final[dict[str, tuple[dict[str, Any], int, int, int]]] = {
    "kineto/dlrm8.kineto.tar.gz": ({}, 8, 0, 8),
    "kineto/resnet50-ddp-rank0of2.json.gz": ({}, 2, 1, 21),
    "kineto/ddp-rank1of2-no-sizes.json.gz": (told("all_reduce", among=2), 2, 1, 2020),
    "kineto/gloo-cpu-only-rank34of300.json.gz": (told("all_reduce", among=300), 300, 299, 10),
    "kineto/large-integer-rank70.json.gz": ({}, 1, 0, 1),
    "kineto/torchrec-rank3of8.json.gz": (told(*EVERYONE, among=8), 8, 7, 60),
    "kineto/torchrec-rank0of16.json.gz": (
        told(*EVERYONE, among=16, all_gather=EIGHT, reduce_scatter=EIGHT), 16, 15, 95,
    ),
    "kineto/torchrec-rank0of128-sampled.json.gz": (
        told(*EVERYONE, among=128, all_gather=tuple(range(64))), 128, 127, 12,
    ),
    "execution-trace/dlrm8.et.tar.gz": ({}, 8, 0, 8),
    "execution-trace/resnet50-1gpu-1.0.1.json.gz": ({}, 1, 0, 21),
    "execution-trace/resnet50-2gpu-1.1.0.json.gz": ({}, 2, 1, 21),
    f"{G}/kineto_*": ({}, 4, 0, 51),
    f"{G}/fr_*": ({}, 4, 0, 75),
    f"{G}/et_*": ({"groups": PAIRS}, 4, 0, 51),
    "chakra/T1D-*": ({}, 8, 0, 1),
    "chakra/micro_all_gather.*": ({}, 4, 0, 1),
    "chakra/micro_all_reduce.*": ({}, 4, 0, 1),
    "chakra/micro_all_to_all.*": ({}, 4, 0, 1),
    "chakra/micro_reduce_scatter.*": ({}, 4, 0, 1),
    "chakra/resnet50.0.et": ({}, 1, 0, 7),
    "chakra/feeder_tests_trace.tar.gz": ({}, 1, 0, 7),
    "chakra/json_trace.tar.gz!jsonData/chakra.0.json": ({}, 1, 0, 7),
    "chakra/json_trace.tar.gz!jsonData/small*": (told("broadcast", among=8), 8, 7, 1),
    "comms-replay/*.json": ({}, 8, 0, 8),
    "goal/lgs_binary_tree_16.goal": ({}, 16, 0, 15),
    "goal/lgs_binary_tree_32.goal": ({}, 32, 0, 31),
    "goal/lgs_dissemination_16.goal": ({}, 16, 0, 64),
    "goal/lgs_dissemination_32.goal": ({}, 32, 0, 160),
    "goal/lgs_schedule.goal": ({}, 8, 0, 7),
    "simai/gpt13b-tp8.txt": ({}, 8, 7, 181),
    "aicb/gpt13b-tp8.csv": ({}, 128, 127, 2728),
    "aicb/A100_example.csv": ({"groups": {"ep_group": (0, 2)}}, 8, 7, 34000),
    "summaries/*implicit_sync.csv": ({}, 8, 7, 488),
    "summaries/*long.csv": ({}, 8, 0, 488),
}  # fmt: skip


def paths(shared: Path, pattern: str) -> list[Path]:
    outer, mark, member = pattern.partition("!")
    return [Path(f"{path}{mark}{member}") for path in sorted(shared.glob(outer))]


def load(shared: Path, pattern: str) -> Workload:
    return load_workload(paths(shared, pattern), **FILES[pattern][0])
