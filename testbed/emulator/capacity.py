"""How many frames a second this machine carries on a built fabric, and how late they are known.

Two short executions of made-up traffic: one as fast as the engine can, one at half that rate in
rings with computation in between, each step waiting for the one before, as collectives do.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from statistics import median
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

import numpy as np

from scheduler.dispatch.simulator import iteration_ends
from scheduler.model.program import Entry, OrderedProgram
from scheduler.model.taskgraph import COMPUTE, MESSAGE, Arcs, TaskGraph
from testbed.emulator.dilation import FRAME_BYTES, Dilation
from testbed.emulator.engine import execute
from topologies.fabric import Fabric, Plane

if TYPE_CHECKING:
    from testbed.emulator.network import EmulatedFabric

__all__ = ["Capacity", "measure_capacity", "measure_link_bps"]

_FRAMES: Final = 16_000  # of the fast execution: 0.1 s
_MESSAGES: Final = 1_500  # of the other one: its p99 has 15 samples above it
_FRAMES_PER_MESSAGE: Final = 4
_LEAST_STEPS: Final = 8
_LINK_FRAMES: Final = 4_000
_ROUNDS: Final = 5
_NS: Final = 10**9


@dataclass(frozen=True, slots=True)
class Capacity:
    """What was measured, on the wall.

    `frames_per_s` flat out; a *hop* is from a message's last bit sent to its arrival known, and
    `drift_ns` what each message adds to a chain of messages that wait for one another.
    """

    frames_per_s: float
    hop_mean_ns: float
    hop_p50_ns: float
    hop_p99_ns: float
    drift_ns: float


_measured: Final[WeakKeyDictionary[EmulatedFabric, Capacity]] = WeakKeyDictionary()


def measure_capacity(network: EmulatedFabric) -> Capacity:
    """Measure for about a second, once per network; raises what `execute` raises.

    Each number is the median of five rounds: on a shared machine a burst of somebody else's work
    must not decide how slow a run is made.
    """
    if network not in _measured:
        rounds = [astuple(_measure(network)) for _ in range(_ROUNDS)]
        _measured[network] = Capacity(*(median(values) for values in zip(*rounds, strict=True)))
    return _measured[network]


def measure_link_bps(network: EmulatedFabric) -> float:
    """Return what one link carries while no other is used, in bit/s of frames' data."""
    alone = _traffic(network.fabric, steps=1, frames=_LINK_FRAMES, frame_ns=1, links=1)
    done = execute(*alone, network, iterations=1, dilation=_UNDILATED).measures
    sent, wall_s = done["frames_sent"], done["wall_s"]
    assert sent
    assert wall_s
    return sent * FRAME_BYTES * 8 / wall_s


