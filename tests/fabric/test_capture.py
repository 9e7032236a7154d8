"""What a host of the emulated fabric sees of a run, captured there, is the traffic replayed."""

from __future__ import annotations

import socket
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scheduler"))

from instances import Builder, direct, ring  # (its path was just added)

from scheduler.model.problem import Problem
from scheduler.model.workload import Collective
from scheduler.policies.registry import find
from testbed.emulator.capacity import Capacity
from testbed.emulator.dilation import choose
from testbed.emulator.engine import execute
from testbed.emulator.netns import in_netns
from testbed.traces import load_workload
from topologies import rails

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from scheduler.model.taskgraph import TaskGraph
    from testbed.emulator.network import EmulatedFabric

NODES, ITERATIONS = 4, 2
FABRIC = rails(nodes=NODES, planes=2, rate_bps=800 * 10**9, delay_ns=50_000)
CAPACITY = Capacity(
    frames_per_s=80_000, hop_mean_ns=10_000, hop_p50_ns=8_000, hop_p99_ns=40_000, drift_ns=10_000
)
ALL, SNAPPED = 3, 128  # ETH_P_ALL; headers and what a frame stands for
SO_RCVBUFFORCE, SO_ATTACH_FILTER, SO_TIMESTAMPNS = 33, 26, 35
BUFFER_BYTES = 256 * 2**20
TIME = struct.Struct("@qq")


@pytest.fixture
def listening(network: EmulatedFabric) -> Iterator[list[socket.socket]]:
    """A packet socket in each host's namespace that keeps the beginning of every frame there."""
    opened: list[socket.socket] = []
    try:
        for node in range(NODES):
            with in_netns(network.host_pid(node)):
                one = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL))
            opened.append(one)
            one.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
            one.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            program = np.array([(6, 0, 0, SNAPPED)], "u2,u1,u1,u4")  # BPF: return SNAPPED
            filtering = struct.pack("HP", 1, program.ctypes.data)
            one.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, filtering)
            one.settimeout(0)
        yield opened
    finally:
        for one in opened:
            one.close()


def heard(one: socket.socket) -> list[tuple[int, int, bytes]]:
    """Take seconds, nanoseconds and bytes of every frame."""
    frames: list[tuple[int, int, bytes]] = []
    while True:
        try:
            frame, extra, _, _ = one.recvmsg(SNAPPED, 128)
        except BlockingIOError:
            return frames
        (stamp,) = (data for _, kind, data in extra if kind == SO_TIMESTAMPNS)
        frames.append((*TIME.unpack(stamp), frame))


def write_pcap(path: Path, frames: list[tuple[int, int, bytes]]) -> Path:
    head = struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, SNAPPED, 1)
    records = [struct.pack("<IIII", s, ns, len(data), len(data)) + data for s, ns, data in frames]
    path.write_bytes(head + b"".join(records))
    return path


def step() -> TaskGraph:
    build, everyone = Builder(NODES), list(range(NODES))
    for rank in everyone:
        build.compute(rank, 20_000 + 1_000 * rank)
    for pair in ([0, 1], [2, 3]):
        build.collective(pair, direct(pair, 300_000), 0)
    build.collective(everyone, ring(everyone, 400_000, 1), 0)
    build.collective(everyone, direct(everyone, 100_000), 0)
    return build.graph()


def replayed(graph: TaskGraph) -> NDArray[np.int64]:
    matrix = np.zeros((NODES, NODES), np.int64)
    messages = graph.messages
    np.add.at(matrix, (graph.src[messages], graph.dst[messages]), graph.size_bytes[messages])
    return matrix


def imported(paths: list[Path]) -> list[NDArray[np.int64]]:
    """The byte matrix of each iteration."""
    matrices = np.zeros((ITERATIONS, NODES, NODES), np.int64)
    workload = load_workload(paths)
    assert workload.iterations == tuple(range(ITERATIONS))
    for op in workload.operations:
        assert isinstance(op, Collective)
        assert op.root is not None
        assert op.peer is not None
        assert op.iter is not None
        matrices[op.iter, op.root, op.peer] += op.ranks[op.root].in_bytes or 0
    return list(matrices)


def test_captures_import_to_the_matrix_that_was_replayed(
    network: EmulatedFabric, listening: list[socket.socket], tmp_path: Path
) -> None:
    graph = step()
    program = find("flux").plan(Problem(graph=graph, fabric=FABRIC, budget_s=0.1))
    dilation = choose(graph, FABRIC, program, CAPACITY, factor=50.0, iterations=ITERATIONS)
    timeline = execute(graph, FABRIC, program, network, dilation=dilation, iterations=ITERATIONS)
    assert timeline.measures["lost_bytes"] == 0
    frames = [heard(one) for one in listening]
    sent = timeline.transfers.frames_sent
    assert sent is not None
    assert sum(map(len, frames)) >= 2 * int(sent.sum())
    whole = replayed(graph)
    paths = [write_pcap(tmp_path / f"h{node}.pcap", frames[node]) for node in range(NODES)]
    for node, path in enumerate(paths):
        own = np.zeros_like(whole)
        own[node], own[:, node] = whole[node], whole[:, node]
        for matrix in imported([path]):
            assert (matrix == own).all()
    for given in (paths, paths[::2], paths[1:]):
        seen = [int(path.stem[1:]) for path in given]
        for matrix in imported(given):
            assert (matrix[seen] == whole[seen]).all()
            assert (matrix[:, seen] == whole[:, seen]).all()
            assert (matrix == whole).all() == (len(given) > NODES // 2)
    merged = sorted(frame for listed in frames for frame in listed)  # each was seen at both ends
    for matrix in imported([write_pcap(tmp_path / "all.pcap", merged)]):
        assert (matrix == whole).all()
