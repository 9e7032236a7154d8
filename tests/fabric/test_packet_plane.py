"""The packet plane: bridged, shaped, read back, and kept apart from the optical ones."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import pytest
from instances import Builder  # (its path was added by test_engine)
from test_engine import check_records, dilation_for, planned, step
from test_mn import mn, reached
from traffic import HEADERS_BYTES, counts, receive, send

from scheduler.dispatch.simulator import simulate
from scheduler.model.program import Entry, OrderedProgram
from scheduler.model.timeline import NONE
from testbed.emulator.engine import execute
from testbed.emulator.netns import links, qdiscs, tc_batch
from testbed.emulator.network import EmulatedFabric
from testbed.emulator.packet_plane import BURST_BYTES
from topologies import FluxbedError, UsageError, build_fabric

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scheduler.model.taskgraph import TaskGraph

HYBRID = build_fabric("hybrid,nodes=4,planes=1,packet_rate=25Gbps")
PACKETS = 1
BASE = 4  # the first global port of the packet plane


@pytest.fixture(scope="module")
def network() -> Iterator[EmulatedFabric]:
    """Four hosts on an optical and a packet plane."""
    with EmulatedFabric(HYBRID, "test-packet-plane") as built:
        yield built


def test_every_port_is_bridged_and_shaped_to_the_rate_of_the_plane(network: EmulatedFabric) -> None:
    pid = network.switch_pid(PACKETS)
    for port in range(4):
        name = f"p1-eth{port}"
        assert links(pid)[name]["master"] == "p1-bridge"
        assert qdiscs(pid)[name]["kind"] == "tbf"
        assert qdiscs(pid)[name]["options"]["rate"] == 25 * 10**9 // 8
    assert links(pid)["p1-bridge"]["ifalias"] == "fluxbed:test-packet-plane"
    assert all(queue["kind"] != "tbf" for queue in qdiscs(network.switch_pid(0)).values())


def test_everybody_reaches_everybody_and_nobody_else_hears_it(network: EmulatedFabric) -> None:
    for src in range(4):
        for dst in range(4):
            if src != dst:
                send(network, BASE + src, BASE + dst, 1, 100 + 10 * src + dst)
    time.sleep(0.05)
    for dst in range(4):
        sizes = sorted(len(frame) for frame in receive(network, BASE + dst))
        assert sizes == [100 + 10 * src + dst for src in range(4) if src != dst]
    assert counts(network) == {}  # the crossbar has no part in it


def test_the_optical_plane_beside_it_needs_its_circuits(network: EmulatedFabric) -> None:
    network.crossbar.reset()
    send(network, 0, 1, 3)
    assert counts(network) == {"unconnected": 3}
    network.crossbar.set_circuit_at(0, 1)
    send(network, 0, 1, 2)
    assert len(receive(network, 1)) == 2
    network.crossbar.reset()


@pytest.mark.parametrize("rate_bps", [20 * 10**6, 200 * 10**6])
def test_frames_leave_at_the_shaped_rate_and_none_is_lost(
    network: EmulatedFabric, rate_bps: int
) -> None:
    plane = network.packet_planes[PACKETS]
    plane.shape(rate_bps)
    size, frames = 4096, rate_bps // (8 * 4096 * 4)  # a quarter of a second
    before = plane.counts()["forwarded_frames"]
    begun = time.monotonic()
    send(network, BASE, BASE + 1, frames // 2, size)
    send(network, BASE + 2, BASE + 1, frames // 2, size)  # both towards one port
    got = 0
    while got < frames // 2 * 2 and time.monotonic() < begun + 10:
        got += len(receive(network, BASE + 1))
        time.sleep(0.001)
    took_s = time.monotonic() - begun
    assert got == frames // 2 * 2
    assert plane.counts()["forwarded_frames"] - before == got
    assert plane.counts()["dropped_frames"] == 0
    wire_bits = 8 * (got * (size + HEADERS_BYTES) - BURST_BYTES)
    assert wire_bits / took_s < 1.02 * rate_bps  # never faster, whatever else this machine does
    assert wire_bits / took_s > 0.7 * rate_bps


def test_ports_are_shaped_each_on_its_own(network: EmulatedFabric) -> None:
    plane = network.packet_planes[PACKETS]
    plane.shape(8 * 10**5)
    send(network, BASE, BASE + 1, 20, 4096)
    assert len(receive(network, BASE + 1)) < 20  # 0.8 s worth of frames wait
    send(network, BASE, BASE + 3, 1, 100)
    time.sleep(0.02)
    assert len(receive(network, BASE + 3)) == 1
    plane.shape(10**9)  # a changed rate keeps what waits or drops it; nobody else's later
    time.sleep(0.05)
    receive(network, BASE + 1)


def test_a_shaper_that_somebody_changed_is_told(network: EmulatedFabric) -> None:
    plane = network.packet_planes[PACKETS]
    plane.shape(10**9)
    tc_batch(
        network.switch_pid(PACKETS),
        ["qdisc replace dev p1-eth2 root handle 1: tbf rate 5mbit burst 20000 limit 100000"],
    )
    with pytest.raises(FluxbedError, match=r"p1-eth2: .* shaped to 5000000 bit/s, 20000 B at once"):
        plane.verify()
    tc_batch(network.switch_pid(PACKETS), ["qdisc del dev p1-eth2 root"])
    with pytest.raises(FluxbedError, match="its queue is noqueue"):
        plane.verify()
    plane.shape(10**9)


def test_a_rate_nobody_could_wait_for_is_refused(network: EmulatedFabric) -> None:
    with pytest.raises(UsageError, match="p1-bridge: a packet plane of 100 bit/s"):
        network.packet_planes[PACKETS].shape(100)


def test_a_rotation_does_not_share_a_packet_plane(network: EmulatedFabric) -> None:
    graph = step(200_000)
    program = planned("rotor-direct", HYBRID, graph)
    dilation = dilation_for(graph, HYBRID, program, 50.0)
    with pytest.raises(UsageError, match="engine: plane 1 is a packet switch"):
        execute(graph, HYBRID, program, network, dilation=dilation)


def incast(size_bytes: int) -> tuple[TaskGraph, OrderedProgram]:
    """Three nodes that send to one over packets, twice each, and one of them elsewhere too."""
    build = Builder(4)
    for rank in range(4):
        build.compute(rank, 1_000 * rank)
    flows = [(src, 0, size_bytes + 1_000 * src, 0, []) for src in (1, 2, 3, 1, 2, 3)]
    build.collective([0, 1, 2, 3], [*flows, (1, 2, size_bytes, 0, [])], 0)
    graph = build.graph()
    entries: dict[tuple[int, int], list[int]] = {}
    for message in graph.messages.tolist():
        pair = int(graph.src[message]), int(graph.dst[message])
        entries.setdefault(pair, []).append(message)
    listed = [Entry(src, dst, tuple(each)) for (src, dst), each in entries.items()]
    return graph, OrderedProgram.from_entries([[], listed])


@pytest.mark.parametrize("size_bytes", [40, 300_000])
def test_incast_waits_at_the_hosts_and_ends_as_predicted(
    network: EmulatedFabric, size_bytes: int
) -> None:
    graph, program = incast(size_bytes)
    dilation = dilation_for(graph, HYBRID, program, 200.0)
    before = network.packet_planes[PACKETS].counts()
    timeline = execute(graph, HYBRID, program, network, dilation=dilation, iterations=2)
    check_records(graph, HYBRID, program, timeline, dilation)
    moves, measures = timeline.transfers, timeline.measures
    assert (moves.circuit == NONE).all()
    assert measures["drops_queue"] == 0
    after = network.packet_planes[PACKETS].counts()
    assert after["forwarded_frames"] - before["forwarded_frames"] == measures["frames_sent"]
    assert after["waiting_bytes"] == 0
    into = np.flatnonzero(moves.to_node == 0)  # one at a time, whoever it is from
    wire_ns = [HYBRID.planes[PACKETS].transfer_ns(int(b)) for b in moves.size_bytes[into]]
    begins = moves.start_ns[into]
    assert (begins[1:] >= begins[:-1] + wire_ns[:-1] - 2).all()
    predicted = simulate(graph, HYBRID, program, iterations=2)
    # who goes first may differ; only a broken machine misses this, the benchmark has the real error
    late_ns = 12 * float(measures["hop_max_us"] or 0) * 1e3 / dilation.factor
    assert timeline.end_ns.max() >= 0.9 * predicted.end_ns.max()
    assert timeline.end_ns.max() <= 1.05 * predicted.end_ns.max() + late_ns


def test_mn_bridges_the_packet_plane() -> None:
    done = mn("--topo", "hybrid,planes=1", typed='py h0.cmd("ping -c 1 -W 1 10.1.0.4")\n')
    said = done.stdout + done.stderr
    assert "1 packets transmitted, 1 received" in said, said
    assert "would clean" not in said


@pytest.mark.parametrize(
    "topology", ["single,ports=2", "servers,gpus=2", "rotor,matchings=2", "torus"]
)
def test_mn_builds_every_topology(topology: str) -> None:
    done = mn("--topo", topology, "--test", "pingall")
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert len(reached(said)) == 4
    assert "would clean" not in said
