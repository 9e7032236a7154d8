"""The engine's tables: what each column holds, and the tuple of arrays its kernels are given.

There is no kernel here: the file is named like one because what the kernels compile depends on
it, and the cache of compiled kernels is keyed by the files so named.

Every time is in dilated ns since time zero: what a watch on the wall shows, not virtual time.
`NONE` stands for no task, no row and no time. Ports are numbered over all planes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from scheduler.dispatch._kernels_relays import Relays
    from scheduler.model.taskgraph import Int64s

NONE: Final = -1
NEVER: Final = (1 << 63) - 1

# Rules of time, in ns on the wall whatever the dilation.
SPIN_NS: Final = 30_000  # wake this much early and watch the clock: a sleep is late by 5-20 us
NAP_NS: Final = 100_000  # and so much of every millisecond belongs to the others on this core
AWAKE_NS: Final = 900_000
CREDIT_NS: Final = 20_000_000  # sleep that may be saved up against naps to come
RESEND_NS: Final = 1_000_000  # a frame not received by then is sent again
STRAGGLER_NS: Final = 50_000  # how often to look for a frame that did not arrive at once
LONGEST_SLEEP_NS: Final = 10_000_000  # so that the stop flag is seen
MOST_TRIES: Final = 20  # sendings of one frame before the run is given up

# `counters[OUTCOME]`.
RUNNING: Final = 0
FINISHED: Final = 1
STOPPED: Final = 2  # the stop flag
OVERDUE: Final = 3  # later than the limit
STALLED: Final = 4  # nothing left to wait for
LOST: Final = 5  # a frame failed MOST_TRIES times
FULL: Final = 6  # a table has no room: `counters[FULL_TABLE]` says which

# `counters[FULL_TABLE]`.
TABLE_TRANSFERS: Final = 0
TABLE_CIRCUITS: Final = 1
TABLE_EXTENTS: Final = 2
TABLE_FLYING: Final = 3
TABLE_TIMERS: Final = 4
TABLE_NEWS: Final = 5
TABLE_WINDOWS: Final = 6
TABLE_PLANNED: Final = 7
TABLE_CHUNKS: Final = 8
TABLES: Final = (
    "transfers",
    "circuits",
    "extents",
    "flying",
    "timers",
    "news",
    "windows",
    "planned",
    "chunks",
)

# `tasks`, a row per unrolled task. Bytes are virtual.
KIND: Final = 0
SRC: Final = 1  # node
DST: Final = 2  # node
SIZE: Final = 3  # bytes of a message
DURATION: Final = 4  # of a computation
MISSING: Final = 5  # predecessors that have not ended
READY: Final = 6  # when the last predecessor so far ended; once MISSING is 0, when it was ready
START: Final = 7
END: Final = 8
SENT: Final = 9  # bytes sent
GOT: Final = 10  # bytes received
LAST_BIT: Final = 11  # when the last bit so far left, ideally
ARRIVAL: Final = 12  # the latest of its frames' arrivals so far
NEXT: Final = 13  # the message behind it in its queue
PORT: Final = 14  # the output it was granted to
CIRCUIT: Final = 15  # and the circuit
FAR: Final = 16  # of a message on a packet plane: the input it goes to
SINCE: Final = 17  # when its NIC let it in: it may be sent from then on; NONE: not yet
BEHIND: Final = 18  # finite NIC buffer: the message that waits for room behind it
TASK_COLUMNS: Final = 19

# `ports`, a row per port.
PLANE: Final = 0
NODE: Final = 1
QUEUE: Final = 2  # grants: the first message
QUEUE_LAST: Final = 3
FREE: Final = 4  # when the last bit of its latest frame left
DUE: Final = 5  # when to look at it next
LENGTH: Final = 6  # the frame in service: its bytes, 0 for none
BEGIN: Final = 7  # when its first bit leaves
FRAME_END: Final = 8  # when its last bit leaves
USES: Final = 9  # the circuit it leaves by
ROW: Final = 10  # the transfer the frame before belongs to
NEWEST: Final = 11  # the circuit of the output's latest change
SEEN_DARK: Final = 12  # frames the crossbar has dropped in the dark, as last read
FIRST_WINDOW: Final = 13  # timed: the oldest of its circuits in `windows` that is not over
WINDOWS: Final = 14  # timed: how many there are
IN_FLIGHT: Final = 15  # its frames in `flying`
IN_FLIGHT_AGAIN: Final = 16  # of them, those to be sent again
AGAIN: Final = 17  # the frame in service is this row of `flying`, NONE: a new one
FRAME_TASK: Final = 18  # two hops: what the frame in service carries,
FRAME_OFFSET: Final = 19
FRAME_HOP: Final = 20  # 1: on behalf of another node
FRAME_TO: Final = 21  # the node it goes to in the end,
FRAME_SINCE: Final = 22  # and when its bytes came
STAGE: Final = 23  # packet plane: how far the first message of its queue is
ADMITTED: Final = 24  # packet plane: when the input it goes to began to be this output's
TAKEN: Final = 25  # packet plane: 1 while this input belongs to some output
CLEAR: Final = 26  # packet plane: when this input was last given up
WAITING: Final = 27  # packet plane: the outputs that wait for this input, FIFO
WAITING_LAST: Final = 28
WAITING_NEXT: Final = 29
PORT_COLUMNS: Final = 30

# `ports[STAGE]`.
IDLE: Final = 0
WAITS: Final = 1
SENDS: Final = 2

MOST_WINDOWS: Final = 8  # circuits of one output that are written and not over

# `transfers`, a row per piece of a message on one circuit.
T_TASK: Final = 0
T_PORT: Final = 1
T_FAR: Final = 2
T_CIRCUIT: Final = 3
T_BYTES: Final = 4
T_START: Final = 5
T_END: Final = 6
T_WALL_SENT: Final = 7  # data bytes of its frames, those sent again included
T_WALL_RECEIVED: Final = 8
T_SENT: Final = 9  # frames
T_RECEIVED: Final = 10
T_DARK: Final = 11
T_RESENT: Final = 12
T_EXTENT: Final = 13  # the extent its latest frame is in
T_HELD: Final = 14  # how much later than at line rate from T_START its bytes have left
T_HOP: Final = 15
TRANSFER_COLUMNS: Final = 16

# `circuits`, a row per circuit.
X_PLANE: Final = 0
X_SRC: Final = 1
X_DST: Final = 2
X_REQUEST: Final = 3
X_DARK: Final = 4
X_UP: Final = 5
X_DOWN: Final = 6
CIRCUIT_COLUMNS: Final = 7

# `extents`, a row per run of bytes received in order on one transfer.
E_TASK: Final = 0
E_OFFSET: Final = 1
E_LENGTH: Final = 2
E_TRANSFER: Final = 3
EXTENT_COLUMNS: Final = 4

# `flying`, a row per frame sent and not received; a frame is in row serial % rows.
F_SERIAL: Final = 0  # NONE: the row is free
F_TASK: Final = 1
F_OFFSET: Final = 2
F_LENGTH: Final = 3
F_PORT: Final = 4
F_FAR: Final = 5
F_TRANSFER: Final = 6
F_LAST_BIT: Final = 7
F_SENT: Final = 8
F_TRIES: Final = 9
F_PSN: Final = 10  # the same however often it is sent
F_AGAIN: Final = 11  # 1: it waits to be sent again
F_DOOMED: Final = 12  # the row of `faults` it fell victim to when it was sent, or NONE
FLYING_COLUMNS: Final = 13

# `timers`, a binary heap.
W_TIME: Final = 0
W_WHAT: Final = 1
W_ARG: Final = 2
TIMER_COLUMNS: Final = 3
COMPUTED: Final = 0  # task arg ends
DELIVERED: Final = 1  # message arg ends, its latency over
DUE_ROW: Final = 2  # row arg of `planned` is carried out, after the frames that left before
GO_BACK: Final = 3  # the sender hears that path arg, port * ports + far, lacks a frame
OUTAGE_BEGINS: Final = 4  # row arg of `faults`
RELAYED: Final = 5  # chunk arg // nodes is at node arg % nodes, its latency over
HEARD: Final = 8  # HEARD + event: the dispatcher is told

# `news`, the events the dispatcher has not been told: [event, arg, when].
W_EVENT: Final = 0
W_OF: Final = 1
W_WHEN: Final = 2
NEWS_COLUMNS: Final = 3

# `counters`.
DONE: Final = 0  # tasks
TURNS: Final = 1
SLEEPS: Final = 2
NAPS: Final = 3
FRAMES_SENT: Final = 4
FRAMES_RECEIVED: Final = 5
FLYING: Final = 6
RESENT: Final = 7
DISORDER: Final = 8  # frames overtaken on their path
DUPLICATES: Final = 9
FOREIGN: Final = 10  # datagrams that are not the frame they claim to be
MISSED: Final = 11  # frames woken too late for their slot
LATE_ARRIVALS: Final = 12  # later than their latency allows
SERIAL: Final = 13
TRANSFERS: Final = 14
CIRCUITS: Final = 15
EXTENTS: Final = 16
TIMERS: Final = 17
NEWS_COUNT: Final = 18
ENDED: Final = 19  # tasks put into `ended` so far
NEXT_CHECK: Final = 20  # when the oldest frame in flight may be sent again
CREDIT: Final = 21
AWAKE_SINCE: Final = 22  # less what it slept
OUTCOME: Final = 23
FULL_TABLE: Final = 24
CULPRIT: Final = 25  # the message a lost frame belongs to
SEND_ERRORS: Final = 26
ERRNO: Final = 27  # of the latest one
NEXT_TICK: Final = 28  # timed: when the coming slots are to be written
SETTLED: Final = 29  # how many of `ended` have been dealt with
PLANNED: Final = 30  # rows put into `planned` so far
DISCARDED: Final = 31  # frames received while one before them on their path was missing
SPOILT: Final = 32  # frames received and thrown away because a fault spoilt them
CULPRIT_ROW: Final = 33  # and the transfer
CROWDED: Final = 34  # finite NIC buffer: 1: somebody may be let in now
COUNTERS: Final = 35

# `numbers`, the constants of a run.
N_ZERO: Final = 0  # time zero on CLOCK_MONOTONIC
N_LIMIT: Final = 1  # when the run is surely stuck
N_QUANTUM: Final = 2  # virtual bytes of a full frame
N_GUARD: Final = 3
N_LATENCY: Final = 4
N_NOTIFY: Final = 5
N_NODES: Final = 6
N_EPOLL: Final = 7  # file descriptor
N_RESEND: Final = 8  # a frame not received by then after its sending is sent again
N_IN_FLIGHT: Final = 9  # the most frames of one output that may be unreceived
N_ROUTING: Final = 10
N_BUFFER: Final = 11  # bytes of its own that each NIC holds, 0 without end
N_STEP: Final = 12  # a virtual ns, rounded up
NUMBERS: Final = 13

# `numbers[N_ROUTING]`, of timed programs.
DIRECT: Final = 0
VLB: Final = 1
ROTORLB: Final = 2

# `faults`, a row per fault and, of late commands and locks, per plane.
Q_KIND: Final = 0
Q_PLANE: Final = 1  # NONE: any
Q_PORT: Final = 2  # over all planes, NONE: any
Q_NODE: Final = 3
Q_AT: Final = 4
Q_UNTIL: Final = 5
Q_VALUE: Final = 6  # SLOW: bit/s; SPOIL: share of 2^31 - 1; COMMANDS, LOCKS: mean, ns
Q_DIST: Final = 7
Q_SEED: Final = 8  # state of its random numbers
Q_BATCH: Final = 9  # COMMANDS: when the latest batch was asked for,
Q_DRAWN: Final = 10  # how late it is,
Q_DARK: Final = 11  # and when the latest command took effect
Q_LOST: Final = 12  # frames
Q_LOST_BYTES: Final = 13
Q_RESENT: Final = 14  # frames, those thrown away behind a lost one included
Q_DELAYED: Final = 15  # circuits, computations, frames
Q_DELAY: Final = 16  # in all
Q_DELAY_MOST: Final = 17
Q_OF: Final = 18  # the fault it is a row of
FAULT_COLUMNS: Final = 19
# `faults[:, Q_KIND]` and `faults[:, Q_DIST]`.
OUTAGE: Final = 0
SLOW: Final = 1
PAUSE: Final = 2
SPOIL: Final = 3
COMMANDS: Final = 4
LOCKS: Final = 5
FIXED: Final = 0
UNIFORM: Final = 1
EXPONENTIAL: Final = 2

# `rooms`, a row per node: the send buffer of its NIC, where that is finite.
ROOM_BYTES: Final = 0  # that nothing holds
ROOM_HEAD: Final = 1  # the first message that waits for room
ROOM_LAST: Final = 2  # the one let in last
ROOM_SINCE: Final = 3  # when the latest message left it
ROOM_COLUMNS: Final = 4

# `histograms`, a row per quantity in steps of HISTOGRAM_NS; the last bucket holds the rest.
LATENESS: Final = 0  # of frames: ideal last bit to the call that sends
HOP: Final = 1  # of messages: ideal last bit to arrival known
DISPATCH: Final = 2  # event to crossbar written
TRANSIT: Final = 3  # of frames: ideal last bit to arrival known
QUANTITIES: Final = 4
HISTOGRAM_NS: Final = 100
BUCKETS: Final = 1 << 16
# `extremes`, a row per quantity.
COUNT: Final = 0
SUM: Final = 1
MOST: Final = 2

# `control`: what the other threads write, and `progress`: what they read.
STOP: Final = 0
PROGRESS_DONE: Final = 0
PROGRESS_NS: Final = 1


class Wire(NamedTuple):
    """What libc is called with. `port_of` maps a file descriptor to its port."""

    fds: NDArray[np.int32]
    port_of: Int64s
    addresses: NDArray[np.uint8]
    send_header: NDArray[np.void]
    send_vector: NDArray[np.void]
    send_buffer: NDArray[np.uint8]
    receive_headers: NDArray[np.void]
    receive_vectors: NDArray[np.void]
    receive_buffers: NDArray[np.uint8]
    epoll_events: NDArray[np.void]
    timespec: Int64s


class Engine(NamedTuple):
    """Everything the engine works on, int64 unless said otherwise.

    `psn` is [ports, ports, 2]: the next PSN to send and to expect on each path. `voq` is
    [nodes * nodes, 2]: first and last message waiting from one node to another. `windows` is
    [ports, MOST_WINDOWS], rings of circuits. `scale` float64[1] is virtual bytes per wall byte.
    `ended` lists tasks in the order they end; a message is there twice if its latency had to pass.
    `planned` keeps the dispatcher's rows that are for later (lookahead). `asked` is [ports, ports]:
    the PSN each receiver asked each sender for last. `faults` may have no rows. `relays` is
    what waits under two-hop routing, `rooms` the NICs' send buffers.
    """

    numbers: Int64s
    tasks: Int64s
    successor_ptr: Int64s
    successor: Int64s
    ports: Int64s
    scale: NDArray[np.float64]
    node_port_ptr: Int64s
    node_port: Int64s
    windows: Int64s
    voq: Int64s
    transfers: Int64s
    circuits: Int64s
    extents: Int64s
    flying: Int64s
    psn: Int64s
    timers: Int64s
    news: Int64s
    ended: Int64s
    planned: Int64s
    asked: Int64s
    faults: Int64s
    relays: Relays
    rooms: Int64s
    counters: Int64s
    histograms: Int64s
    extremes: Int64s
    control: Int64s
    progress: Int64s
