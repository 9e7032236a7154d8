"""What a fabric is: its planes, their ports and circuits, and which ports a change leaves dark.

Pure data: no time, files or Mininet. An "out" port sends and an "in" port receives; ports are
numbered per plane, and `Fabric.node_of(plane, port)` says whose they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from topologies.errors import FabricError

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["MOST_PORTS", "Circuit", "Fabric", "Plane", "Port"]

MOST_PORTS: Final = 2**18
"""Ports of a fabric, over all planes: 64 for each of 4,096 nodes."""

Port: TypeAlias = tuple[Literal["out", "in"], int]


class Circuit(NamedTuple):
    """Light from one output port to one input port of the same plane."""

    src_port: int
    dst_port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    """One switch. `delay_ns` is tau: how long a port is dark while its circuit changes.

    `node_of[port]` is the node behind each port. An `ocs` plane holds one circuit per port; an
    `eps` plane is a packet switch, whose ports need no circuit. `matchings` are the only
    configurations a switch knows, if it does not know all (None): the destination port of every
    port, -1 for none; of a `duplex` plane symmetric. Raises `FabricError` when the plane cannot
    exist.
    """

    node_of: tuple[int, ...]
    rate_bps: int
    delay_ns: int = 0
    kind: Literal["ocs", "eps"] = "ocs"
    duplex: bool = False
    all_stop: bool = False
    matchings: tuple[tuple[int, ...], ...] | None = None

    def __post_init__(self) -> None:
        for name, value, least in (
            ("ports", self.ports, 2),
            ("rate_bps", self.rate_bps, 1),
            ("delay_ns", self.delay_ns, 0),
            ("node_of", min(self.node_of, default=0), 0),
        ):
            if value < least:
                what = f"the plane has {name}={value}"
                raise FabricError(
                    what, "plane", f"the least possible is {least}", f"correct {name}"
                )
        if self.kind not in ("ocs", "eps"):
            why = "a plane is an optical circuit switch or a packet switch"
            raise FabricError(f"the plane has kind={self.kind!r}", "plane", why, "use ocs or eps")
        if self.matchings is not None:
            self._check_matchings(self.matchings)

    def _check_matchings(self, matchings: tuple[tuple[int, ...], ...]) -> None:
        fix = "correct matchings"
        if self.kind != "ocs" or not self.all_stop or not matchings:
            why = "they are the configurations, one at least, of an optical switch that is all_stop"
            raise FabricError(f"it has {len(matchings)} fixed matchings", "plane", why, fix)
        for number, row in enumerate(matchings):
            lit = [(src, dst) for src, dst in enumerate(row) if dst != -1]
            sound = len(row) == self.ports and len({dst for _, dst in lit}) == len(lit)
            sound = sound and all(0 <= dst < self.ports and dst != src for src, dst in lit)
            if not sound:
                why = f"it gives every one of {self.ports} ports another, or -1, and none twice"
                raise FabricError(f"matching {number} is none", "plane", why, fix)
            if self.duplex and any(row[dst] != src for src, dst in lit):
                why = "on a duplex plane a circuit joins two ports both ways"
                raise FabricError(f"matching {number} is not symmetric", "plane", why, fix)

    def knows(self, circuits: Collection[Circuit]) -> bool:
        """Say whether the switch can hold these circuits at once, as far as `matchings` go.

        >>> plane = Plane(node_of=(0, 1, 2), rate_bps=1, all_stop=True, matchings=((1, 2, 0),))
        >>> plane.knows([Circuit(0, 1)]), plane.knows([Circuit(0, 2)])
        (True, False)
        """
        if self.matchings is None:
            return True
        return any(all(row[src] == dst for src, dst in circuits) for row in self.matchings)

    @property
    def ports(self) -> int:
        """How many ports the switch has."""
        return len(self.node_of)

    def transfer_ns(self, size_bytes: int) -> int:
        """Time on the wire, rounded up: a message never ends before its last bit.

        >>> Plane(node_of=tuple(range(8)), rate_bps=800 * 10**9).transfer_ns(16 * 2**20)
        167773
        """
        return -(-size_bytes * 8 * 10**9 // self.rate_bps)

    def uses(self, circuit: Circuit) -> frozenset[Port]:
        """Return the ports `circuit` holds: two circuits conflict exactly when these sets meet."""
        src, dst = circuit
        one_way: frozenset[Port] = frozenset({("out", src), ("in", dst)})
        return one_way | {("out", dst), ("in", src)} if self.duplex else one_way

    def darkens(self, wanted: Circuit, standing: Collection[Circuit]) -> frozenset[Port]:
        """Return the ports that lose their light when `wanted` is requested: none if it stands.

        A standing circuit that loses one port is torn down, so its far end goes dark too.

        >>> plane = Plane(node_of=(0, 1, 2, 3), rate_bps=10**9, delay_ns=1000)
        >>> sorted(plane.darkens(Circuit(0, 2), standing=[Circuit(0, 1), Circuit(3, 0)]))
        [('in', 1), ('in', 2), ('out', 0)]
        """
        needed = self.uses(wanted)
        held = [self.uses(circuit) for circuit in standing]
        if needed in held:  # compared by ports: a duplex circuit is the same in either spelling
            return frozenset()
        if self.all_stop:
            return frozenset((way, port) for way in ("out", "in") for port in range(self.ports))
        return needed.union(*(ports for ports in held if ports & needed))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """Nodes and the planes that join them.

    `control_ns` is how long a command travels (the old circuit stays lit meanwhile), `notify_ns`
    how long news of a host's event travels to the controller, and `latency_ns` is added to every
    message after its last bit. A node is one GPU, or a server of `gpus_per_node`, whose own
    transfers take a scale-up link of `scale_up_bps` (None: no time) that is no plane; ranks fill
    servers in order. `name` is the spelling it was made from, for people to read.
    """

    nodes: int
    planes: tuple[Plane, ...]
    control_ns: int = 0
    notify_ns: int = 0
    latency_ns: int = 0
    gpus_per_node: int = 1
    scale_up_bps: int | None = None
    name: str = ""

    def __post_init__(self) -> None:
        for name, value, least in (
            ("nodes", self.nodes, 2),
            ("planes", len(self.planes), 1),
            ("control_ns", self.control_ns, 0),
            ("notify_ns", self.notify_ns, 0),
            ("latency_ns", self.latency_ns, 0),
            ("gpus_per_node", self.gpus_per_node, 1),
            ("scale_up_bps", 1 if self.scale_up_bps is None else self.scale_up_bps, 1),
        ):
            if value < least:
                what = f"the fabric has {name}={value}"
                raise FabricError(
                    what, "fabric", f"the least possible is {least}", f"correct {name}"
                )
        if (ports := sum(plane.ports for plane in self.planes)) > MOST_PORTS:
            what = f"{len(self.planes):,} planes have {ports:,} ports together"
            why = f"fluxbed bears {MOST_PORTS:,}"
            raise FabricError(what, "fabric", why, "use fewer planes or nodes")
        for index, plane in enumerate(self.planes):
            if (highest := max(plane.node_of)) >= self.nodes:
                what = f"a port belongs to node {highest}"
                why = f"the nodes are 0 to {self.nodes - 1}"
                raise FabricError(what, f"plane {index}", why, "correct node_of or nodes")

    def node_of(self, plane: int, port: int) -> int:
        """Return the node behind `port` of `plane`."""
        return self.planes[plane].node_of[port]

    def ports_of(self, plane: int, node: int) -> tuple[int, ...]:
        """Return the ports of `plane` that belong to `node`, in order."""
        return tuple(p for p, owner in enumerate(self.planes[plane].node_of) if owner == node)
