"""The fabric as Mininet, iproute2 and the kernel see it, and what is left when it is gone."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from traffic import counts, eventually, receive, send

from testbed.emulator import cleanup
from testbed.emulator import network as network_module
from testbed.emulator.cleanup import clean
from testbed.emulator.netns import links
from testbed.emulator.network import EmulatedFabric
from testbed.emulator.registry import RUNS, Process, read_records
from topologies import Fabric, FluxbedError, Plane, UsageError, rails

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SMALL = rails(nodes=3, planes=1)
MAP_GET_FD_BY_ID = 14
HOLDER = """
import sys, time
from testbed.emulator.network import EmulatedFabric
from topologies import rails
with EmulatedFabric(rails(nodes=3, planes=1), sys.argv[1]) as network:
    sleeper = network.net.hosts[1].popen("sleep", "600") if "with-child" in sys.argv else None
    print(network.host_pid(0), sleeper.pid if sleeper else 0, flush=True)
    time.sleep(600)
"""


def root_links() -> list[str]:
    found = subprocess.run(["ip", "-json", "link"], capture_output=True, check=True).stdout  # noqa: S607 (ours)
    return sorted(link["ifname"] for link in json.loads(found))


def map_ids(network: EmulatedFabric) -> list[int]:
    """The kernel's numbers of the crossbar's maps, while we still hold them."""
    fds = (network.crossbar._rows.fd, network.crossbar._counted.fd, network.crossbar._port_of.fd)
    lines = [Path(f"/proc/self/fdinfo/{fd}").read_text("ascii").splitlines() for fd in fds]
    return [int(line.split()[1]) for text in lines for line in text if line.startswith("map_id")]


def map_exists(number: int) -> bool:
    attributes = ctypes.create_string_buffer(struct.pack("=I", number), 144)
    system_call = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
    fd = ctypes.CDLL(None).syscall(system_call, MAP_GET_FD_BY_ID, attributes, 144)
    if fd >= 0:
        os.close(fd)
    return bool(fd >= 0)


def nothing_is_left(run: str, pids: list[int], maps: list[int], before: list[str]) -> bool:
    return (
        eventually(lambda: not any(map(lives, pids)))
        and eventually(lambda: not any(map(map_exists, maps)))
        and root_links() == before
        and not (RUNS / f"{run}.json").exists()
    )


def node_pids(network: EmulatedFabric) -> list[int]:
    return [node.pid for node in (*network.net.hosts, *network.net.switches)]


@pytest.fixture
def hold() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start another process that holds a fabric, at the latest until the test is over."""
    started = []

    def start(run: str, *options: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(  # noqa: S603 (ours)
            [sys.executable, "-c", HOLDER, run, *options],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def node_and_child(holder: subprocess.Popen[str]) -> tuple[int, int]:
    """Wait until the fabric stands: the shell of h0, and what runs in h1."""
    assert holder.stdout is not None
    node, child = holder.stdout.readline().split()
    return int(node), int(child)


def lives(pid: int) -> bool:
    try:
        return Process.of(pid).lives()
    except ProcessLookupError:
        return False


def test_every_link_is_there_up_and_named_after_its_run(network: EmulatedFabric) -> None:
    hosts = [links(network.host_pid(node)) for node in range(4)]
    switches = [links(network.switch_pid(plane)) for plane in range(2)]
    assert [sorted(host) for host in hosts] == [
        [f"h{n}-eth0", f"h{n}-eth1", "lo"] for n in range(4)
    ]
    assert [len(switch) for switch in switches] == [5, 5]
    for name, link in [*hosts[3].items(), *switches[1].items()]:
        assert link["ifalias"] == f"fluxbed:{network.run_id}"
        assert "LOWER_UP" in link["flags"]
        assert name == "lo" or link["mtu"] == 9216


def test_mininet_knows_its_nodes_and_their_addresses(network: EmulatedFabric) -> None:
    host = network.net.get("h2")
    assert [(i.name, i.IP(), i.MAC()) for i in host.intfList()] == [
        ("h2-eth0", "10.0.0.3", "02:fb:00:00:00:02"),
        ("h2-eth1", "10.1.0.3", "02:fb:00:01:00:02"),
    ]
    assert "10.1.0.3/16" in host.cmd("ip -brief addr show dev h2-eth1")
    assert "PERMANENT" in host.cmd("ip neigh show 10.1.0.1 dev h2-eth1")
    assert network.net.switches[1].ports[network.net.switches[1].nameToIntf["p1-eth2"]] == 2


def test_nothing_is_sent_that_no_program_sent(idle: EmulatedFabric) -> None:
    time.sleep(0.3)
    assert counts(idle) == {}


def test_ping_crosses_a_pair_of_circuits(idle: EmulatedFabric) -> None:
    idle.crossbar.set_circuit_at(4, 6)
    idle.crossbar.set_circuit_at(6, 4)
    said = idle.net.get("h0").cmd("ping -c 3 -i 0.01 -W 2 10.1.0.3")
    if "not found" in said:
        pytest.skip("ping is not installed")
    assert " 0% packet loss" in said
    assert counts(idle) == {"forwarded": 6}


def test_the_sockets_lead_back_to_their_ports(network: EmulatedFabric) -> None:
    fd, address, port_of_fd = network.sockets
    assert port_of_fd[fd].tolist() == list(range(8))
    assert bytes(address[5]) == bytes.fromhex("020012b70a010002") + bytes(8)


def test_a_node_with_two_ports_on_a_plane_uses_each() -> None:
    plane = Plane(node_of=(0, 0, 1, 1), rate_bps=10**9)
    with EmulatedFabric(Fabric(nodes=2, planes=(plane,)), "test-two-ports") as network:
        for src, dst in ((0, 3), (1, 2)):
            network.crossbar.set_circuit_at(src, dst)
            send(network, src, dst, 10 + src)
        assert [len(receive(network, port)) for port in range(4)] == [0, 0, 11, 10]
        assert network.crossbar.counters[:, 0].tolist() == [10, 11, 0, 0]


def test_nothing_is_left_afterwards() -> None:
    before = root_links()
    with EmulatedFabric(SMALL, "test-left") as network:
        pids, maps = node_pids(network), map_ids(network)
        assert len(maps) == 3
        assert all(map(map_exists, maps))
        network.crossbar.set_circuit_at(0, 1)
        send(network, 0, 1, 5)
        tables = network.crossbar
    assert nothing_is_left("test-left", pids, maps, before)
    assert tables.totals()["forwarded_frames"] == 5  # the counts outlive the maps


@pytest.mark.parametrize("failure", [KeyboardInterrupt, FluxbedError("a", "b", "c", "d")])
def test_nothing_is_left_when_it_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    before, seen = root_links(), []

    def fail(network: EmulatedFabric, _: object) -> None:
        seen.extend([*node_pids(network), *map_ids(network)])
        raise failure

    monkeypatch.setattr(EmulatedFabric, "_open_sockets", fail)
    with pytest.raises(type(failure) if isinstance(failure, Exception) else failure):
        EmulatedFabric(SMALL, "test-cut").__enter__()
    assert nothing_is_left("test-cut", seen[:4], seen[4:], before)


def test_a_link_that_is_not_as_asked_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_module, "links", lambda _: {})
    with pytest.raises(FluxbedError, match=r"^h0-eth0: .* it does not exist"):
        EmulatedFabric(SMALL, "test-missing").__enter__()
    real = links

    def narrow(pid: int) -> dict[str, dict[str, object]]:
        return {name: link | {"mtu": 1500} for name, link in real(pid).items()}

    monkeypatch.setattr(network_module, "links", narrow)
    with pytest.raises(FluxbedError, match="mtu is 1500"):
        EmulatedFabric(SMALL, "test-narrow").__enter__()


def test_two_fabrics_do_not_meet() -> None:
    with EmulatedFabric(SMALL, "test-one") as one:
        with EmulatedFabric(SMALL, "test-two") as two:
            one.crossbar.set_circuit_at(0, 1)
            two.crossbar.set_circuit_at(0, 2)
            send(one, 0, 1, 5)
            send(two, 0, 2, 7)
            send(two, 1, 2, 1)
            assert (counts(one), counts(two)) == (
                {"forwarded": 5},
                {"forwarded": 7, "unconnected": 1},
            )
            assert {"test-one", "test-two"} <= {record.run for record in read_records()}
        send(one, 0, 1, 5)
        assert len(receive(one, 1)) == 10


def test_one_run_cannot_be_built_twice() -> None:
    with (
        EmulatedFabric(SMALL, "test-same"),
        pytest.raises(FluxbedError, match=r"'test-same' cannot start.*clean --run test-same"),
    ):
        EmulatedFabric(SMALL, "test-same").__enter__()
    assert not (RUNS / "test-same.json").exists()


def test_a_killed_run_is_cleaned_and_a_living_one_is_not(
    hold: Callable[..., subprocess.Popen[str]],
) -> None:
    before = root_links()
    killed = hold("test-killed", "with-child")
    with EmulatedFabric(SMALL, "test-alive") as alive:
        node, child = node_and_child(killed)
        record = next(r for r in read_records() if r.run == "test-killed")
        assert record.owner.lives()
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert lives(child)  # it keeps the namespace of h1 alive
        removed = clean("test-killed")  # other runs may be dead beside it
        assert f"test-killed: process in the namespace of h1 (process {child})" in removed
        assert f"test-killed: record {RUNS}/test-killed.json" in removed
        assert all(line.startswith("test-killed: ") for line in removed)
        assert not any(map(lives, (node, child)))
        assert not any(entry.shell.lives() for entry in record.nodes)
        alive.crossbar.set_circuit_at(0, 1)
        send(alive, 0, 1, 5)
        assert counts(alive) == {"forwarded": 5}
        assert [line for line in clean() if "test-alive" in line] == []
        with pytest.raises(FluxbedError, match=f"process {os.getpid()} is at work"):
            clean("test-alive")
    assert root_links() == before


def test_a_killed_run_can_be_run_again(hold: Callable[..., subprocess.Popen[str]]) -> None:
    killed = hold("test-again", "with-child")
    _, child = node_and_child(killed)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    with EmulatedFabric(SMALL, "test-again") as network:
        assert not lives(child)
        network.crossbar.set_circuit_at(0, 1)
        send(network, 0, 1, 5)
        assert counts(network) == {"forwarded": 5}


def test_an_interrupted_process_cleans_up_itself(
    hold: Callable[..., subprocess.Popen[str]],
) -> None:
    interrupted = hold("test-ctrl-c")
    node, _ = node_and_child(interrupted)
    interrupted.send_signal(signal.SIGINT)
    interrupted.wait(60)
    assert not (RUNS / "test-ctrl-c.json").exists()
    assert not lives(node)


def test_cleaning_what_does_not_exist() -> None:
    with pytest.raises(UsageError, match="there is no run 'test-never'"):
        clean("test-never")
    for name in ("../etc", "", "a/b", "-x", "a" * 101):
        with pytest.raises(UsageError, match="is no run id"):
            clean(name)


def test_a_process_that_took_over_a_number_is_left_alone() -> None:
    """The record names our own process, but as one that started earlier."""
    me = Process.of(os.getpid())
    assert me.lives()
    former = Process(me.pid, me.start_ticks - 1)
    assert not former.lives()
    assert not cleanup._end(former)
