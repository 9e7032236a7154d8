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
    check_size,
    host_interface,
    ip_address,
    mac_address,
    port_base,
    socket_address,
    switch_interface,
)
from testbed.emulator.cleanup import remove_dead
from testbed.emulator.crossbar import Crossbar
from testbed.emulator.netns import disable_ipv6, in_netns, ip_batch, links, set_sysctl
from testbed.emulator.registry import Node, alias_of, recorded
from topologies import FluxbedError

if TYPE_CHECKING:
    from types import TracebackType

    from numpy.typing import NDArray

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


class _Port(NamedTuple):
    """One link: both its names, and the host behind it."""

    plane: int
    port: int
    node: int
    host_end: str
    switch_end: str


class EmulatedFabric:
    """The fabric on this machine, from `with` to its end; then nothing of it is left.

    `net` is the Mininet, `crossbar` switches all planes (global port numbers: plane k's port p is
    `port_base[k] + p`), `sockets` and `epoll_fd` are for the engine: non-blocking sockets bound
    to each port's interface at UDP 4791, all in one epoll. Everything carries the run's id:
    interfaces as their alias, nodes in `/run/fluxbed/<run id>.json`.

    Raises `UsageError` for a fabric that cannot be emulated and `FluxbedError` when a link is not
    as it was asked for.
    """

    net: Any
    crossbar: Crossbar
    sockets: PortSockets
    epoll_fd: int

    def __init__(self, fabric: Fabric, run_id: str) -> None:
        check_size(fabric)
        self.fabric = fabric
        self.run_id = run_id
        self.port_base = port_base(fabric)
        self.ports = _ports(fabric)
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
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
        _allow_files(len(self.ports) + _FILES_PER_NODE * (self.fabric.nodes + len(self.port_base)))
        self._start_nodes(building, record)
        self._make_links()
        self._configure_hosts()
        self._tell_mininet()
        self._verify()
        self.crossbar = building.enter_context(Crossbar(len(self.ports), len(self.fabric.planes)))
        for plane in range(len(self.fabric.planes)):
            names = {n: p.switch_end for n, p in enumerate(self.ports) if p.plane == plane}
            self.crossbar.attach(self.switch_pid(plane), names)
        self._open_sockets(building)

    def _start_nodes(self, building: contextlib.ExitStack, record: Record) -> None:
        from mininet.log import setLogLevel

        from testbed.emulator.mininet_nodes import FabricNet

        setLogLevel("critical")
        self.net = FabricNet()
        building.callback(self.net.stop)
        for node in range(self.fabric.nodes):
            self._record(record, self.net.addHost(f"h{node}", ip=None))
        for plane in range(len(self.fabric.planes)):
            self._record(record, self.net.addSwitch(f"p{plane}"))

    def _record(self, record: Record, started: Any) -> None:  # noqa: ANN401 (a Mininet node)
        ends = [(p.host_end, p.switch_end) for p in self.ports]
        mine = tuple(e for pair in ends for e in pair if e.startswith(f"{started.name}-"))
        record.nodes.append(Node.of(started.name, started.pid, mine))
        record.write()
        disable_ipv6(started.pid)

    def _make_links(self) -> None:
        """Make every veth pair between its two namespaces: no name ever enters the root one."""
        alias = alias_of(self.run_id)
        for plane in range(len(self.fabric.planes)):
            commands = []
            for p in self.ports:
                if p.plane == plane:
                    near = f"address {mac_address(plane, p.port, switch=True)} mtu {MTU_BYTES}"
                    far = f"address {mac_address(plane, p.port)} mtu {MTU_BYTES}"
                    where = f"netns {self.host_pid(p.node)}"
                    pair = f"{p.switch_end} {near} type veth peer name {p.host_end} {far} {where}"
                    commands += [
                        f"link add name {pair}",
                        f"link set dev {p.switch_end} alias {alias} up",
                    ]
            ip_batch(self.switch_pid(plane), commands)

    def _configure_hosts(self) -> None:
        """Addresses, and every neighbour as a permanent entry: nobody asks over a dark circuit."""
        alias = alias_of(self.run_id)
        for node in range(self.fabric.nodes):
            commands = ["link set dev lo up"]
            for p in self.ports:
                if p.node != node:
                    continue
                address = f"{ip_address(p.plane, p.port)}/{PREFIX_LENGTH}"
                commands += [
                    f"link set dev {p.host_end} alias {alias} up",
                    f"addr add {address} dev {p.host_end}",
                ]
                commands += [
                    f"neigh add {ip_address(q.plane, q.port)} dev {p.host_end} "
                    f"lladdr {mac_address(q.plane, q.port)} nud permanent"
                    for q in self.ports
                    if q.plane == p.plane and q.node != node
                ]
            with in_netns(self.host_pid(node)):
                for scope in ("all", "default"):  # a node may have two ports on one plane
                    set_sysctl(f"net/ipv4/conf/{scope}/rp_filter", 0)
            ip_batch(self.host_pid(node), commands)

    def _tell_mininet(self) -> None:
        for p in self.ports:
            self.net.addLink(
                self.net.hosts[p.node],
                self.net.switches[p.plane],
                port2=p.port,
                addr1=mac_address(p.plane, p.port),
                addr2=mac_address(p.plane, p.port, switch=True),
                params1={"ip": ip_address(p.plane, p.port), "prefixLen": PREFIX_LENGTH},
            )
        self.net.start()

    def _verify(self) -> None:
        """Read every link back, both ends."""
        for node in range(self.fabric.nodes):
            found = links(self.host_pid(node))
            for p in self.ports:
                if p.node == node:
                    self._verify_end(found, p.host_end, mac_address(p.plane, p.port))
        for plane in range(len(self.fabric.planes)):
            found = links(self.switch_pid(plane))
            for p in self.ports:
                if p.plane == plane:
                    mac = mac_address(plane, p.port, switch=True)
                    self._verify_end(found, p.switch_end, mac)

    def _verify_end(self, found: dict[str, dict[str, Any]], name: str, mac: str) -> None:
        link = found.get(name)
        wrong = "it does not exist"
        if link is not None:
            asked = {"mtu": MTU_BYTES, "address": mac, "ifalias": alias_of(self.run_id)}
            wrong = ", ".join(f"{k} is {link.get(k)}" for k in asked if link.get(k) != asked[k])
            if not {"UP", "LOWER_UP"} <= set(link["flags"]):
                wrong += f"its flags are {' '.join(link['flags'])}"
        if wrong:
            fix = "look for what else configures interfaces here, and run fluxbed doctor"
            raise FluxbedError("a link is not as it was asked for", name, wrong, fix)

    def _open_sockets(self, building: contextlib.ExitStack) -> None:
        epoll = building.enter_context(contextlib.closing(select.epoll()))
        opened: dict[int, socket.socket] = {}
        for node in range(self.fabric.nodes):
            with in_netns(self.host_pid(node)):
                for number, p in enumerate(self.ports):
                    if p.node == node:
                        opened[number] = building.enter_context(_open_socket(p))
                        epoll.register(opened[number], select.EPOLLIN)
        fd = np.array([opened[number].fileno() for number in range(len(self.ports))], np.int32)
        port_of_fd = np.full(int(fd.max()) + 1, -1, np.int32)
        port_of_fd[fd] = np.arange(len(fd))
        addresses = b"".join(socket_address(p.plane, p.port) for p in self.ports)
        table = np.frombuffer(addresses, np.uint8).reshape(-1, 16).copy()
        self.sockets = PortSockets(fd, table, port_of_fd)
        self.epoll_fd = epoll.fileno()


def _ports(fabric: Fabric) -> tuple[_Port, ...]:
    positions = [0] * fabric.nodes
    ports = []
    for plane, switch in enumerate(fabric.planes):
        for port, node in enumerate(switch.node_of):
            host_end = host_interface(node, positions[node])
            positions[node] += 1
            ports.append(_Port(plane, port, node, host_end, switch_interface(plane, port)))
    return tuple(ports)


def _open_socket(p: _Port) -> socket.socket:
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
        opened.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _BUFFER_BYTES)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, p.host_end.encode())
        opened.bind((ip_address(p.plane, p.port), UDP_PORT))
        opened.setblocking(False)  # noqa: FBT003 (Python's own)
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
