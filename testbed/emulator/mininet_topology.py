"""The fabrics for Mininet's own `mn`: `sudo mn --custom testbed/mn.py --topo rails,nodes=4`.

No engine and no plan: circuits stand until `py p0.connect(0, 2)` changes them. At the start the
ports of plane k are joined in pairs, port i with port (2k + 1 - i) mod n: every plane other pairs,
both ways, so that `ping` has a way back. A plane with matchings of its own (`rotor`) starts with
its first one, and `py p0.turn(1)` has it turn to another; its circuits lead one way, but for those
of `rotor,duplex=yes`. `pingall` reaches who is joined on plane 0, where a host
has its first address, and no one else; on plane k port i answers at 10.k.0.(i + 1). A packet plane
joins everybody from the start, at its own rate.
"""

from __future__ import annotations

import contextlib
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mininet.topo import Topo

from testbed.emulator.addresses import MTU_BYTES, PREFIX_LENGTH, port_links
from testbed.emulator.capabilities import require_emulation
from testbed.emulator.crossbar import Crossbar
from testbed.emulator.mininet_nodes import FabricHost, OCSSwitch
from testbed.emulator.netns import disable_ipv6, ip_batch
from testbed.emulator.packet_plane import PacketPlane
from topologies import FluxbedError, UsageError, build_fabric
from topologies.registry import BUILDERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["FabricTopo", "StandalonePackets", "StandaloneSwitch", "pairing", "topologies_for_mn"]

_NODES: Final = 4


@contextlib.contextmanager
def _one_sentence() -> Iterator[None]:
    """Exit with the sentence of a `FluxbedError`.

    Any other way out makes `mn` clean the whole machine, other people's networks included.
    """
    try:
        yield
    except FluxbedError as refused:
        sys.stderr.write(f"mn: {refused}\n")
        raise SystemExit(refused.exit_code) from refused


def pairing(ports: int, plane: int) -> list[tuple[int, int]]:
    """Return the pairs of ports a plane starts with; of an odd number one stays alone.

    >>> pairing(4, 0), pairing(4, 1), pairing(5, 0)
    ([(0, 1), (2, 3)], [(0, 3), (1, 2)], [(0, 1), (2, 4)])
    """
    peers = [(2 * plane + 1 - port) % ports for port in range(ports)]
    return [(port, peer) for port, peer in enumerate(peers) if port < peer]


class _QuietHost(FabricHost):
    """A host without IPv6, whose neighbour discovery would count as dropped frames."""

    def __init__(self, name: str, **parameters: Any) -> None:  # noqa: ANN401 (Mininet's own)
        with _one_sentence():
            super().__init__(name, **parameters)
            disable_ipv6(self.pid)


class _Standalone(OCSSwitch):
    """A plane that finishes its own links when Mininet starts it."""

    def __init__(self, name: str, **parameters: Any) -> None:  # noqa: ANN401 (Mininet's own)
        with _one_sentence():
            super().__init__(name, **parameters)
            disable_ipv6(self.pid)

    def _finish_links(self) -> dict[int, str]:
        """Set MTUs, tell every host its neighbours, and return the interface of each port."""
        ports = {port: intf for port, intf in self.intfs.items() if intf.link}
        far = {port: intf.link.intf1 for port, intf in ports.items()}
        names = {port: intf.name for port, intf in ports.items()}
        ip_batch(self.pid, [f"link set dev {name} mtu {MTU_BYTES}" for name in names.values()])
        for intf in far.values():
            commands = [f"link set dev {intf.name} mtu {MTU_BYTES}"]
            commands += [
                f"neigh replace {peer.IP()} lladdr {peer.MAC()} dev {intf.name} nud permanent"
                for peer in far.values()
                if peer.node is not intf.node
            ]
            ip_batch(intf.node.pid, commands)
        return names


class StandalonePackets(_Standalone):
    """A packet plane: everybody reaches everybody, at the rate of the plane.

    At Mininet's prompt: `py p2.plane.shape(10**8)`, `py p2.plane.counts()`.
    """

    plane: PacketPlane

    def __init__(self, name: str, *, rate_bps: int, **parameters: Any) -> None:  # noqa: ANN401 (Mininet's own)
        super().__init__(name, **parameters)
        self._rate_bps = rate_bps

    def start(self, controllers: Sequence[Any]) -> None:  # noqa: ARG002 (Mininet's)
        """Finish the links, and bridge and shape them."""
        with _one_sentence():
            names = self._finish_links()
            ports = {names[port]: self.intfs[port].link.intf1.MAC() for port in names}
            self.plane = PacketPlane(self.pid, f"{self.name}-bridge", ports, self._rate_bps)


