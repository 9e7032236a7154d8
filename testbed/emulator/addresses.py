"""Who is called what on the emulated fabric: MAC and IP of every (plane, port), names of links."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Final

from topologies import UsageError

if TYPE_CHECKING:
    from topologies import Fabric

__all__ = [
    "MTU_BYTES",
    "PREFIX_LENGTH",
    "UDP_PORT",
    "check_size",
    "host_interface",
    "ip_address",
    "mac_address",
    "port_base",
    "socket_address",
    "switch_interface",
]

UDP_PORT: Final = 4791
"""RoCEv2."""
MTU_BYTES: Final = 9216
PREFIX_LENGTH: Final = 16
_MOST_PLANES: Final = 250
_MOST_PORTS: Final = 2048  # interface numbers of a switch stay below the crossbar's 4096


def check_size(fabric: Fabric) -> None:
    """Refuse, with `UsageError`, a fabric that has no addresses here or no circuits to switch."""
    ports = max(plane.ports for plane in fabric.planes)
    for what, value, most in (
        ("planes", len(fabric.planes), _MOST_PLANES),
        ("ports on one plane", ports, _MOST_PORTS),
    ):
        if value > most:
            why = f"addresses 10.plane.x.y are given out for at most {most}"
            raise UsageError(f"{value} {what}", fabric.name or "fabric", why, "simulate it instead")
    for index, plane in enumerate(fabric.planes):
        if plane.kind != "ocs":
            why = "the emulated switch is a crossbar of circuits"
            where = f"plane {index}"
            raise UsageError(
                f"the plane has kind={plane.kind!r}", where, why, "simulate it instead"
            )


def port_base(fabric: Fabric) -> tuple[int, ...]:
    """Return the global number of each plane's port 0, and the number of all ports last."""
    bases = [0]
    for plane in fabric.planes:
        bases.append(bases[-1] + plane.ports)
    return tuple(bases)


def ip_address(plane: int, port: int) -> str:
    """Return the address of the host's interface at `port` of `plane`.

    >>> ip_address(1, 0), ip_address(3, 300)
    ('10.1.0.1', '10.3.1.45')
    """
    high, low = divmod(port + 1, 256)
    return f"10.{plane}.{high}.{low}"


def mac_address(plane: int, port: int, *, switch: bool = False) -> str:
    """Return a locally administered MAC, of the host's end or of the switch's.

    >>> mac_address(1, 5), mac_address(1, 5, switch=True)
    ('02:fb:00:01:00:05', '02:fb:01:01:00:05')
    """
    high, low = divmod(port, 256)
    return f"02:fb:{int(switch):02x}:{plane:02x}:{high:02x}:{low:02x}"


def host_interface(node: int, position: int) -> str:
    """Return the name of a host's interface; `position` counts its ports over the planes.

    >>> host_interface(3, 0)
    'h3-eth0'
    """
    return f"h{node}-eth{position}"


def switch_interface(plane: int, port: int) -> str:
    """Return the name of the switch's end, which carries the port's number.

    >>> switch_interface(1, 5)
    'p1-eth5'
    """
    return f"p{plane}-eth{port}"


def socket_address(plane: int, port: int) -> bytes:
    """Return the 16 bytes of the `sockaddr_in` of the host's interface, UDP port 4791."""
    head = struct.pack("=H", socket.AF_INET) + struct.pack("!H", UDP_PORT)
    return head + socket.inet_aton(ip_address(plane, port)) + bytes(8)
