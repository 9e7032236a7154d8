"""The emulated fabric: Mininet hosts, a crossbar per plane, one UDP socket per port, all verified.

>>> with EmulatedFabric(fabric, "my-run") as network:  # doctest: +SKIP
...     network.crossbar.set_circuit_at(0, 1)
...     network.sockets.fd  # one per global port, opened inside its host
"""

from __future__ import annotations

import contextlib
import resource
import select
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import numpy as np

from testbed.emulator.addresses import (
    MTU_BYTES,
    PREFIX_LENGTH,
    UDP_PORT,
    port_base,
    port_links,
)
from testbed.emulator.capabilities import require_emulation
from testbed.emulator.cleanup import remove_dead
from testbed.emulator.crossbar import Crossbar
from testbed.emulator.netns import disable_ipv6, in_netns, ip_batch, links, set_sysctl
from testbed.emulator.packet_plane import PacketPlane
from testbed.emulator.realtime import softirqs_first
from testbed.emulator.registry import Node, alias_of, recorded
from topologies import FluxbedError

if TYPE_CHECKING:
    from types import TracebackType

    from numpy.typing import NDArray

    from testbed.emulator.addresses import PortLink
    from testbed.emulator.registry import Record
    from topologies import Fabric

__all__ = ["EmulatedFabric", "PortSockets"]

_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33  # not in Python's socket module
_BUFFER_BYTES: Final = 16 << 20
_FILES_PER_NODE: Final = 8
_SPARE_FILES: Final = 256


class PortSockets(NamedTuple):
    """The UDP sockets of every port of the fabric, by global port number.

    `fd` int32[ports]; `address` uint8[ports, 16] is the `sockaddr_in` of each port's interface;
    `port_of_fd` int32[highest fd + 1] leads back, -1 where a descriptor is no port's.
    """

    fd: NDArray[np.int32]
    address: NDArray[np.uint8]
    port_of_fd: NDArray[np.int32]


