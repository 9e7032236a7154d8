"""The engine's tables: made and sized before time zero, read back as a `Timeline` afterwards."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from scheduler.dispatch import _kernels_columns as col
from scheduler.dispatch.layout import new_state, prepare
from scheduler.dispatch.timed import new_relays
from scheduler.model.program import Entry, OrderedProgram, ReactiveProgram, TimedProgram
from scheduler.model.taskgraph import COMPUTE, MESSAGE, Arcs, TaskGraph, csr
from scheduler.model.timeline import NONE, Circuits, Timeline, Transfers
from testbed.emulator import _kernels_engine_columns as e
from testbed.emulator.crossbar import COUNTERS, DEPTH, NEVER, CrossbarTables
from testbed.emulator.dilation import Dilation, slot_lengths_ns
from testbed.emulator.frames import BTH_BYTES, CRC_BYTES, LEAST_DATA_BYTES
from testbed.emulator.network import PortSockets
from topologies.fabric import Fabric, Plane

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from scheduler.dispatch._kernels_relays import Relays
    from scheduler.dispatch.layout import Layout
    from scheduler.model.taskgraph import Int64s

__all__ = [
    "dispatcher_state",
    "initial_circuits",
    "new_engine",
    "new_wire",
    "read_timeline",
    "unreal_engine",
]

_FLYING: Final = 4096
_SPARE: Final = 1024
_RECEIVE_BATCH: Final = 16
_RECEIVE_BYTES: Final = 64  # the headers; the filler is not copied
_EPOLL_EVENTS: Final = 64
_SLOTS_AHEAD: Final = 2
_ROUTINGS: Final = {"direct": e.DIRECT, "vlb": e.VLB, "rotorlb": e.ROTORLB}
_CIRCUITS_PER_MESSAGE: Final = 4  # a policy may bring up circuits that it then does not use


def _slot_lengths_ns(program: TimedProgram) -> list[int]:
    """Return how long every slot of every plane is."""
    lengths: list[int] = []
    for slots in program.planes:
        lengths += slot_lengths_ns(slots, program.period_ns)
    return lengths


def dispatcher_state(layout: Layout) -> col.State:
    """Make the dispatcher's memory; timed programs are written two of their shortest slots ahead.

    Two and not more, less 1 ns: a row of the crossbar has room for that many.
    """
    if not isinstance(layout.program, TimedProgram):
        return new_state(layout)
    shortest_ns = min(_slot_lengths_ns(layout.program), default=layout.program.period_ns)
    return new_state(layout, horizon_ns=_SLOTS_AHEAD * shortest_ns - 1)


def initial_circuits(layout: Layout) -> Int64s:
    """Return (src, dst), ports over all planes, of every direction lit at time zero."""
    peers = layout.sides[: len(layout.ports), col.SIDE_PEER]
    sources = np.flatnonzero(peers >= 0)
    return np.column_stack([sources, peers[sources] % len(layout.ports)]).astype(np.int64)


def _most_circuits(layout: Layout, limit_ns: int) -> int:
    standing = len(initial_circuits(layout))
    if isinstance(layout.program, ReactiveProgram):
        return standing + _CIRCUITS_PER_MESSAGE * int((layout.work.kind == MESSAGE).sum()) + _SPARE
    if not isinstance(layout.program, TimedProgram):
        return standing + layout.iterations * len(layout.tables.entries)
    cycles = -(-limit_ns // layout.program.period_ns) + 2
    ports = layout.planes[:, col.PLANE_PORTS] * layout.planes[:, col.PLANE_SLOTS]
    return standing + int(cycles * ports.sum()) + _SPARE


def _most_transfers(layout: Layout, circuits: int, quantum_bytes: int) -> int:
    """Bound how many pieces messages move in: a piece ends with its message or with a circuit.

    Outputs that share a queue may each have a piece of every message. With two hops every frame may
    be a piece of its own, twice, and a circuit cuts one on each hop.
    """
    messages = int((layout.work.kind == MESSAGE).sum())
    if not isinstance(layout.program, TimedProgram):
        return messages
    if layout.program.routing != "direct":
        return 2 * _most_frames(layout, quantum_bytes) + 3 * circuits
    return messages * len(layout.planes) + circuits


def _most_extents(layout: Layout, transfers: int, quantum_bytes: int) -> int:
    """Bound the runs of bytes received in order: one per transfer, and those that losses cut.

    Circuits of several planes between the same two nodes take frames of one message in turns: then
    every frame may begin a run.
    """
    shared = isinstance(layout.program, TimedProgram) and len(layout.planes) > 1
    frames = _most_frames(layout, quantum_bytes) if shared else 0
    return transfers + frames + _FLYING + _SPARE


def _most_frames(layout: Layout, quantum_bytes: int) -> int:
    """Return how many frames of full size the messages make, each one's last less than full."""
    return int((-(-layout.work.size_bytes // quantum_bytes)).sum())


def _relays(layout: Layout, guard_ns: int, quantum_bytes: int, circuits: int) -> Relays:
    """Make the queues of two-hop routing: all messages, and every frame, may wait at once."""
    from scheduler.dispatch._kernels_relays import Relays

    if not isinstance(layout.program, TimedProgram) or layout.program.routing == "direct":
        nothing = np.zeros((0, 0), np.int64)
        return Relays(nothing, nothing, nothing, np.full(1, NONE, np.int64))
    messages = int((layout.work.kind == MESSAGE).sum())
    chunks = messages + _most_frames(layout, quantum_bytes) + circuits + _SPARE
    return new_relays(layout, guard_ns, chunks=chunks)


def _rooms(layout: Layout) -> Int64s:
    """Make the NICs' send buffers, all empty."""
    rooms = np.full((layout.fabric.nodes, e.ROOM_COLUMNS), NONE, np.int64)
    rooms[:, e.ROOM_BYTES] = layout.nic_buffer_bytes or 0
    rooms[:, e.ROOM_SINCE] = 0
    return rooms


def _most_planned(layout: Layout) -> int:
    """Bound the rows of an ordered program: per entry a MAKE and two DROPs; all-stop, a plane's."""
    if layout.lookahead_ns == 0:
        return 0
    per_entry = max(plane.ports if plane.all_stop else 3 for plane in layout.fabric.planes) + 1
    return layout.iterations * len(layout.tables.entries) * per_entry


def new_engine(
    layout: Layout,
    dilation: Dilation,
    *,
    limit_ns: int,
    guard_ns: int,
    epoll_fd: int,
    control: Int64s,
    progress: Int64s,
    faults: Int64s | None = None,
    rank_to_node: Sequence[int] | None = None,
) -> e.Engine:
    """Make the engine's memory before time zero; all times of `layout` are dilated.

    `faults` are rows of `faults.fault_rows`; by `rank_to_node` (None: in order) a paused host is
    found to compute nothing.

    Every table is filled here, so that no page of it is missing in real time.
    """
    total, ports = len(layout.work.kind), len(layout.ports)
    nodes = layout.fabric.nodes
    keys = layout.ports[:, col.PORT_PLANE] * nodes + layout.ports[:, col.PORT_NODE]
    node_port_ptr, node_port = csr(keys, np.arange(ports), len(layout.planes) * nodes)
    if faults is None:
        faults = np.zeros((0, e.FAULT_COLUMNS), np.int64)
    circuits = _most_circuits(layout, limit_ns)
    transfers = _most_transfers(layout, circuits, dilation.quantum_bytes) + len(faults) * ports
    extents = _most_extents(layout, transfers, dilation.quantum_bytes)
    timers = 2 * total + 16 + _most_planned(layout) + len(faults) + _FLYING
    tables = e.Engine(
        numbers=np.zeros(e.NUMBERS, np.int64),
        tasks=np.full((total, e.TASK_COLUMNS), NONE, np.int64),
        successor_ptr=layout.work.successor_ptr,
        successor=layout.work.successor,
        ports=np.full((ports, e.PORT_COLUMNS), NONE, np.int64),
        scale=np.array([dilation.bytes_per_wall_byte]),
        node_port_ptr=node_port_ptr,
        node_port=node_port,
        windows=np.full((ports, e.MOST_WINDOWS), NONE, np.int64),
        voq=np.full((nodes * nodes, 2), NONE, np.int64),
        transfers=np.full((transfers, e.TRANSFER_COLUMNS), 0, np.int64),
        circuits=np.full((circuits, e.CIRCUIT_COLUMNS), NONE, np.int64),
        extents=np.full((extents, e.EXTENT_COLUMNS), NONE, np.int64),
        flying=np.full((_FLYING, e.FLYING_COLUMNS), NONE, np.int64),
        psn=np.full((ports, ports, 2), 0, np.int64),
        timers=np.full((timers, e.TIMER_COLUMNS), NONE, np.int64),
        news=np.full((2 * total + 16, e.NEWS_COLUMNS), NONE, np.int64),
        ended=np.full(2 * total + 1, NONE, np.int64),
        planned=np.full((_most_planned(layout), col.ACTION_COLUMNS), NONE, np.int64),
        asked=np.full((ports, ports), NONE, np.int64),
        faults=faults,
        relays=_relays(layout, guard_ns, dilation.quantum_bytes, circuits),
        rooms=_rooms(layout),
        counters=np.zeros(e.COUNTERS, np.int64),
        histograms=np.full((e.QUANTITIES, e.BUCKETS), 0, np.int64),
        extremes=np.zeros((e.QUANTITIES, 3), np.int64),
        control=control,
        progress=progress,
    )
    tables.numbers[[e.N_LIMIT, e.N_GUARD]] = limit_ns, guard_ns
    tables.numbers[[e.N_QUANTUM, e.N_NODES, e.N_EPOLL]] = dilation.quantum_bytes, nodes, epoll_fd
    tables.numbers[e.N_LATENCY] = layout.fabric.latency_ns
    tables.numbers[e.N_NOTIFY] = layout.fabric.notify_ns
    tables.numbers[e.N_RESEND] = e.RESEND_NS
    tables.numbers[e.N_BUFFER] = layout.nic_buffer_bytes or 0
    tables.numbers[e.N_STEP] = math.ceil(dilation.factor)
    tables.numbers[e.N_IN_FLIGHT] = max(_FLYING // ports, 1)
    if isinstance(layout.program, TimedProgram):
        tables.numbers[e.N_ROUTING] = _ROUTINGS[layout.program.routing]
    tables.counters[[e.NEXT_CHECK, e.NEXT_TICK]] = e.NEVER
    tables.counters[e.CREDIT] = e.CREDIT_NS  # it sleeps that long until time zero
    work, tasks = layout.work, tables.tasks
    for column, values in (
        (e.KIND, work.kind),
        (e.SRC, work.src),
        (e.DST, work.dst),
        (e.SIZE, work.size_bytes),
        (e.DURATION, work.dur_ns),
        (e.MISSING, work.indegree),
        (e.READY, 0),
        (e.SENT, 0),
        (e.GOT, 0),
    ):
        tasks[:, column] = values
    computing = np.flatnonzero(work.kind == COMPUTE)
    ranks = layout.graph.rank[computing % layout.graph.tasks]
    tasks[computing, e.SRC] = ranks if rank_to_node is None else np.asarray(rank_to_node)[ranks]
    by_packet = np.flatnonzero(layout.route.plane >= 0)  # of an ordered program
    by_packet = by_packet[layout.planes[layout.route.plane[by_packet], col.PLANE_OPTICAL] == 0]
    for iteration in range(layout.iterations):
        rows = iteration * layout.graph.tasks + by_packet
        tasks[rows, e.PORT] = layout.route.src_port[by_packet]
        tasks[rows, e.FAR] = layout.route.dst_port[by_packet]
    line = tables.ports
    line[:, e.PLANE] = layout.ports[:, col.PORT_PLANE]
    line[:, e.NODE] = layout.ports[:, col.PORT_NODE]
    line[:, e.DUE] = e.NEVER
    line[:, [e.FREE, e.LENGTH, e.SEEN_DARK, e.FIRST_WINDOW, e.WINDOWS]] = 0
    line[:, [e.IN_FLIGHT, e.IN_FLIGHT_AGAIN, e.STAGE, e.TAKEN, e.CLEAR]] = 0
    _record_initial(layout, tables)
    return tables


def _record_initial(layout: Layout, tables: e.Engine) -> None:
    """Record the circuits that stand at time zero: one row each, both outputs of a duplex one."""
    for src, dst in initial_circuits(layout):
        plane = layout.ports[src, col.PORT_PLANE]
        base = layout.planes[plane, col.PLANE_BASE]
        if layout.planes[plane, col.PLANE_DUPLEX] and tables.ports[dst, e.NEWEST] != NONE:
            tables.ports[src, e.NEWEST] = tables.ports[dst, e.NEWEST]
            continue
        number = tables.counters[e.CIRCUITS]
        tables.counters[e.CIRCUITS] += 1
        tables.circuits[number, : e.X_DST + 1] = plane, src - base, dst - base
        tables.circuits[number, e.X_UP] = 0
        tables.ports[src, e.NEWEST] = number


def new_wire(sockets: PortSockets, most_data_bytes: int) -> e.Wire:
    """Make what libc is called with: one frame to send at a time, a batch to receive."""
    from testbed.emulator._kernels_libc import EPOLL_EVENT, IOVEC, MMSGHDR

    wire = e.Wire(
        fds=np.ascontiguousarray(sockets.fd, np.int32),
        port_of=np.ascontiguousarray(sockets.port_of_fd, np.int64),
        addresses=np.ascontiguousarray(sockets.address, np.uint8),
        send_header=np.zeros(1, MMSGHDR),
        send_vector=np.zeros(1, IOVEC),
        send_buffer=np.zeros(BTH_BYTES + most_data_bytes + CRC_BYTES, np.uint8),
        receive_headers=np.zeros(_RECEIVE_BATCH, MMSGHDR),
        receive_vectors=np.zeros(_RECEIVE_BATCH, IOVEC),
        receive_buffers=np.zeros((_RECEIVE_BATCH, _RECEIVE_BYTES), np.uint8),
        epoll_events=np.zeros(_EPOLL_EVENTS, EPOLL_EVENT),
        timespec=np.zeros(2, np.int64),
    )
    wire.send_buffer[2:4] = 0xFF  # the partition key
    wire.send_vector["base"] = wire.send_buffer.ctypes.data
    wire.send_header["iov"] = wire.send_vector.ctypes.data
    wire.send_header["iovlen"] = 1
    wire.send_header["namelen"] = wire.addresses.shape[1]
    buffers = wire.receive_buffers.ctypes.data
    wire.receive_vectors["base"] = buffers + _RECEIVE_BYTES * np.arange(_RECEIVE_BATCH)
    wire.receive_vectors["len"] = _RECEIVE_BYTES
    vectors = wire.receive_vectors.ctypes.data
    wire.receive_headers["iov"] = vectors + IOVEC.itemsize * np.arange(_RECEIVE_BATCH)
    wire.receive_headers["iovlen"] = 1
    return wire


def _virtual(times_ns: Int64s, factor: float) -> Int64s:
    """Undo the dilation, rounding; NONE stays."""
    virtual = np.rint(times_ns / factor).astype(np.int64)
    return np.where(times_ns == NONE, NONE, virtual)


def read_timeline(
    layout: Layout,
    fabric: Fabric,
    tables: e.Engine,
    factor: float,
    measures: Mapping[str, int | float | None],
) -> Timeline:
    """Return what happened, in virtual ns of the undilated `fabric`."""
    tasks = tables.tasks
    circuits, place = _circuits(layout, fabric, tables, factor)
    return Timeline(
        iterations=layout.iterations,
        ready_ns=_virtual(np.where(tasks[:, e.MISSING] == 0, tasks[:, e.READY], NONE), factor),
        start_ns=_virtual(tasks[:, e.START], factor),
        end_ns=_virtual(tasks[:, e.END], factor),
        transfers=_transfers(layout, tables, factor, place),
        circuits=circuits,
        origin="emulated",
        measures=measures,
    )


def _circuits(
    layout: Layout, fabric: Fabric, tables: e.Engine, factor: float
) -> tuple[Circuits, Int64s]:
    """Return the circuits that came up, by up_ns, and the place among them of each row."""
    rows = tables.circuits[: tables.counters[e.CIRCUITS]]
    came = np.flatnonzero((rows[:, e.X_DOWN] == NONE) | (rows[:, e.X_DOWN] >= rows[:, e.X_UP]))
    kept = rows[came]
    delay = np.array([plane.delay_ns for plane in fabric.planes])[kept[:, e.X_PLANE]]
    request = _virtual(kept[:, e.X_REQUEST], factor)
    asked = request != NONE
    late, slow = _lateness(layout, kept, factor)
    dark = np.where(asked, request + fabric.control_ns + late, NONE)
    up = np.where(asked, dark + delay + slow, 0)
    order = np.lexsort((came, kept[:, e.X_UP], up))  # of equal ones after rounding, as they came
    place = np.full(len(rows), NONE, np.int64)
    place[came[order]] = np.arange(len(order))
    circuits = Circuits(
        plane=kept[order, e.X_PLANE],
        src_port=kept[order, e.X_SRC],
        dst_port=kept[order, e.X_DST],
        request_ns=request[order],
        dark_ns=dark[order],
        up_ns=up[order],
        down_ns=_virtual(kept[order, e.X_DOWN], factor),
        planned_up_ns=np.full(len(order), NONE, np.int64),
        fault=(asked & (late + slow > 0))[order].astype(np.int64),
    )
    return circuits, place


def _lateness(layout: Layout, rows: Int64s, factor: float) -> tuple[Int64s, Int64s]:
    """Return how much later than due the circuits were dark, and how much longer, virtual ns."""
    control_ns = layout.fabric.control_ns
    delay_ns = layout.planes[rows[:, e.X_PLANE], col.PLANE_DELAY]
    late = rows[:, e.X_DARK] - rows[:, e.X_REQUEST] - control_ns
    slow = rows[:, e.X_UP] - rows[:, e.X_DARK] - delay_ns
    exact = [np.rint(each / factor).astype(np.int64) for each in (late, slow)]
    return exact[0], exact[1]


def _transfers(layout: Layout, tables: e.Engine, factor: float, place: Int64s) -> Transfers:
    rows = tables.transfers[: tables.counters[e.TRANSFERS]]
    rows = rows[np.lexsort((rows[:, e.T_TASK], rows[:, e.T_START]))]
    task = rows[:, e.T_TASK].copy()

    def column(index: int) -> NDArray[np.int64]:
        return rows[:, index].copy()

    return Transfers(
        task=task,
        hop=column(e.T_HOP),
        from_node=layout.ports[rows[:, e.T_PORT], col.PORT_NODE],
        to_node=layout.ports[rows[:, e.T_FAR], col.PORT_NODE],
        plane=layout.ports[rows[:, e.T_PORT], col.PORT_PLANE],
        circuit=np.append(place, NONE)[rows[:, e.T_CIRCUIT]],
        size_bytes=column(e.T_BYTES),
        start_ns=_virtual(rows[:, e.T_START], factor),
        end_ns=_virtual(rows[:, e.T_END], factor),
        wall_bytes_sent=column(e.T_WALL_SENT),
        wall_bytes_received=column(e.T_WALL_RECEIVED),
        frames_sent=column(e.T_SENT),
        frames_received=column(e.T_RECEIVED),
        frames_dark=column(e.T_DARK),
        frames_resent=column(e.T_RESENT),
    )


def unreal_engine() -> tuple[e.Engine, col.State, e.Wire, CrossbarTables, Int64s]:
    """Make all that the loop is given, for one compute and one message on two nodes and no network.

    For compiling the loop, with the types of a real run, and for testing its parts.
    """
    graph = TaskGraph(
        nodes=2,
        kind=np.array([COMPUTE, MESSAGE]),
        op=np.arange(2),
        rank=np.array([0, NONE]),
        stream=np.array([0, NONE]),
        position=np.array([0, NONE]),
        src=np.array([NONE, 0]),
        dst=np.array([NONE, 1]),
        size_bytes=np.array([0, 1]),
        dur_ns=np.array([1, 0]),
        group=np.array([NONE, 0]),
        step=np.array([NONE, 0]),
        arcs=Arcs(
            before=np.array([0]), after=np.array([1]), distance=np.array([0]), origin=np.array([0])
        ),
    )
    fabric = Fabric(nodes=2, planes=(Plane(node_of=(0, 1), rate_bps=10**9),))
    layout = prepare(
        graph, fabric, OrderedProgram.from_entries([[Entry(0, 1, (1,))]]), iterations=1
    )
    dilation = Dilation(
        factor=1.0,
        bytes_per_wall_byte=1.0,
        wall_bps=10**9,
        frame_bytes=LEAST_DATA_BYTES,
        quantum_bytes=LEAST_DATA_BYTES,
        guard_ns=0,
        bound_by="nothing",
    )
    ports = len(layout.ports)
    sockets = PortSockets(
        np.full(ports, NONE, np.int32), np.zeros((ports, 16), np.uint8), np.zeros(1, np.int32)
    )
    engine = new_engine(
        layout,
        dilation,
        limit_ns=0,
        guard_ns=0,
        epoll_fd=NONE,
        control=np.zeros(1, np.int64),
        progress=np.zeros(2, np.int64),
    )
    rows = np.full((2, ports, 2 * DEPTH), NEVER, np.int64)
    tables = CrossbarTables(rows[0], rows[1], np.zeros(ports, np.int64))
    counted = np.zeros((ports, len(COUNTERS)), np.int64)
    wire = new_wire(sockets, dilation.frame_bytes)
    return engine, dispatcher_state(layout), wire, tables, counted
