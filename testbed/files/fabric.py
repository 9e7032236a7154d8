"""Fabrics on disk: as plans and manifests hold them, and as people write them.

A user's topology file is TOML (or JSON) with the same keys, or the shorter spelling with units:

    nodes = 8
    latency = "500ns"

    [[planes]]
    rate = "800Gbps"
    delay = "100us"
    count = 2          # this plane twice

`node_of` defaults to one port per node. Servers of several GPUs say `gpus_per_node = 8` and
`scale_up = "3600Gbps"`. Unknown keys are refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from testbed.files.codec import json_schema, read_bytes, refusal
from topologies import Fabric, FabricError, InputError, Plane, UsageError, build_fabric
from topologies.registry import BUILDERS
from topologies.units import parse_duration_ns, parse_rate_bps

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FabricRecord", "PlaneRecord", "fabric_schema", "load_fabric", "read_fabric"]

Natural: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Matchings: TypeAlias = list[list[Annotated[int, Meta(ge=-1, le=2**63 - 1)]]]
_SUFFIXES: Final = (".toml", ".json")


class PlaneRecord(Struct, forbid_unknown_fields=True, kw_only=True):
    """A plane as files hold it; `ports` repeats the length of `node_of`.

    `matchings` is there only where the switch knows no others: per matching the destination port of
    every port, -1 for none.
    """

    kind: Literal["ocs", "eps"]
    ports: Natural
    node_of: list[Natural]
    rate_bps: Natural
    delay_ns: Natural
    duplex: bool
    all_stop: bool
    matchings: Matchings | UnsetType = UNSET


class FabricRecord(Struct, forbid_unknown_fields=True, kw_only=True):
    """A fabric as files hold it. `Fabric.name` is for people and not part of it.

    The last two are there only where a node is a server of several GPUs.
    """

    nodes: Natural
    planes: list[PlaneRecord]
    control_ns: Natural
    notify_ns: Natural
    latency_ns: Natural
    gpus_per_node: Natural | UnsetType = UNSET
    scale_up_bps: Natural | UnsetType = UNSET

    @classmethod
    def of(cls, fabric: Fabric) -> FabricRecord:
        """Describe `fabric`."""
        return cls(
            nodes=fabric.nodes,
            planes=[
                PlaneRecord(
                    kind=plane.kind,
                    ports=plane.ports,
                    node_of=list(plane.node_of),
                    rate_bps=plane.rate_bps,
                    delay_ns=plane.delay_ns,
                    duplex=plane.duplex,
                    all_stop=plane.all_stop,
                    matchings=UNSET
                    if plane.matchings is None
                    else [list(row) for row in plane.matchings],
                )
                for plane in fabric.planes
            ],
            control_ns=fabric.control_ns,
            notify_ns=fabric.notify_ns,
            latency_ns=fabric.latency_ns,
            gpus_per_node=UNSET if fabric.gpus_per_node == 1 else fabric.gpus_per_node,
            scale_up_bps=UNSET if fabric.scale_up_bps is None else fabric.scale_up_bps,
        )

    def fabric(self, where: str, name: str = "") -> Fabric:
        """Build the fabric; raises `InputError` naming the file when it cannot exist."""
        for index, plane in enumerate(self.planes):
            if plane.ports != len(plane.node_of):
                why = f"node_of names the nodes of {len(plane.node_of)}"
                what = f"plane {index} has {plane.ports} ports"
                raise InputError(what, where, why, "make the two agree")
        try:
            return Fabric(
                nodes=self.nodes,
                planes=tuple(
                    Plane(
                        node_of=tuple(plane.node_of),
                        rate_bps=plane.rate_bps,
                        delay_ns=plane.delay_ns,
                        kind=plane.kind,
                        duplex=plane.duplex,
                        all_stop=plane.all_stop,
                        matchings=None
                        if plane.matchings is UNSET
                        else tuple(map(tuple, plane.matchings)),
                    )
                    for plane in self.planes
                ),
                control_ns=self.control_ns,
                notify_ns=self.notify_ns,
                latency_ns=self.latency_ns,
                gpus_per_node=1 if self.gpus_per_node is UNSET else self.gpus_per_node,
                scale_up_bps=None if self.scale_up_bps is UNSET else self.scale_up_bps,
                name=name,
            )
        except FabricError as error:
            raise InputError(error.what, where, error.why, error.fix) from error


class _WrittenPlane(Struct, forbid_unknown_fields=True, kw_only=True):
    kind: Literal["ocs", "eps"] = "ocs"
    ports: Natural | UnsetType = UNSET
    node_of: list[Natural] | UnsetType = UNSET
    rate: str | UnsetType = UNSET
    rate_bps: Natural | UnsetType = UNSET
    delay: str | UnsetType = UNSET
    delay_ns: Natural | UnsetType = UNSET
    duplex: bool = False
    all_stop: bool = False
    matchings: Matchings | UnsetType = UNSET
    count: Annotated[int, Meta(ge=1, le=1024)] = 1


class _WrittenFabric(Struct, forbid_unknown_fields=True, kw_only=True):
    planes: list[_WrittenPlane]
    nodes: Natural | UnsetType = UNSET
    control: str | UnsetType = UNSET
    control_ns: Natural | UnsetType = UNSET
    notify: str | UnsetType = UNSET
    notify_ns: Natural | UnsetType = UNSET
    latency: str | UnsetType = UNSET
    latency_ns: Natural | UnsetType = UNSET
    gpus_per_node: Annotated[int, Meta(ge=1, le=2**20)] = 1
    scale_up: str | UnsetType = UNSET
    scale_up_bps: Natural | UnsetType = UNSET


def fabric_schema() -> bytes:
    """Write the JSON Schema of fabrics: as files hold them, and as people write them."""
    return json_schema("A fabric", "fabric", FabricRecord, _WrittenFabric)


def load_fabric(topology: str, world: int | None = None) -> Fabric:
    """Build the fabric that `-t` names: Mininet's spelling, or a `.toml` or `.json` file.

    `nodes` defaults to what holds `world` ranks. Raises `UsageError` for a spelling, `InputError`
    for a file that cannot be used.
    """
    if topology.endswith(_SUFFIXES):
        return read_fabric(Path(topology), world)
    if topology not in BUILDERS and Path(topology).is_dir():
        why = "a topology is a file or a name with options"
        fix = f"name a file in it, as {topology.rstrip('/')}/fabric.toml, or write rails,planes=2"
        raise UsageError("this is a directory", topology, why, fix)
    return build_fabric(topology, world)


def read_fabric(path: Path, world: int | None = None) -> Fabric:
    """Read a topology file written by a person; errors as `load_fabric`."""
    data, where = read_bytes(path), str(path)
    decoder = msgspec.toml if path.suffix == ".toml" else msgspec.json
    try:
        written = decoder.decode(data, type=_WrittenFabric)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if path.suffix == ".toml" and not isinstance(error, msgspec.ValidationError):
            why = f"it is not TOML: {error}"
            raise InputError("this is not a topology", where, why, "correct the file") from error
        raise refusal(error, where, "a topology") from error
    nodes = written.nodes
    if nodes is UNSET:
        if world is None:
            why = "neither the file nor a workload says how many there are"
            raise InputError("nodes is missing", where, why, "add nodes = 8")
        nodes = -(-world // written.gpus_per_node)
    scale_up = _quantity(written.scale_up, written.scale_up_bps, parse_rate_bps, where, "scale_up")
    planes: list[PlaneRecord] = []
    for index, plane in enumerate(written.planes):
        place = f"{where} plane {index}"
        node_of = list(range(nodes)) if plane.node_of is UNSET else plane.node_of
        rate = _quantity(plane.rate, plane.rate_bps, parse_rate_bps, place, "rate")
        if rate is None:
            raise InputError("rate is missing", place, "a plane has one", 'add rate = "800Gbps"')
        record = PlaneRecord(
            kind=plane.kind,
            ports=len(node_of) if plane.ports is UNSET else plane.ports,
            node_of=node_of,
            rate_bps=rate,
            delay_ns=_duration(plane.delay, plane.delay_ns, place, "delay"),
            duplex=plane.duplex,
            all_stop=plane.all_stop,
            matchings=plane.matchings,
        )
        planes += [record] * plane.count
    return FabricRecord(
        nodes=nodes,
        planes=planes,
        control_ns=_duration(written.control, written.control_ns, where, "control"),
        notify_ns=_duration(written.notify, written.notify_ns, where, "notify"),
        latency_ns=_duration(written.latency, written.latency_ns, where, "latency"),
        gpus_per_node=written.gpus_per_node,
        scale_up_bps=UNSET if scale_up is None else scale_up,
    ).fabric(where, name=where)


def _quantity(
    text: str | UnsetType,
    number: int | UnsetType,
    parse: Callable[[str], int],
    where: str,
    name: str,
) -> int | None:
    """Read a quantity spelled with a unit or as a number of the unit its key names."""
    if text is UNSET:
        return None if number is UNSET else number
    if number is not UNSET:
        raise InputError(f"{name} is given twice", where, "one spelling suffices", "remove one")
    try:
        return parse(text)
    except UsageError as error:
        raise InputError(error.what, f"{where} {name}", error.why, error.fix) from error


def _duration(text: str | UnsetType, number: int | UnsetType, where: str, name: str) -> int:
    return _quantity(text, number, parse_duration_ns, where, name) or 0
