"""Names and addresses: none twice, all valid, as many as 64 hosts on 4 planes need."""

from __future__ import annotations

import ipaddress
import re
import socket

import pytest

from testbed.emulator.addresses import PREFIX_LENGTH, port_base, port_links
from topologies import Fabric, Plane, UsageError, rails


def test_sixty_four_hosts_on_four_planes() -> None:
    fabric = rails(nodes=64, planes=4)
    links = port_links(fabric)
    assert len(links) == 256
    assert port_base(fabric) == (0, 64, 128, 192, 256)
    for names in (
        [link.ip for link in links],
        [link.mac for link in links] + [link.switch_mac for link in links],
        [(link.node, link.host_end) for link in links],
        [(link.plane, link.switch_end) for link in links],
    ):
        assert len(set(names)) == len(names)
    assert all(len(link.host_end) <= 15 >= len(link.switch_end) for link in links)  # IFNAMSIZ
    assert all(re.fullmatch("02(:[0-9a-f]{2}){5}", link.mac) for link in links)


@pytest.mark.parametrize("port", [0, 253, 254, 255, 256, 2046, 2047])
def test_an_address_is_a_host_of_its_planes_network(port: int) -> None:
    plane = Plane(node_of=(0,) * 2048, rate_bps=1)
    link = port_links(Fabric(nodes=2, planes=(plane,) * 2))[2048 + port]
    network = ipaddress.ip_network(f"10.1.0.0/{PREFIX_LENGTH}")
    address = ipaddress.ip_address(link.ip)
    assert address in network
    assert address not in (network.network_address, network.broadcast_address)
    assert link.host_end == f"h0-eth{2048 + port}"
    family = int.from_bytes(link.socket_address[:2], "little")
    assert family == socket.AF_INET
    assert link.socket_address[2:8] == (4791).to_bytes(2, "big") + address.packed


def test_what_has_no_addresses_is_refused() -> None:
    big = Plane(node_of=(0, 1) * 1025, rate_bps=1)
    with pytest.raises(UsageError, match="2050 ports on one plane"):
        port_links(Fabric(nodes=2, planes=(big,)))
    small = Plane(node_of=(0, 1), rate_bps=1)
    with pytest.raises(UsageError, match="251 planes"):
        port_links(Fabric(nodes=2, planes=(small,) * 251))
