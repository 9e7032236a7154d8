"""Sending, receiving and counting frames on a real fabric, for the tests of this room."""

from __future__ import annotations

import contextlib
import socket
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from testbed.emulator.network import EmulatedFabric

HEADERS_BYTES = 14 + 20 + 8


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
