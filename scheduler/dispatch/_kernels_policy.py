"""What a reactive policy may do: look at the core and ask for circuits and sends, safely.

A policy is a `@kernel` function (core, now_ns, event, arg) -> int, called for EV_START, EV_READY
and EV_ARRIVED after the core has been brought up to date; what it returns is not used. It reads
the tables of `Core` as it likes, and acts only through `send` and `bring_up`, which refuse (False)
whatever would darken a message under way. So every policy is sound; a bad one is only slow.

The lists of waiting messages: `core.nodes[node, NODE_OUT_HEAD]` is the first that `node` waits to
send, `core.messages[m, MSG_OUT_NEXT]` the one after m; NODE_IN_HEAD and MSG_IN_NEXT likewise for
those it waits to receive; -1 ends them. `core.sides[side, SIDE_BUSY]` counts what is under way and
SIDE_PEER says where its circuit leads. A node's ports on plane k begin with
`core.nodes[node, NODE_PORT + k]` and go on with `core.ports[port, PORT_NEXT]`, numbered over all
planes: subtract `core.planes[k, PLANE_BASE]` for the plane's own number.
"""

from __future__ import annotations

from scheduler.dispatch._kernels_columns import (
    A_COUNT,
    C_GRANTED,
    C_ROWS,
    DONE,
    GRANTED,
    MSG_A,
    MSG_B,
    MSG_DST,
    MSG_IN_BACK,
    MSG_OUT_BACK,
    MSG_READY,
    MSG_SRC,
    MSG_STATE,
    NODE_IN_HEAD,
    NODE_OUT_HEAD,
    PLANE_ALL_STOP,
    PLANE_BASE,
    PLANE_DUPLEX,
    PLANE_OPTICAL,
    PLANE_PORTS,
    PORT_NODE,
    R_PORTS,
    SIDE_BUSY,
    SIDE_PEER,
    WAITING,
    Core,
)
from scheduler.dispatch._kernels_rows import connect, grant_row
from scheduler.kernel import lean_kernel

__all__ = ["bring_up", "idle", "in_side", "message_arrived", "message_ready", "out_side", "send"]


@lean_kernel
def idle(core: Core, now_ns: int, event: int, arg: int) -> int:  # noqa: ARG001 (every policy's)
    """Do nothing: what programs that are not reactive have for a policy."""
    return 0


@lean_kernel
def link(core: Core, message: int, node: int, head: int, back: int) -> None:
    """Append a message to one of a node's lists; `head`, `back` are the list's columns."""
    tail = core.nodes[node, head + 1]
    core.messages[message, back - 1] = -1
    core.messages[message, back] = tail
    if tail < 0:
        core.nodes[node, head] = message
    else:
        core.messages[tail, back - 1] = message
    core.nodes[node, head + 1] = message


@lean_kernel
def unlink(core: Core, message: int, node: int, head: int, back: int) -> None:
    """Take a message out of one of a node's lists."""
    after, before = core.messages[message, back - 1], core.messages[message, back]
    if before < 0:
        core.nodes[node, head] = after
    else:
        core.messages[before, back - 1] = after
    if after < 0:
        core.nodes[node, head + 1] = before
    else:
        core.messages[after, back] = before


@lean_kernel
def message_ready(core: Core, message: int, now_ns: int) -> None:
    """Put a message into the lists of its source and its destination."""
    row = core.messages[message]
    row[MSG_STATE] = WAITING
    row[MSG_READY] = now_ns
    link(core, message, row[MSG_SRC], NODE_OUT_HEAD, MSG_OUT_BACK)
    link(core, message, row[MSG_DST], NODE_IN_HEAD, MSG_IN_BACK)


@lean_kernel
def count_busy(core: Core, plane: int, message: int, change: int) -> None:
    """Add to the number of messages under way at both sides and on the plane."""
    core.sides[core.messages[message, MSG_A], SIDE_BUSY] += change
    core.sides[core.messages[message, MSG_B], SIDE_BUSY] += change
    core.sides[2 * core.rule[R_PORTS] + plane, SIDE_BUSY] += change


@lean_kernel
def message_arrived(core: Core, plane: int, message: int) -> None:
    """Note that a granted message is no longer under way on `plane`."""
    core.messages[message, MSG_STATE] = DONE
    count_busy(core, plane, message, -1)


