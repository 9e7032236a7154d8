"""fluxbed: what the fabric is. Data only: no Mininet, no time, no files."""

from topologies.errors import (
    CheckError,
    FabricError,
    FluxbedError,
    InputError,
    MachineError,
    StalledError,
    UsageError,
)
from topologies.fabric import Circuit, Fabric, Plane, Port
from topologies.rails import rails
from topologies.registry import build_fabric

__all__ = [
    "CheckError",
    "Circuit",
    "Fabric",
    "FabricError",
    "FluxbedError",
    "InputError",
    "MachineError",
    "Plane",
    "Port",
    "StalledError",
    "UsageError",
    "build_fabric",
    "rails",
]