class StandaloneSwitch(_Standalone):
    """An OCS with a crossbar of its own and the circuits it starts with.

    At Mininet's prompt: `py p0.connect(0, 2)`, `py p0.totals()`.
    """

    def __init__(
        self,
        name: str,
        *,
        circuits: Sequence[tuple[int, int]] = (),
        delay_ns: int = 0,
        matchings: Sequence[Sequence[int]] = (),
        **parameters: Any,  # noqa: ANN401 (Mininet's own)
    ) -> None:
        super().__init__(name, **parameters)
        self._circuits = circuits
        self._delay_ns = delay_ns
        self._matchings = matchings
        self._peer: dict[int, int] = {}

    def start(self, controllers: Sequence[Any]) -> None:  # noqa: ARG002 (Mininet's)
        """Finish the links, attach the crossbar and light the first circuits."""
        with _one_sentence():
            names = self._finish_links()
            self.crossbar = Crossbar(max(names, default=0) + 1)
            self.crossbar.attach(self.pid, names)
            for port, peer in self._circuits:
                self.connect(port, peer, delay_ns=0)
            if self._matchings:
                self.turn(0, delay_ns=0)

    def connect(self, port: int, peer: int, delay_ns: int | None = None) -> None:
        """Join two ports both ways, after the plane's dark time; what they had before goes dark."""
        if self._matchings:
            why = f"its {len(self._matchings)} matchings are fixed"
            raise UsageError("this switch makes no single circuit", self.name, why, "use turn(0)")
        delay_ns = self._delay_ns if delay_ns is None else delay_ns
        now_ns = time.monotonic_ns()
        for end in (port, peer):
            for taken in (end, self._peer.pop(end, end)):
                self._peer.pop(taken, None)
                self.crossbar.set_dark_at(taken, now_ns)
        for src, dst in ((port, peer), (peer, port)):
            self.crossbar.set_circuit_at(src, dst, now_ns + delay_ns)
            self._peer[src] = dst

    def turn(self, number: int, delay_ns: int | None = None) -> None:
        """Turn to a matching of the switch's own: everything is dark meanwhile."""
        if not 0 <= number < len(self._matchings):
            why = f"it has {len(self._matchings)}, numbered from 0"
            raise UsageError(f"no matching {number}", self.name, why, "name one of them")
        delay_ns = self._delay_ns if delay_ns is None else delay_ns
        now_ns, lit = time.monotonic_ns(), self._matchings[number]
        for port in range(len(lit)):
            self.crossbar.set_dark_at(port, now_ns)
        for port, peer in enumerate(lit):
            if peer >= 0:
                self.crossbar.set_circuit_at(port, peer, now_ns + delay_ns)

    def totals(self) -> dict[str, int]:
        """Return what the crossbar has counted."""
        return self.crossbar.totals()

    def stop(self, deleteIntfs: bool = True) -> None:  # noqa: N803, FBT001, FBT002 (Mininet's)
        """Let go of the crossbar; the rest goes with the namespace."""
        self.crossbar.close()
        super().stop(deleteIntfs)


class FabricTopo(Topo):  # type: ignore[misc] # Mininet is untyped
    """A fabric of ours as a Mininet topology; options are spelt as for fluxbed."""

    def build(self, name: str, **options: object) -> None:
        """Add the nodes and links of `name,key=value,...`."""
        with _one_sentence():
            require_emulation(realtime=False)
            options.setdefault("nodes", _NODES)
            spec = ",".join([name, *(f"{key}={value}" for key, value in options.items())])
            fabric = build_fabric(spec)
            links = port_links(fabric)
        first = {link.node: link for link in reversed(links)}
        for node in range(fabric.nodes):
            ip = f"{first[node].ip}/{PREFIX_LENGTH}" if node in first else None
            self.addHost(f"h{node}", cls=_QuietHost, ip=ip)
        for number, plane in enumerate(fabric.planes):
            own: dict[str, Any] = {"cls": StandalonePackets, "rate_bps": plane.rate_bps}
            if plane.kind == "ocs":
                fixed = plane.matchings or ()
                circuits = [] if fixed else pairing(plane.ports, number)
                own = {
                    "circuits": circuits,
                    "delay_ns": plane.delay_ns,
                    "matchings": fixed,
                    "cls": StandaloneSwitch,
                }
            self.addSwitch(f"p{number}", inNamespace=True, **own)
        for link in links:
            self.addLink(
                f"h{link.node}",
                f"p{link.plane}",
                port1=link.position,
                port2=link.port,
                addr1=link.mac,
                addr2=link.switch_mac,
                params1={"ip": f"{link.ip}/{PREFIX_LENGTH}"},
            )


def topologies_for_mn() -> dict[str, Callable[..., FabricTopo]]:
    """Return every topology of ours, by name, as `mn --topo` wants it."""
    return {name: partial(FabricTopo, name) for name in BUILDERS}
