"""Seeded mutations of example files: each loads or is refused in one sentence, never anything else.

500 of each; FLUXBED_FUZZ=10000 makes it thorough and FLUXBED_FUZZ_SEED makes it another set. Long
files are cut down first, so that what is changed matters. A mutation that takes more than a
GiB or ten seconds of processor time fails.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import demand_maker
import kineto_maker
import mutations
import nccl_log_maker
import pytest
from mutations import Mutator

from testbed.traces import load_workload
from topologies.errors import FluxbedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROUNDS: Final = int(os.environ.get("FLUXBED_FUZZ", "500"))
SEED: Final = os.environ.get("FLUXBED_FUZZ_SEED", "1")
MOST_BYTES: Final = 2**30
MOST_S: Final = 10.0

K, E, C = "kineto/", "execution-trace/", "captured-gloo-4rank/"
UNPACKED, PLAIN, LINES = mutations.unpacked, mutations.plain, mutations.lines
EXAMPLES: Final[dict[str, tuple[str, Callable[[Path], bytes]]]] = {
    "kineto dlrm": (f"{K}dlrm8.kineto.tar.gz", mutations.first_member),
    "kineto ddp": (f"{K}ddp-rank1of2-no-sizes.json.gz", UNPACKED),
    "kineto gloo": (f"{K}gloo-cpu-only-rank34of300.json.gz", UNPACKED),
    "kineto integers": (f"{K}large-integer-rank70.json.gz", UNPACKED),
    "kineto resnet": (f"{K}resnet50-ddp-rank0of2.json.gz", UNPACKED),
    "kineto sampled": (f"{K}torchrec-rank0of128-sampled.json.gz", UNPACKED),
    "kineto torchrec of 16": (f"{K}torchrec-rank0of16.json.gz", UNPACKED),
    "kineto torchrec of 8": (f"{K}torchrec-rank3of8.json.gz", UNPACKED),
    "kineto captured": (f"{C}kineto_rank0.json.gz", UNPACKED),
    "et captured": (f"{C}et_rank0.json.gz", UNPACKED),
    "et dlrm": (f"{E}dlrm8.et.tar.gz", mutations.first_member),
    "et linear": (f"{E}linear-1.0.1.json.gz", UNPACKED),
    "et resnet 1": (f"{E}resnet50-1gpu-1.0.1.json.gz", UNPACKED),
    "et resnet 2": (f"{E}resnet50-2gpu-1.1.0.json.gz", UNPACKED),
    "flight recorder": (f"{C}fr_rank0.json.gz", UNPACKED),
    "flight recorder pickle": (f"{C}fr_rank0.json.gz", mutations.pickled),
    "chakra T1D": ("chakra/T1D-analytical_trace.0.et", PLAIN),
    "chakra groups": ("chakra/T1D-analytical_comm_group.json", PLAIN),
    "chakra all_gather": ("chakra/micro_all_gather.4npus.0.et", PLAIN),
    "chakra all_reduce": ("chakra/micro_all_reduce.4npus.1.et", PLAIN),
    "chakra all_to_all": ("chakra/micro_all_to_all.4npus.2.et", PLAIN),
    "chakra reduce_scatter": ("chakra/micro_reduce_scatter.4npus.3.et", PLAIN),
    "chakra resnet": ("chakra/resnet50.0.et", mutations.chakra_of),
    "chakra json": ("chakra/json_trace.tar.gz", mutations.first_member),
    "chakra small json": ("chakra/json_trace.tar.gz", mutations.second_member),
    "comms-replay": ("comms-replay/param_comms.3.json", PLAIN),
    "goal tree of 16": ("goal/lgs_binary_tree_16.goal", PLAIN),
    "goal tree of 32": ("goal/lgs_binary_tree_32.goal", PLAIN),
    "goal dissemination of 16": ("goal/lgs_dissemination_16.goal", PLAIN),
    "goal dissemination of 32": ("goal/lgs_dissemination_32.goal", PLAIN),
    "goal schedule": ("goal/lgs_schedule.goal", PLAIN),
    "simai 13b": ("simai/gpt13b-tp8.txt", LINES),
    "simai analytical": ("simai/workload_analytical.txt", LINES),
    "aicb 13b": ("aicb/gpt13b-tp8.csv", LINES),
    "aicb a100": ("aicb/A100_example.csv", LINES),
    "gzip": (f"{C}fr_rank0.json.gz", PLAIN),
    "tar": ("chakra/json_trace.tar.gz", PLAIN),
}


def packets(directory: Path) -> bytes:
    return demand_maker.pcap(directory / "x", demand_maker.FRAMES).read_bytes()


def packets_ng(directory: Path) -> bytes:
    return demand_maker.pcapng(directory / "x", demand_maker.FRAMES).read_bytes()


def database(directory: Path) -> bytes:
    marks = [demand_maker.mark(2**n, n % 3, (n + 1) % 3, n) for n in range(9)]
    return demand_maker.export(directory / "x", marks).read_bytes()


def nccl_log(_: Path) -> bytes:
    lines = [line for rank in range(4) for line in nccl_log_maker.log_of(rank)]
    return "\n".join(lines).encode()


def too_long(*_: Any) -> None:
    pytest.fail(f"it took more than {MOST_S} s")


@pytest.fixture
def _bounded(tmp_path: Path) -> Iterator[None]:
    """Bound memory and processor time, with everything imported that importing needs."""
    path = tmp_path / "warm.json"
    path.write_text(json.dumps(kineto_maker.plain(0)))
    load_workload(path)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGVTALRM, too_long)
    most = pages * resource.getpagesize() + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, handler)


def survive(paths: list[Path], target: Path, content: bytes, name: str) -> None:
    """Replace `target`, one of `paths`, by mutations of `content`, and load them all."""
    mutator = Mutator(content)
    dice = random.Random(f"{name} {SEED}")  # noqa: S311 (seeded on purpose)
    for number in range(ROUNDS):
        target.write_bytes(mutator.mutate(dice))
        signal.setitimer(signal.ITIMER_VIRTUAL, MOST_S)
        try:
            load_workload(paths)
        except FluxbedError as error:
            assert ", because " in str(error), number  # noqa: PT017 (loading is right as well)


@pytest.mark.usefixtures("_bounded")
@pytest.mark.parametrize("name", EXAMPLES)
def test_mutations(shared: Path, tmp_path: Path, name: str) -> None:
    file, read = EXAMPLES[name]
    path = tmp_path / "mutated.0.json"
    survive([path], path, read(shared / file), name)


@pytest.mark.usefixtures("_bounded")
@pytest.mark.parametrize("make", [packets, packets_ng, database, nccl_log])
def test_mutations_of_made_captures(tmp_path: Path, make: Callable[[Path], bytes]) -> None:
    path = tmp_path / "mutated"
    content = make(tmp_path)
    path.write_bytes(content)
    assert load_workload(path).world > 2
    survive([path], path, content, make.__name__)


def dlrm(shared: Path) -> list[bytes]:
    archive = shared / f"{K}dlrm8.kineto.tar.gz"
    return [mutations.shortened(mutations.member(archive, place)) for place in range(8)]


def execution_traces(shared: Path) -> list[bytes]:
    archive = shared / f"{E}dlrm8.et.tar.gz"
    return [mutations.shortened(mutations.member(archive, place)) for place in range(8)]


def flight_recorders(shared: Path) -> list[bytes]:
    return [UNPACKED(path) for path in sorted((shared / C).glob("fr_*"))]


def comms_replays(shared: Path) -> list[bytes]:
    return [PLAIN(path) for path in sorted((shared / "comms-replay").glob("*.json"))]


def chakras(shared: Path) -> list[bytes]:
    return [PLAIN(path) for path in sorted((shared / "chakra").glob("T1D*.et"))]


@pytest.mark.usefixtures("_bounded")
@pytest.mark.parametrize(
    "ranks", [dlrm, execution_traces, flight_recorders, comms_replays, chakras]
)
def test_mutations_of_one_rank_among_all(
    shared: Path, tmp_path: Path, ranks: Callable[[Path], list[bytes]]
) -> None:
    contents = ranks(shared)
    paths = [tmp_path / f"rank_{place}.{place}.json" for place in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    assert load_workload(paths).world == len(contents)
    survive(paths, paths[1], contents[1], ranks.__name__)
