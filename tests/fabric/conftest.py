"""Every test in this room builds real namespaces: as root, where the machine can."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from traffic import receive

from testbed.emulator.capabilities import require_emulation
from testbed.emulator.network import EmulatedFabric
from topologies import MachineError, rails

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOM = Path(__file__).parent


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
