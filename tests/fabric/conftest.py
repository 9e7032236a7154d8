"""Every test in this room builds real namespaces: as root, where the machine can."""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from testbed.emulator.capabilities import require_emulation
from testbed.emulator.network import EmulatedFabric
from topologies import MachineError, rails

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOM = Path(__file__).parent
HEADERS_BYTES = 14 + 20 + 8


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if ROOM in item.path.parents:
            item.add_marker(pytest.mark.fabric)


@pytest.fixture(scope="session", autouse=True)
def _machine() -> None:
    try:
        require_emulation()
    except MachineError as lacking:
        pytest.skip(str(lacking))


@pytest.fixture(scope="module")
def network(request: pytest.FixtureRequest) -> Iterator[EmulatedFabric]:
    """Four hosts on two planes, shared by the tests of one file."""
    with EmulatedFabric(rails(nodes=4, planes=2), f"test-{request.module.__name__}") as built:
        yield built


@pytest.fixture
def idle(network: EmulatedFabric) -> EmulatedFabric:
    """The same, with no circuit, no count and nothing waiting in a socket."""
    for port in range(len(network.links)):
        receive(network, port)
    network.crossbar.reset()
    return network


def send(network: EmulatedFabric, src: int, dst: int, frames: int, size: int = 100) -> None:
    """Send UDP datagrams from one global port to the address of another."""
    with socket.socket(fileno=socket.dup(int(network.sockets.fd[src]))) as out:
        for _ in range(frames):
            assert out.sendto(bytes(size), (network.links[dst].ip, 4791)) == size


def receive(network: EmulatedFabric, port: int) -> list[bytes]:
    """Take what has arrived at a port: delivery is over when `send` returns."""
    got = []
    with (
        contextlib.suppress(BlockingIOError),
        socket.socket(fileno=socket.dup(int(network.sockets.fd[port]))) as waiting,
    ):
        waiting.settimeout(0)
        while True:
            got.append(waiting.recv(10_000))
    return got


def counts(network: EmulatedFabric) -> dict[str, int]:
    """What happened to frames, leaving out what did not happen."""
    return {
        name.removesuffix("_frames"): value
        for name, value in network.crossbar.totals().items()
        if name.endswith("_frames") and value
    }


def eventually(holds: Callable[[], bool], within_s: float = 10.0) -> bool:
    """Wait for what the kernel does in its own time."""
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