@lean_kernel
def out_side(core: Core, plane: int, port: int) -> int:
    """Return the side that `port` of `plane` sends with: a row of `core.sides`."""
    return int(core.planes[plane, PLANE_BASE] + port)


@lean_kernel
def in_side(core: Core, plane: int, port: int) -> int:
    """Return the side that `port` of `plane` receives with; on a duplex plane the same one."""
    side = core.planes[plane, PLANE_BASE] + port
    return int(side if core.planes[plane, PLANE_DUPLEX] != 0 else side + core.rule[R_PORTS])


@lean_kernel
def may_change(core: Core, plane: int, a: int, b: int) -> bool:
    """Say whether joining sides a and b leaves every message under way its light."""
    sides = core.sides
    if core.planes[plane, PLANE_ALL_STOP] != 0:
        return bool(sides[2 * core.rule[R_PORTS] + plane, SIDE_BUSY] == 0)
    for side in (a, b):
        if sides[side, SIDE_BUSY] != 0:
            return False
        far = sides[side, SIDE_PEER]
        if far >= 0 and sides[far, SIDE_BUSY] != 0:
            return False
    return True


@lean_kernel
def bring_up(core: Core, plane: int, src_port: int, dst_port: int, now_ns: int) -> bool:
    """Ask for a circuit, before there is a message for it or not; True if it stands or comes.

    False if a message under way would lose its light, if there is no such circuit, or if no more
    rows fit into this event. Ports are the plane's own.
    """
    line = core.planes[plane]
    count = line[PLANE_PORTS]
    if line[PLANE_OPTICAL] == 0 or src_port == dst_port:
        return False
    if not (0 <= src_port < count and 0 <= dst_port < count):
        return False
    a, b = out_side(core, plane, src_port), in_side(core, plane, dst_port)
    if core.sides[a, SIDE_PEER] == b:
        return True
    if core.cursor[C_ROWS] + count + 4 > len(core.actions) or not may_change(core, plane, a, b):
        return False
    connect(core, plane, src_port, dst_port, now_ns)
    if line[PLANE_ALL_STOP] == 0:
        return True
    for port in range(count):  # all the others go dark too and are made anew
        side = line[PLANE_BASE] + port
        far = core.sides[side, SIDE_PEER]
        if far < 0 or side == a or (line[PLANE_DUPLEX] != 0 and (side == b or far < side)):
            continue
        core.sides[far, SIDE_PEER] = -1
        core.sides[side, SIDE_PEER] = -1
        connect(core, plane, port, far % core.rule[R_PORTS] - line[PLANE_BASE], now_ns)
    return True


@lean_kernel
def send(core: Core, plane: int, src_port: int, dst_port: int, message: int, now_ns: int) -> bool:
    """Grant a waiting message to a circuit, asking for that first if it does not stand.

    False, and nothing happens, if the message is not waiting, the ports belong to other nodes, or
    `bring_up` refuses.
    """
    row, base = core.messages[message], core.planes[plane, PLANE_BASE]
    count = core.planes[plane, PLANE_PORTS]
    if row[MSG_STATE] != WAITING or core.cursor[C_ROWS] + 4 > len(core.actions):
        return False
    if not (0 <= src_port < count and 0 <= dst_port < count):
        return False
    if core.ports[base + src_port, PORT_NODE] != row[MSG_SRC]:
        return False
    if core.ports[base + dst_port, PORT_NODE] != row[MSG_DST]:
        return False
    if not bring_up(core, plane, src_port, dst_port, now_ns):
        return False
    unlink(core, message, row[MSG_SRC], NODE_OUT_HEAD, MSG_OUT_BACK)
    unlink(core, message, row[MSG_DST], NODE_IN_HEAD, MSG_IN_BACK)
    row[MSG_STATE] = GRANTED
    row[MSG_A] = out_side(core, plane, src_port)
    row[MSG_B] = in_side(core, plane, dst_port)
    count_busy(core, plane, message, 1)
    at = grant_row(core, plane, src_port, dst_port, now_ns)
    core.granted[core.cursor[C_GRANTED]] = message
    core.cursor[C_GRANTED] += 1
    core.actions[at, A_COUNT] += 1
    return True
