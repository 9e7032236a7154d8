"""Greedy on demand: the oldest waiting message takes the first ports that are free for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.dispatch._kernels_columns import (
    EV_ARRIVED,
    EV_READY,
    MSG_DST,
    MSG_IN_NEXT,
    MSG_OUT_NEXT,
    MSG_SRC,
    NODE_IN_HEAD,
    NODE_OUT_HEAD,
    NODE_PORT,
    PLANE_ALL_STOP,
    PLANE_BASE,
    PLANE_DUPLEX,
    PORT_NEXT,
    SIDE_BUSY,
    SIDE_PEER,
)
from scheduler.dispatch._kernels_policy import in_side, out_side, send
from scheduler.kernel import kernel

if TYPE_CHECKING:
    from scheduler.dispatch._kernels_columns import Core


@kernel
def usable(core: Core, plane: int, a: int, b: int, turn: int) -> bool:
    """Say whether sides a and b may carry a message in this turn.

    First idle circuits that stand, then ports that are idle but not joined, then, on duplex planes,
    circuits that stand but are busy: the other direction may be what is busy.
    """
    busy = core.sides[a, SIDE_BUSY] != 0 or core.sides[b, SIDE_BUSY] != 0
    stands = core.sides[a, SIDE_PEER] == b
    if turn == 0:
        return bool(stands and not busy)
    if turn == 1:
        return bool(not stands and not busy)
    return bool(stands and core.planes[plane, PLANE_DUPLEX] != 0)


@kernel
def place(core: Core, message: int, now_ns: int) -> bool:
    """Send `message` over ports that are free for it; False if there are none."""
    row = core.messages[message]
    for turn in range(3):
        for plane in range(len(core.planes)):
            base = core.planes[plane, PLANE_BASE]
            src_port = core.nodes[row[MSG_SRC], NODE_PORT + plane]
            while src_port >= 0:
                a = out_side(core, plane, src_port - base)
                dst_port = core.nodes[row[MSG_DST], NODE_PORT + plane]
                while dst_port >= 0:
                    b = in_side(core, plane, dst_port - base)
                    if usable(core, plane, a, b, turn) and send(
                        core, plane, src_port - base, dst_port - base, message, now_ns
                    ):
                        return True
                    dst_port = core.ports[dst_port, PORT_NEXT]
                src_port = core.ports[src_port, PORT_NEXT]
    return False


@kernel
def serve(core: Core, node: int, head: int, after: int, peer: int, now_ns: int) -> None:
    """Place what can be placed of one of the node's waiting lists, oldest first.

    `peer` >= 0: only messages whose other end is that node.
    """
    other = MSG_DST if head == NODE_OUT_HEAD else MSG_SRC
    message = core.nodes[node, head]
    while message >= 0:
        following = core.messages[message, after]
        if peer < 0 or core.messages[message, other] == peer:
            place(core, message, now_ns)
        message = following


@kernel
def greedy(core: Core, now_ns: int, event: int, arg: int) -> int:
    """Place a message when it is ready, or those that waited when ports become free.

    Circuits are kept until their ports are needed (keep-alive), and messages of the pair that was
    just served come first. Freed ports cost O(messages waiting at both nodes).
    """
    if event == EV_READY:
        place(core, arg, now_ns)
    elif event == EV_ARRIVED:
        src, dst = core.messages[arg, MSG_SRC], core.messages[arg, MSG_DST]
        serve(core, src, NODE_OUT_HEAD, MSG_OUT_NEXT, dst, now_ns)
        for node in (src, dst):  # on a duplex plane both their outputs and their inputs
            serve(core, node, NODE_OUT_HEAD, MSG_OUT_NEXT, -1, now_ns)
            serve(core, node, NODE_IN_HEAD, MSG_IN_NEXT, -1, now_ns)
        if core.planes[:, PLANE_ALL_STOP].any():  # a plane that falls idle may change for anybody
            for node in range(len(core.nodes)):
                serve(core, node, NODE_OUT_HEAD, MSG_OUT_NEXT, -1, now_ns)
    return 0