class EmulatedFabric:
    """The fabric on this machine, from `with` to its end; then nothing of it is left.

    `net` is the Mininet, `crossbar` switches all planes (global port numbers: plane k's port p is
    `port_base[k] + p`), `packet_planes` are the eps ones by number, real bridges that start out
    shaped to the plane's own rate. `sockets` and `epoll_fd` are for the engine: non-blocking
    sockets bound to each port's interface at UDP 4791, all in one epoll. Everything carries the
    run's id: interfaces (`lo` too) as their alias, nodes in `/run/fluxbed/<run id>.json`.

    Raises `UsageError` for a fabric that cannot be emulated, `MachineError` on a machine that
    cannot emulate, and `FluxbedError` when a link is not as it was asked for.
    """

    net: Any
    crossbar: Crossbar
    packet_planes: dict[int, PacketPlane]
    sockets: PortSockets
    epoll_fd: int

    def __init__(self, fabric: Fabric, run_id: str) -> None:
        self.fabric = fabric
        self.run_id = run_id
        self.port_base = port_base(fabric)
        self.links = port_links(fabric)
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        require_emulation()
        remove_dead(self.run_id)
        with contextlib.ExitStack() as building:
            self._build(building)
            self._open = building.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.close()

    def host_pid(self, node: int) -> int:
        """Return the process whose namespace is host `node`'s."""
        return int(self.net.hosts[node].pid)

    def switch_pid(self, plane: int) -> int:
        """Return the process whose namespace is the switch of `plane`."""
        return int(self.net.switches[plane].pid)

    def _build(self, building: contextlib.ExitStack) -> None:
        record = building.enter_context(recorded(self.run_id))
        building.enter_context(softirqs_first())
        nodes = self.fabric.nodes + len(self.fabric.planes)
        _allow_files(len(self.links) + _FILES_PER_NODE * nodes)
        self._start_nodes(building, record)
        for plane in range(len(self.fabric.planes)):
            ip_batch(self.switch_pid(plane), self._links_of_switch(plane))
        for node in range(self.fabric.nodes):
            self._configure_host(node)
        self._tell_mininet()
        self._verify()
        self.packet_planes = {
            plane: self._packet_plane(plane)
            for plane, switch in enumerate(self.fabric.planes)
            if switch.kind == "eps"
        }
        self.crossbar = building.enter_context(Crossbar(len(self.links), len(self.fabric.planes)))
        for plane in range(len(self.fabric.planes)):
            if plane in self.packet_planes:
                continue
            names = {n: k.switch_end for n, k in enumerate(self.links) if k.plane == plane}
            self.crossbar.attach(self.switch_pid(plane), names)
        self._open_sockets(building)

    def _packet_plane(self, plane: int) -> PacketPlane:
        ports = {link.switch_end: link.mac for link in self.links if link.plane == plane}
        rate_bps = self.fabric.planes[plane].rate_bps
        alias = alias_of(self.run_id)
        return PacketPlane(self.switch_pid(plane), f"p{plane}-bridge", ports, rate_bps, alias)

    def _start_nodes(self, building: contextlib.ExitStack, record: Record) -> None:
        from mininet.log import setLogLevel

        from testbed.emulator.mininet_nodes import FabricNet

        setLogLevel("critical")
        self.net = FabricNet()
        building.callback(self.net.stop)
        for node in range(self.fabric.nodes):
            ends = tuple(link.host_end for link in self.links if link.node == node)
            _record(record, self.net.addHost(f"h{node}", ip=None), ends)
        for plane in range(len(self.fabric.planes)):
            ends = tuple(link.switch_end for link in self.links if link.plane == plane)
            _record(record, self.net.addSwitch(f"p{plane}"), ends)

    def _links_of_switch(self, plane: int) -> list[str]:
        """Make each veth pair between its two namespaces: no name ever enters the root one."""
        commands = [f"link set dev lo alias {alias_of(self.run_id)} up"]
        for link in self.links:
            if link.plane == plane:
                near = f"{link.switch_end} address {link.switch_mac} mtu {MTU_BYTES}"
                far = f"{link.host_end} address {link.mac} mtu {MTU_BYTES}"
                netns = self.host_pid(link.node)
                commands += [
                    f"link add name {near} type veth peer name {far} netns {netns}",
                    f"link set dev {link.switch_end} alias {alias_of(self.run_id)} up",
                ]
        return commands

    def _configure_host(self, node: int) -> None:
        """Addresses, and every neighbour as a permanent entry: nobody asks over a dark circuit."""
        commands = [f"link set dev lo alias {alias_of(self.run_id)} up"]
        for link in self.links:
            if link.node == node:
                name = link.host_end
                commands += [
                    f"link set dev {name} alias {alias_of(self.run_id)} up",
                    f"addr add {link.ip}/{PREFIX_LENGTH} dev {name}",
                ]
                commands += [
                    f"neigh add {far.ip} lladdr {far.mac} dev {name} nud permanent"
                    for far in self.links
                    if far.plane == link.plane and far.node != node
                ]
        with in_netns(self.host_pid(node)):
            # a namespace takes the machine's setting: a GPU node that routes would send on what a
            # circuit brought to the wrong host
            set_sysctl("net/ipv4/ip_forward", 0)
            for scope in ("all", "default"):  # a node may have two ports on one plane
                set_sysctl(f"net/ipv4/conf/{scope}/rp_filter", 0)
        ip_batch(self.host_pid(node), commands)

    def _tell_mininet(self) -> None:
        for link in self.links:
            self.net.addLink(
                self.net.hosts[link.node],
                self.net.switches[link.plane],
                port2=link.port,
                addr1=link.mac,
                addr2=link.switch_mac,
                params1={"ip": link.ip, "prefixLen": PREFIX_LENGTH},
            )
        self.net.start()

    def _verify(self) -> None:
        """Read every link back, both ends; raises `FluxbedError` for the first that is wrong."""
        for node in range(self.fabric.nodes):
            found = links(self.host_pid(node))
            for link in self.links:
                if link.node == node:
                    _verify_end(found, link.host_end, link.mac, alias_of(self.run_id))
        for plane in range(len(self.fabric.planes)):
            found = links(self.switch_pid(plane))
            for link in self.links:
                if link.plane == plane:
                    _verify_end(found, link.switch_end, link.switch_mac, alias_of(self.run_id))

    def _open_sockets(self, building: contextlib.ExitStack) -> None:
        epoll = building.enter_context(contextlib.closing(select.epoll()))
        opened: dict[int, socket.socket] = {}
        for node in range(self.fabric.nodes):
            with in_netns(self.host_pid(node)):
                for number, link in enumerate(self.links):
                    if link.node == node:
                        opened[number] = building.enter_context(_open_socket(link))
                        epoll.register(opened[number], select.EPOLLIN)
        fd = np.array([opened[number].fileno() for number in range(len(self.links))], np.int32)
        port_of_fd = np.full(int(fd.max()) + 1, -1, np.int32)
        port_of_fd[fd] = np.arange(len(fd))
        addresses = b"".join(link.socket_address for link in self.links)
        table = np.frombuffer(addresses, np.uint8).reshape(-1, 16).copy()
        self.sockets = PortSockets(fd, table, port_of_fd)
        self.epoll_fd = epoll.fileno()


def _record(record: Record, started: Any, interfaces: tuple[str, ...]) -> None:  # noqa: ANN401 (Mininet's)
    record.nodes.append(Node.of(started.name, started.pid, interfaces))
    record.write()
    disable_ipv6(started.pid)


def _verify_end(found: dict[str, dict[str, Any]], name: str, mac: str, alias: str) -> None:
    wrong = "it does not exist"
    if (link := found.get(name)) is not None:
        asked = {"mtu": MTU_BYTES, "address": mac, "ifalias": alias}
        differs = [f"{k} is {link.get(k)}" for k, value in asked.items() if link.get(k) != value]
        if not {"UP", "LOWER_UP"} <= set(link["flags"]):
            differs.append(f"its flags are {' '.join(link['flags'])}")
        wrong = " and ".join(differs)
    if wrong:
        fix = "look for what else configures interfaces here, and run fluxbed doctor"
        raise FluxbedError("a link is not as it was asked for", name, wrong, fix)


def _open_socket(link: PortLink) -> socket.socket:
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
        opened.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _BUFFER_BYTES)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, link.host_end.encode())
        opened.bind((link.ip, UDP_PORT))
        opened.settimeout(0)
    except BaseException:
        opened.close()
        raise
    return opened


def _allow_files(wanted: int) -> None:
    """Raise this process's own limit on open files as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted += _SPARE_FILES + sum(1 for _ in Path("/proc/self/fd").iterdir())
    if soft != resource.RLIM_INFINITY and soft < wanted:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, limit), hard))
