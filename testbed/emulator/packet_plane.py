"""The packet plane: a Linux bridge in its switch's namespace, every port of it shaped.

A frame goes to the port its address belongs to, at once, and waits there in the queue of a token
bucket, which lets it out at the rate of the plane: an output-queued packet switch. Addresses are
written beforehand, so nothing is learnt and nothing flooded; there is no spanning tree.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from testbed.emulator.addresses import MTU_BYTES
from testbed.emulator.frames import BTH_BYTES, CRC_BYTES
from testbed.emulator.netns import (
    bridge_batch,
    in_netns,
    ip_batch,
    links,
    qdiscs,
    set_sysctl,
    tc_batch,
)
from topologies import FluxbedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from testbed.emulator.dilation import Dilation

__all__ = ["BURST_BYTES", "QUEUE_BYTES", "PacketPlane", "wire_bps"]

BURST_BYTES: Final = 2 * (MTU_BYTES + 14)
"""What a port may send at once after a pause: two of the largest Ethernet frames."""
QUEUE_BYTES: Final = 16 << 20
"""How much may wait at a port; what comes beyond is dropped and counted."""
_HEADERS_BYTES: Final = 14 + 20 + 8 + BTH_BYTES + CRC_BYTES  # Ethernet, IPv4, UDP; BTH
_SMALLEST_BPS: Final = 8_000
_LARGEST_BPS: Final = 10**12  # more than any machine carries: what is faster is not shaped finer
_SETTINGS: Final = ("arptables", "ip6tables", "iptables")


def wire_bps(rate_bps: int, dilation: Dilation) -> int:
    """Return the wall rate of whole frames on a port whose virtual rate is `rate_bps`."""
    data_bps = rate_bps / dilation.factor / dilation.bytes_per_wall_byte
    return math.ceil(data_bps * (1 + _HEADERS_BYTES / dilation.frame_bytes))


class PacketPlane:
    """A bridge between `ports` (interface of the switch: MAC behind it), shaped to `rate_bps`.

    The interfaces exist in the namespace of `pid` and carry the frames of the hosts; the rate is
    that of whole Ethernet frames. Raises `FluxbedError` when it is not as it was asked for.
    """

    def __init__(
        self, pid: int, name: str, ports: Mapping[str, str], rate_bps: int, alias: str = ""
    ) -> None:
        self.name = name
        self._pid = pid
        self._ports = dict(ports)
        with in_netns(pid):
            for table in _SETTINGS:  # a firewall of the machine has no say here
                set_sysctl(f"net/bridge/bridge-nf-call-{table}", 0)
        commands = [
            f"link add name {name} mtu {MTU_BYTES} type bridge stp_state 0 mcast_snooping 0",
            *([f"link set dev {name} alias {alias}"] if alias else []),
            f"link set dev {name} up",
        ]
        for port in self._ports:
            commands += [
                f"link set dev {port} master {name}",
                f"link set dev {port} type bridge_slave learning off flood off mcast_flood off",
            ]
        ip_batch(pid, commands)
        bridge_batch(
            pid, [f"fdb replace {mac} dev {port} master static" for port, mac in ports.items()]
        )
        self.shape(rate_bps)

    def shape(self, rate_bps: int) -> None:
        """Let every port send at `rate_bps` (1 Tbit/s at most) from now on, and read it back.

        Raises `UsageError` for a rate below 8 kbit/s, `FluxbedError` when the kernel disagrees.
        """
        if rate_bps < _SMALLEST_BPS:
            what, why = f"a packet plane of {rate_bps} bit/s", "frames would take minutes"
            raise UsageError(what, self.name, why, "lower the dilation, or raise the plane's rate")
        self.rate_bps = min(rate_bps, _LARGEST_BPS)
        tbf = f"root handle 1: tbf rate {self.rate_bps}bit burst {BURST_BYTES} limit {QUEUE_BYTES}"
        tc_batch(self._pid, [f"qdisc replace dev {port} {tbf}" for port in self._ports])
        self.verify()

    def verify(self) -> None:
        """Read the bridge and the shapers back; raises `FluxbedError` for the first wrong one."""
        found, shapers = links(self._pid), qdiscs(self._pid)
        # tc tells bursts in whole us, rounded down, of what the kernel keeps in ticks
        rounded_bytes = self.rate_bps // 4_000_000 + 1
        for port in self._ports:
            master = found.get(port, {}).get("master")
            shaper = shapers.get(port, {})
            told = shaper.get("options", {})
            wrong = []
            if master != self.name:
                wrong.append(f"its bridge is {master}")
            if shaper.get("kind") != "tbf":
                wrong.append(f"its queue is {shaper.get('kind')}")
            elif (
                told["rate"] != self.rate_bps // 8
                or not 0 <= BURST_BYTES - told["burst"] <= rounded_bytes
            ):
                wrong.append(f"it is shaped to {8 * told['rate']} bit/s, {told['burst']} B at once")
            if wrong:
                fix = "look for what else configures interfaces here, and run fluxbed doctor"
                what = "a port of the packet plane is not as it was asked for"
                raise FluxbedError(what, port, " and ".join(wrong), fix)

    def counts(self) -> dict[str, int]:
        """Return what all ports have sent and dropped since they were shaped: frames and bytes.

        Keys: forwarded_frames, forwarded_bytes, dropped_frames, waiting_bytes.
        """
        shapers: list[dict[str, Any]] = [qdiscs(self._pid)[port] for port in self._ports]
        names = {
            "forwarded_frames": "packets",
            "forwarded_bytes": "bytes",
            "dropped_frames": "drops",
            "waiting_bytes": "backlog",
        }
        return {ours: sum(int(s[theirs]) for s in shapers) for ours, theirs in names.items()}
