"""Mininet's side of the fabric: an OCS is a switch in its own namespace, its links come ready made.

Imports Mininet, so it is imported inside functions only.
"""

from __future__ import annotations

import os
import select
import time
from typing import TYPE_CHECKING, Any, Final, NoReturn

from mininet.link import Intf, Link
from mininet.net import Mininet
from mininet.node import Host, Switch

from topologies import MachineError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CircuitNet", "FabricHost", "FabricNet", "OCSSwitch", "ReadyLink"]

_PING_S: Final = "0.2"
_START_S: Final = 60.0  # a shell takes milliseconds, or seconds on an emulated processor
_PROMPT: Final = chr(127)
_LOOK_MS: Final = 50
_SAID: Final = 500


class _StartsOrSays:
    """A Mininet node whose shell starts in time, or it is a `MachineError`.

    Mininet waits for the shell's prompt on a terminal that it keeps open itself: should `mnexec`
    die before, it would wait forever. So its first read comes back with the whole prompt.
    """

    name: str
    shell: Any
    stdin: Any
    slave: int

    _prompted = False

    def read(self, size: int = 1024) -> str:
        """Read from the shell; the first time, up to its first prompt."""
        if not self._prompted:
            self._prompted = True
            return self._first_prompt()
        read: str = super().read(size)  # type: ignore[misc] # of the Mininet node beside us
        return read

    def _first_prompt(self) -> str:
        said, until_s = "", time.monotonic() + _START_S
        readable = select.poll()  # Mininet's own also waits for the terminal to be writable
        readable.register(self.stdin, select.POLLIN)
        while not said.endswith(_PROMPT):
            if readable.poll(_LOOK_MS):
                said = (said + self.read())[-_SAID:]
            elif (ended := self.shell.poll()) is not None:
                quoted = " ".join(said.split()) or "nothing"
                self._refuse(f"mnexec ended with exit code {ended}, having said: {quoted}")
            if time.monotonic() > until_s:
                self._refuse(f"mnexec gives no shell within {_START_S:g} s")
        return said

    def _refuse(self, why: str) -> NoReturn:
        """Let go of the shell, as Mininet does of one that ends, and say why."""
        self.shell.kill()
        self.shell.wait()
        self.shell = None
        self.stdin.close()
        os.close(self.slave)
        fix = "run fluxbed doctor, and install the package mininet again"
        raise MachineError("Mininet cannot start a node", self.name, why, fix)


class FabricHost(_StartsOrSays, Host):  # type: ignore[misc] # Mininet is untyped
    """A host of the fabric."""


class OCSSwitch(_StartsOrSays, Switch):  # type: ignore[misc] # Mininet is untyped
    """One plane. Its ports count from 0; the crossbar is attached to it once its links exist."""

    portBase = 0  # noqa: N815 (Mininet's name)

    def __init__(self, name: str, **parameters: Any) -> None:  # noqa: ANN401 (Mininet's own)
        super().__init__(name, **parameters | {"inNamespace": True})

    def defaultIntf(self) -> Intf | None:  # noqa: N802 (Mininet's name)
        """Return the lowest port: an OCS has no control interface."""
        return self.intfs[min(self.intfs)] if self.intfs else None

    def start(self, controllers: Sequence[Any]) -> None:
        """Nothing: there is no controller, and the crossbar is attached from outside."""

    def stop(self, deleteIntfs: bool = True) -> None:  # noqa: N803, FBT001, FBT002 (Mininet's)
        """Nothing: interfaces go with the namespace, programs with the interfaces."""


class _ReadyIntf(Intf):  # type: ignore[misc] # Mininet is untyped
    """An interface that is configured already; Mininet only learns its addresses."""

    def config(
        self,
        ip: str | None = None,
        prefixLen: int | None = None,  # noqa: N803 (Mininet's name)
        **_: Any,  # noqa: ANN401 (Mininet's own)
    ) -> dict[str, Any]:
        self.ip = ip
        self.prefixLen = prefixLen
        return {}


class ReadyLink(Link):  # type: ignore[misc] # Mininet is untyped
    """A link whose veth pair exists already: Mininet runs one shell command a setting."""

    def __init__(self, host: Host, switch: OCSSwitch, **parameters: Any) -> None:  # noqa: ANN401
        super().__init__(host, switch, **parameters | {"intf": _ReadyIntf})

    @classmethod
    def makeIntfPair(cls, *_: Any, **__: Any) -> None:  # noqa: ANN401, N802 (Mininet's name)
        """Nothing: the pair exists."""

    def stop(self) -> None:
        """Nothing: the pair goes with its namespaces."""


class CircuitNet(Mininet):  # type: ignore[misc] # Mininet is untyped
    """A Mininet that leaves the machine's settings alone and does not wait for the dark."""

    @classmethod
    def init(cls) -> None:
        """Nothing: Mininet would change limits and sysctls of the whole machine here."""

    def pingAll(self, timeout: str | None = None) -> float:  # noqa: N802 (Mininet's name)
        """Ping between all hosts; without a circuit there is no answer, however long one waits."""
        return float(super().pingAll(timeout or _PING_S))


class FabricNet(CircuitNet):
    """The Mininet behind `EmulatedFabric`: no controllers, everything configured elsewhere."""

    def __init__(self) -> None:
        super().__init__(
            controller=None, host=FabricHost, switch=OCSSwitch, link=ReadyLink, build=False
        )

    def configHosts(self) -> None:  # noqa: N802 (Mininet's name)
        """Nothing: the hosts are configured already."""

    def stop(self) -> None:
        """End every node and wait for it."""
        shells = [node.shell for node in (*self.hosts, *self.switches) if node.shell]
        super().stop()
        for shell in shells:
            shell.wait()
