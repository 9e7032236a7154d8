"""The dispatcher's tables: what each column holds, and the tuples of arrays kernels are given.

There is no kernel here: the file is named like one because what the kernels compile depends on
it, and the cache of compiled kernels is keyed by the files so named. Everything is int64. Ports
are numbered over all planes, `PLANE_BASE` of the plane plus the port.

A *side* is what one circuit at a time can hold. On a directed plane port p has two, its output
(side p) and its input (side ports + p); on a duplex plane it has one, side p. Side 2*ports + k is
the whole of plane k, the only side whose order matters on an all-stop plane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from scheduler.model.taskgraph import Int64s

# What happened (the `event` of `dispatch`) and what `arg` is then.
EV_START: Final = 0  # time zero; arg unused
EV_ARRIVED: Final = 1  # the last byte of unrolled message arg has arrived
EV_READY: Final = 2  # the dependencies of unrolled message arg are met
EV_TICK: Final = 3  # timed programs: emit the slots requested until now + horizon; arg unused
EV_STARTED: Final = 4  # with lookahead: unrolled message arg began, its end is predictable

# A row of `actions`: [op, plane, src_port, dst_port, first, count, at_ns] (ports of the plane).
DROP: Final = 0  # the output src_port loses its light to dst_port
MAKE: Final = 1  # a new circuit: dark at max(at_ns, clock) + control_ns, up delay_ns later
KEEP: Final = 2  # the circuit stands or is coming: more messages for it
A_OP: Final = 0
A_PLANE: Final = 1
A_SRC: Final = 2
A_DST: Final = 3
A_FIRST: Final = 4  # granted[first : first + count] may now be sent, in this order
A_COUNT: Final = 5
A_AT: Final = 6
ACTION_COLUMNS: Final = 7

# `rule`: numbers of the whole program.
ORDERED: Final = 0
TIMED: Final = 1
REACTIVE: Final = 2
R_KIND: Final = 0  # ORDERED, TIMED or REACTIVE
R_TASKS: Final = 1  # tasks of one iteration
R_ITERATIONS: Final = 2
R_PORTS: Final = 3  # ports of all planes
R_CONTROL: Final = 4  # control_ns
R_DELIVERY: Final = 5  # latency_ns + notify_ns: from the last bit to the dispatcher's knowing
R_LOOKAHEAD: Final = 6  # lookahead_ns
R_HORIZON: Final = 7  # how far ahead a timed program is written, ns
R_PERIOD: Final = 8  # period_ns
R_PHASE: Final = 9  # phase_ns
R_PARTIAL: Final = 10  # 1: a slot darkens only the ports whose circuit changes
R_NOTIFY: Final = 11  # notify_ns
R_GATHER: Final = 12  # reactive: what comes so soon after an event is decided with it, ns
RULES: Final = 13

# `planes`, a row per plane.
PLANE_BASE: Final = 0  # its first port
PLANE_PORTS: Final = 1
PLANE_RATE: Final = 2  # bit/s
PLANE_DELAY: Final = 3  # ns
PLANE_DUPLEX: Final = 4
PLANE_ALL_STOP: Final = 5
PLANE_OPTICAL: Final = 6  # 0: a packet switch
PLANE_SLOT: Final = 7  # timed: its first row in `slots`
PLANE_SLOTS: Final = 8  # timed: how many
PLANE_COLUMNS: Final = 9

# `ports`, a row per port.
PORT_PLANE: Final = 0
PORT_NODE: Final = 1
PORT_NEXT: Final = 2  # the next port of the same node on the same plane, -1 none
PORT_COLUMNS: Final = 3

# `nodes`, a row per node: its ready messages that nobody granted, linked in order of readiness.
NODE_OUT_HEAD: Final = 0  # by source: the first, -1 none
NODE_OUT_TAIL: Final = 1
NODE_IN_HEAD: Final = 2  # by destination
NODE_IN_TAIL: Final = 3
NODE_PORT: Final = 4  # from here, per plane: the node's first port there, -1 none

# `messages`, a row per unrolled task of a reactive program.
MSG_STATE: Final = 0  # NOT_READY, WAITING (in the lists), GRANTED or DONE
MSG_READY: Final = 1  # when the dispatcher heard that it is ready, ns
MSG_SRC: Final = 2  # nodes
MSG_DST: Final = 3
MSG_BYTES: Final = 4
MSG_OUT_NEXT: Final = 5  # neighbours in the list of its source
MSG_OUT_BACK: Final = 6
MSG_IN_NEXT: Final = 7  # neighbours in the list of its destination
MSG_IN_BACK: Final = 8
MSG_A: Final = 9  # the sides of the circuit it was granted to
MSG_B: Final = 10
MSG_COLUMNS: Final = 11
NOT_READY: Final = 0
WAITING: Final = 1
GRANTED: Final = 2
DONE: Final = 3

# `sides`, a row per side.
SIDE_PEER: Final = 0  # the side its circuit leads to, -1 dark
SIDE_BUSY: Final = 1  # messages granted and not known to have arrived
SIDE_POSITION: Final = 2  # ordered: how many of its entries have been granted, over iterations
SIDE_FIRST: Final = 3  # ordered: where its entries begin in `side_entry`
SIDE_LENGTH: Final = 4  # ordered: how many an iteration has
SIDE_FREE_AT: Final = 5  # with lookahead: when its messages are done, as far as is known
SIDE_STAMP: Final = 6  # the last change that touched it (all-stop)
SIDE_UP: Final = 7  # when its circuit is up if commands are written in time
SIDE_COLUMNS: Final = 8

# `entries`, a row per base entry of an ordered program; on all-stop planes grouped by matching.
ENTRY_PLANE: Final = 0
ENTRY_SRC: Final = 1
ENTRY_DST: Final = 2
ENTRY_A: Final = 3  # the side of its output
ENTRY_B: Final = 4  # the side of its input
ENTRY_FIRST: Final = 5  # its messages in `message`
ENTRY_COUNT: Final = 6
ENTRY_COLUMNS: Final = 7

# `matchings`, a row per configuration of an all-stop plane: its entries.
MATCHING_FIRST: Final = 0
MATCHING_COUNT: Final = 1
MATCHING_MESSAGES: Final = 2
MATCHING_COLUMNS: Final = 3

# `slots`, a row per slot of a timed program.
SLOT_OFFSET: Final = 0  # ns after the cycle began
SLOT_FIRST: Final = 1  # its destination ports begin here in `permutation`
SLOT_COLUMNS: Final = 2

# `cursor`: how much of the outputs is written, and where a timed program is.
C_ROWS: Final = 0
C_GRANTED: Final = 1
C_STAMP: Final = 2
C_PLANES: Final = 3  # from here, per plane: the number of the next slot, counted from time zero


class Core(NamedTuple):
    """The dispatcher's memory and its outputs; it is also what a reactive policy is given.

    `nodes`, `messages` and `numbers` serve reactive programs: `numbers` is the policy's own, as
    long as its program made it.
    """

    rule: Int64s
    planes: Int64s
    ports: Int64s
    sides: Int64s
    nodes: Int64s
    messages: Int64s
    numbers: Int64s
    actions: Int64s
    granted: Int64s
    cursor: Int64s


class State(NamedTuple):
    """Everything `dispatch` works on."""

    core: Core
    size_bytes: Int64s
    entries: Int64s
    side_entry: Int64s
    message: Int64s
    carrier: Int64s
    matchings: Int64s
    slots: Int64s
    permutation: Int64s
    policy: Callable[[Core, int, int, int], int]
