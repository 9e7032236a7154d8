"""Who is called what on the emulated fabric: names, MAC and IP of both ends of every link."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from topologies import UsageError

if TYPE_CHECKING:
    from topologies import Fabric

__all__ = ["MTU_BYTES", "PREFIX_LENGTH", "UDP_PORT", "PortLink", "port_base", "port_links"]

UDP_PORT: Final = 4791
"""RoCEv2."""
MTU_BYTES: Final = 9216
PREFIX_LENGTH: Final = 16
_MOST_PLANES: Final = 250
_MOST_PORTS: Final = 2048  # interface numbers of a switch stay below the crossbar's 4096


class PortLink(NamedTuple):
    """The link between a plane's port and a host's interface.

    `position` counts the ports of `node` over the planes, in order.

    >>> link = PortLink(plane=1, port=300, node=7, position=2)
    >>> link.host_end, link.ip, link.mac
    ('h7-eth2', '10.1.1.45', '02:fb:00:01:01:2c')
    >>> link.switch_end, link.switch_mac
    ('p1-eth300', '02:fb:01:01:01:2c')
    """

    plane: int
    port: int
    node: int
    position: int

    @property
    def host_end(self) -> str:
        """Name of the host's interface."""
        return f"h{self.node}-eth{self.position}"

    @property
    def switch_end(self) -> str:
        """Name of the switch's interface: it carries the port's number."""
        return f"p{self.plane}-eth{self.port}"

    @property
    def ip(self) -> str:
        """Address of the host's interface, in a network of its plane's."""
        high, low = divmod(self.port + 1, 256)
        return f"10.{self.plane}.{high}.{low}"

    @property
    def mac(self) -> str:
        """MAC of the host's interface, locally administered."""
        return self._mac(0)

    @property
    def switch_mac(self) -> str:
        """MAC of the switch's end; no frame is ever addressed to it."""
        return self._mac(1)

    def _mac(self, side: int) -> str:
        high, low = divmod(self.port, 256)
        return f"02:fb:{side:02x}:{self.plane:02x}:{high:02x}:{low:02x}"

    @property
    def socket_address(self) -> bytes:
        """The 16 bytes of the `sockaddr_in` of the host's interface, UDP port 4791."""
        head = struct.pack("=H", socket.AF_INET) + struct.pack("!H", UDP_PORT)
        return head + socket.inet_aton(self.ip) + bytes(8)


def port_links(fabric: Fabric) -> tuple[PortLink, ...]:
    """Return the link of every port, by global port number.

    Raises `UsageError` for a fabric that has no addresses here.
    """
    _check(fabric)
    positions = [0] * fabric.nodes
    found = []
    for plane, switch in enumerate(fabric.planes):
        for port, node in enumerate(switch.node_of):
            found.append(PortLink(plane, port, node, positions[node]))
            positions[node] += 1
    return tuple(found)


def port_base(fabric: Fabric) -> tuple[int, ...]:
    """Return the global number of each plane's port 0, and the number of all ports last."""
    bases = [0]
    for plane in fabric.planes:
        bases.append(bases[-1] + plane.ports)
    return tuple(bases)


def _check(fabric: Fabric) -> None:
    ports = max(plane.ports for plane in fabric.planes)
    for what, value, most in (
        ("planes", len(fabric.planes), _MOST_PLANES),
        ("ports on one plane", ports, _MOST_PORTS),
    ):
        if value > most:
            why = f"addresses 10.plane.x.y are given out for at most {most}"
            raise UsageError(f"{value} {what}", fabric.name or "fabric", why, "simulate it instead")