def _measure(network: EmulatedFabric) -> Capacity:
    ports = sum(plane.ports for plane in network.fabric.planes)
    fast = _traffic(network.fabric, steps=1, frames=max(_FRAMES // ports, 1), frame_ns=1)
    done = execute(*fast, network, iterations=1, dilation=_UNDILATED).measures
    sent, wall_s = done["frames_sent"], done["wall_s"]
    assert sent
    assert wall_s
    frames_per_s = sent / wall_s

    steps = max(_MESSAGES // ports, _LEAST_STEPS)
    frame_ns = round(2 * ports * _NS / frames_per_s)
    rings = _traffic(network.fabric, steps=steps, frames=_FRAMES_PER_MESSAGE, frame_ns=frame_ns)
    ideal_ns = int(iteration_ends(*rings, iterations=1)[-1])
    timeline = execute(*rings, network, iterations=1, dilation=_UNDILATED)
    mean, half, most = (timeline.measures[f"hop_{name}_us"] for name in ("mean", "p50", "p99"))
    assert mean is not None
    assert half is not None
    assert most is not None
    return Capacity(
        frames_per_s=frames_per_s,
        hop_mean_ns=mean * 1e3,
        hop_p50_ns=half * 1e3,
        hop_p99_ns=most * 1e3,
        drift_ns=(int(timeline.iteration_ends_ns[-1]) - ideal_ns) / steps,
    )


_UNDILATED: Final = Dilation(
    factor=1.0,
    bytes_per_wall_byte=1.0,
    wall_bps=1,
    frame_bytes=FRAME_BYTES,
    quantum_bytes=FRAME_BYTES,
    guard_ns=0,
    bound_by="measurement",
)


def _traffic(
    fabric: Fabric, *, steps: int, frames: int, frame_ns: int, links: int | None = None
) -> tuple[TaskGraph, Fabric, OrderedProgram]:
    """Make rings on every plane: `steps` times, compute and send `frames` to the next port.

    A port's next step begins when it has sent and received; computing takes a message's time, the
    same everywhere: all ports become due together, as at the steps of a collective. Returns the
    graph, the fabric without delays at a rate of one frame per `frame_ns`, and the program: one
    circuit per port that stands from the start; `links` are the most that are used (None: all).
    """
    rate_bps = FRAME_BYTES * 8 * _NS // frame_ns
    planes = tuple(Plane(node_of=plane.node_of, rate_bps=rate_bps) for plane in fabric.planes)
    rows: list[tuple[int, int, int, int]] = []  # kind, src, dst, duration
    arcs: list[tuple[int, int]] = []
    entries: list[list[Entry]] = []
    for plane in planes:
        shift, first = _shift(plane), len(rows)
        senders = [p for p in range(plane.ports) if plane.node_of[p] != _peer(plane, p, shift)[1]]
        if links is not None:
            senders = senders[: max(links - sum(map(len, entries)), 0)]
        width = len(senders)
        place = {port: k for k, port in enumerate(senders)}
        for step in range(steps):
            for k, port in enumerate(senders):
                compute, message = (
                    first + 2 * (step * width + k),
                    first + 2 * (step * width + k) + 1,
                )
                rows.append((COMPUTE, -1, -1, frames * frame_ns))
                far, node = _peer(plane, port, shift)
                rows.append((MESSAGE, plane.node_of[port], node, 0))
                arcs.append((compute, message))
                if step + 1 < steps:
                    arcs += [
                        (message, first + 2 * ((step + 1) * width + place[end]))
                        for end in (port, far)
                        if end in place
                    ]
        entries.append(
            [
                Entry(
                    port,
                    _peer(plane, port, shift)[0],
                    tuple(first + 2 * (step * width + k) + 1 for step in range(steps)),
                )
                for k, port in enumerate(senders)
            ]
        )
    kind, src, dst, duration = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    before, after = np.array(arcs, np.int64).T.copy()
    nothing, zero = np.full(len(kind), -1, np.int64), np.zeros(len(before), np.int64)
    graph = TaskGraph(
        nodes=fabric.nodes,
        kind=kind,
        op=np.arange(len(kind), dtype=np.int64),
        rank=np.where(kind == COMPUTE, 0, -1),
        stream=nothing,
        position=nothing,
        src=src,
        dst=dst,
        size_bytes=np.where(kind == MESSAGE, frames * FRAME_BYTES, 0),
        dur_ns=duration,
        group=nothing,
        step=nothing,
        arcs=Arcs(before=before, after=after, distance=zero, origin=zero),
    )
    standing = [(k, e.src_port, e.dst_port) for k, listed in enumerate(entries) for e in listed]
    program = OrderedProgram.from_entries(entries, initial_circuits=standing)
    return graph, Fabric(nodes=fabric.nodes, planes=planes), program


def _shift(plane: Plane) -> int:
    """Return how many ports on to send, so that no port sends to its own node (1 on most planes).

    Where every shift meets a node of its own, 1: those ports stay silent.
    """
    nodes = np.array(plane.node_of)
    apart = (k for k in range(1, plane.ports) if (np.roll(nodes, -k) != nodes).all())
    return next(apart, 1)


def _peer(plane: Plane, port: int, shift: int) -> tuple[int, int]:
    """Return the port that `port` sends to, and the node behind it."""
    far = (port + shift) % plane.ports
    return far, plane.node_of[far]
