"""Seeded mutations of real files: each loads or is refused in one sentence, never anything else.

FLUXBED_FUZZ=10000 makes it thorough.
"""

from __future__ import annotations

import gzip
import json
import os
import pickle
import random
import tarfile
from typing import TYPE_CHECKING, Final

import pytest

from testbed.traces import load_workload
from topologies.errors import FluxbedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROUNDS: Final = int(os.environ.get("FLUXBED_FUZZ", "25"))
TOKENS: Final = [
    b"", b"0", b"-1", b"1e999", b"null", b"true", b"[", b"]", b"{", b"}", b'"', b",", b":", b"\x00",
    b"\xff", b"99999999999999999999", b'"x"', b"NaN", b" ", b"\n", b"[[]]", b"0.5", b"send", b"-",
]  # fmt: skip


def member(path: Path) -> bytes:
    with tarfile.open(path) as archive:
        stream = archive.extractfile(next(m for m in archive.getmembers() if m.isfile()))
        assert stream is not None
        return stream.read()


def pickled(path: Path) -> bytes:
    return pickle.dumps(json.loads(gzip.decompress(path.read_bytes())))


def packed(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes())


def plain(path: Path) -> bytes:
    return path.read_bytes()


FILES: Final[dict[str, tuple[str, Callable[[Path], bytes]]]] = {
    "kineto gloo": ("captured-gloo-4rank/kineto_rank0.json.gz", packed),
    "kineto gpu": ("kineto/dlrm8.kineto.tar.gz", member),
    "execution trace nested": ("captured-gloo-4rank/et_rank0.json.gz", packed),
    "execution trace flat": ("execution-trace/dlrm8.et.tar.gz", member),
    "flight recorder": ("captured-gloo-4rank/fr_rank0.json.gz", packed),
    "flight recorder pickle": ("captured-gloo-4rank/fr_rank0.json.gz", pickled),
    "chakra": ("chakra/T1D-analytical_trace.0.et", plain),
    "chakra groups": ("chakra/T1D-analytical_comm_group.json", plain),
    "chakra json": ("chakra/json_trace.tar.gz", member),
    "comms-replay": ("comms-replay/param_comms.3.json", plain),
    "goal": ("goal/lgs_binary_tree_32.goal", plain),
    "simai": ("simai/gpt13b-tp8.txt", plain),
    "aicb": ("aicb/gpt13b-tp8.csv", plain),
    "gzip": ("captured-gloo-4rank/fr_rank0.json.gz", plain),
    "tar": ("execution-trace/dlrm8.et.tar.gz", plain),
}


def mutate(content: bytes, dice: random.Random) -> bytes:
    changed = bytearray(content[: dice.randrange(len(content))] if dice.random() < 0.1 else content)
    for _ in range(dice.randint(1, 6)):
        at = dice.randrange(len(changed) + 1)
        if dice.random() < 0.5:  # text formats: hit a value, not the middle of a long string
            at = max(changed.rfind(b":", 0, at), changed.rfind(b" ", 0, at), 0) + 1
        changed[at : at + dice.choice((0, 1, 2, 5))] = dice.choice(TOKENS)
    return bytes(changed)


@pytest.mark.parametrize("name", FILES)
def test_mutations(shared: Path, tmp_path: Path, name: str) -> None:
    file, read = FILES[name]
    content = read(shared / file)
    dice = random.Random(f"{name} 1")  # noqa: S311 (seeded on purpose)
    weight = 400_000 if name == "aicb" else len(content)  # it is expanded to 128 ranks
    rounds = max(4, min(ROUNDS, ROUNDS * 100_000 // weight))
    path = tmp_path / "mutated.0.json"
    for number in range(rounds):
        path.write_bytes(mutate(content, dice))
        try:
            load_workload(path)
        except FluxbedError as error:
            assert ", because " in str(error), number  # noqa: PT017 (loading is right as well)
