"""Prefetch: greedy, and idle ports are turned to the circuits that the program will need next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scheduler.dispatch._kernels_columns import (
    EV_ARRIVED,
    EV_START,
    MSG_DST,
    MSG_SRC,
    MSG_STATE,
    NODE_IN_HEAD,
    NODE_OUT_HEAD,
    NODE_PORT,
    NOT_READY,
    PLANE_BASE,
    PORT_NEXT,
    PORT_NODE,
    R_PORTS,
    SIDE_BUSY,
    SIDE_PEER,
)
from scheduler.dispatch._kernels_policy import bring_up, in_side, out_side
from scheduler.kernel import kernel, register_warm_up
from scheduler.policies._kernels_greedy import greedy

if TYPE_CHECKING:
    from scheduler.dispatch._kernels_columns import Core

_AHEAD: Final = 4096  # tasks looked at


@kernel
def needed_soon(core: Core, first: int, node: int, peer: int, column: int, wanted: int) -> bool:
    """Say whether `peer` is among the next `wanted` nodes that `node` will exchange messages with.

    `column` is MSG_SRC for what it sends and MSG_DST for what it receives, in program order from
    message `first` on.
    """
    other = MSG_DST if column == MSG_SRC else MSG_SRC
    seen, last = 0, -1
    for message in range(first, min(first + _AHEAD, len(core.messages))):
        row = core.messages[message]
        if row[column] != node or row[MSG_STATE] != NOT_READY or row[other] == last:
            continue
        if row[other] == peer:
            return True
        last = row[other]
        seen += 1
        if seen == wanted:
            return False
    return False


@kernel
def idle_port(core: Core, plane: int, node: int, first: int, column: int, wanted: int) -> int:
    """Return a port of `node` whose circuit carries nothing and is not needed soon, -1 if none.

    `column` MSG_SRC: an output, MSG_DST: an input.
    """
    base, ports = core.planes[plane, PLANE_BASE], core.rule[R_PORTS]
    port = core.nodes[node, NODE_PORT + plane]
    while port >= 0:
        side = port
        if column == MSG_DST:
            side = in_side(core, plane, port - base)
        peer = core.sides[side, SIDE_PEER]
        if core.sides[side, SIDE_BUSY] == 0:
            if peer < 0:
                return int(port)
            far = core.ports[peer % ports, PORT_NODE]
            if not needed_soon(core, first, node, far, column, wanted):
                return int(port)
        port = core.ports[port, PORT_NEXT]
    return -1


@kernel
def stands(core: Core, src: int, dst: int) -> bool:
    """Say whether some circuit leads from one node to the other, or is coming."""
    for plane in range(len(core.planes)):
        port = core.nodes[src, NODE_PORT + plane]
        while port >= 0:
            side = out_side(core, plane, port - core.planes[plane, PLANE_BASE])
            peer = core.sides[side, SIDE_PEER]
            if peer >= 0 and core.ports[peer % core.rule[R_PORTS], PORT_NODE] == dst:
                return True
            port = core.ports[port, PORT_NEXT]
    return False


@kernel
def ports_of(core: Core, node: int) -> int:
    """Count a node's ports."""
    count = 0
    for plane in range(len(core.planes)):
        port = core.nodes[node, NODE_PORT + plane]
        while port >= 0:
            count += 1
            port = core.ports[port, PORT_NEXT]
    return count


@kernel
def provision(core: Core, node: int, column: int, first: int, now_ns: int) -> None:
    """Ask for the circuits of the next messages of `node`, as many as it has ports.

    A port is taken if it carries nothing, nobody waits for it and its circuit is not among those
    that its nodes need next. `column` as in `needed_soon`.
    """
    if core.nodes[node, NODE_OUT_HEAD if column == MSG_SRC else NODE_IN_HEAD] >= 0:
        return
    wanted = ports_of(core, node)
    seen, last = 0, -1
    other = MSG_DST if column == MSG_SRC else MSG_SRC
    for message in range(first, min(first + _AHEAD, len(core.messages))):
        row = core.messages[message]
        if row[column] != node or row[MSG_STATE] != NOT_READY or row[other] == last:
            continue
        last = row[other]
        seen += 1
        src, dst = row[MSG_SRC], row[MSG_DST]
        if not stands(core, src, dst):
            for plane in range(len(core.planes)):
                out = idle_port(core, plane, src, first, MSG_SRC, wanted)
                into = idle_port(core, plane, dst, first, MSG_DST, wanted)
                base = core.planes[plane, PLANE_BASE]
                if (
                    out >= 0
                    and into >= 0
                    and bring_up(core, plane, out - base, into - base, now_ns)
                ):
                    break
        if seen == wanted:
            return


@kernel
def prefetch(core: Core, now_ns: int, event: int, arg: int) -> int:
    """Serve who waits as `greedy` does; then provision the ports that fell idle."""
    greedy(core, now_ns, event, arg)
    if event == EV_START:
        for node in range(len(core.nodes)):
            provision(core, node, MSG_SRC, 0, now_ns)
    elif event == EV_ARRIVED:
        for node in (core.messages[arg, MSG_SRC], core.messages[arg, MSG_DST]):
            provision(core, node, MSG_SRC, arg + 1, now_ns)
            provision(core, node, MSG_DST, arg + 1, now_ns)
    return 0


@register_warm_up
def compile_policies() -> None:
    """Compile both policies as the dispatcher calls them."""
    from scheduler.dispatch.policies import compiled_policy
    from scheduler.model.program import ReactiveProgram

    for policy, function in (("greedy", greedy), ("prefetch", prefetch)):
        compiled_policy(ReactiveProgram(policy=policy, function=function))
