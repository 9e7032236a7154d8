"""NIC accounting of one node, compiled: leaps between the moments at which a rate changes.

Amounts are integers in units of gcd(8e9, every rate) nanobits, so that sizes and rates per ns are
both whole; see `scheduler.model.nic` for the rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from scheduler.kernel import kernel, register_warm_up

if TYPE_CHECKING:
    from scheduler.model.taskgraph import Int64s

__all__ = ["ARRIVE", "FORWARD", "SEND", "account_node"]

SEND: Final = 0  # a message of this node leaves
FORWARD: Final = 1  # transit bytes leave
ARRIVE: Final = 2  # transit bytes come in

_NEVER: Final = 2**62


@kernel
def account_node(
    node_rate: int,
    paced: int,
    feedback_ns: int,
    mtu: int,
    ready_ns: Int64s,
    size: Int64s,
    voq: Int64s,
    flow_kind: Int64s,
    flow_start_ns: Int64s,
    flow_message: Int64s,
    flow_voq: Int64s,
    flow_size: Int64s,
    flow_rate: Int64s,
    voqs: int,
    peaks: Int64s,
    inject_ns: Int64s,
    series: Int64s,
) -> int:
    """Account for one node's NIC; return how many rows of `series` it needed.

    `ready_ns`, `size`, `voq` (messages,) are the node's own messages ordered by (ready, id);
    `flow_*` (flows,) the bytes that cross its ports ordered by start, `flow_message` an index into
    the messages or -1. Writes `peaks` = [peak, when, transit peak], per message when its first byte
    came in (`inject_ns`, -1: never), and rows (voq, t_ns, amount) of `series`, as many as fit.
    """
    messages, flows = len(size), len(flow_size)
    unsent, outside = size.copy(), size.copy()  # not yet sent; not yet in the NIC
    need = np.zeros(messages, np.int64)
    after = np.full(messages + 1, -1, np.int64)  # list of messages with bytes outside, by ready
    before = np.full(messages + 1, -1, np.int64)
    after[messages] = before[messages] = messages  # the list's anchor
    rest_of_flow = flow_size.copy()
    active = np.empty(flows, np.int64)
    served = np.zeros(voqs, np.int64)  # rate at which own messages leave
    backlog = np.zeros(voqs, np.int64)  # ready and unsent
    own = np.zeros(voqs, np.int64)  # own bytes in the NIC
    transit = np.zeros(voqs, np.int64)
    seen = np.zeros(voqs, np.int64)  # what the series last saw
    sign = np.zeros(voqs, np.int64)  # is it rising, level or falling
    noted = np.zeros(voqs, np.int64)  # when the series' last point was written
    stamp = np.full(voqs, -1, np.int64)
    touched = np.empty(voqs, np.int64)
    moving = np.empty(voqs, np.int64)
    n_active, n_moving, rows, step = 0, 0, 0, 0
    total, total_transit = 0, 0
    peaks[:] = 0
    inject_ns[:] = -1
    next_message, next_flow = 0, 0
    now = 0
    for q in range(voqs):
        if rows < len(series):
            series[rows, 0], series[rows, 1], series[rows, 2] = q, 0, 0
        rows += 1
    while True:
        # 1. what ends and begins now
        n_touched, step = 0, step + 1
        kept = 0
        for i in range(n_active):
            f = active[i]
            q = flow_voq[f]
            if rest_of_flow[f] > 0:
                active[kept] = f
                kept += 1
            elif flow_kind[f] == SEND:
                served[q] -= flow_rate[f]
                if stamp[q] != step:
                    stamp[q] = step
                    touched[n_touched] = q
                    n_touched += 1
        n_active = kept
        while next_message < messages and ready_ns[next_message] <= now:
            m = next_message
            q = voq[m]
            backlog[q] += size[m]
            last = before[messages]
            after[last], before[m], after[m], before[messages] = m, last, messages, m
            if stamp[q] != step:
                stamp[q] = step
                touched[n_touched] = q
                n_touched += 1
            next_message += 1
        while next_flow < flows and flow_start_ns[next_flow] <= now:
            f = next_flow
            q = flow_voq[f]
            active[n_active] = f
            n_active += 1
            if flow_kind[f] == SEND:
                served[q] += flow_rate[f]
                if stamp[q] != step:
                    stamp[q] = step
                    touched[n_touched] = q
                    n_touched += 1
            next_flow += 1
        if paced != 0:
            for i in range(n_touched):
                q = touched[i]
                held = min(served[q] * feedback_ns + mtu, backlog[q]) if served[q] > 0 else 0
                if held != own[q]:
                    for value in (own[q] + transit[q], held + transit[q]):
                        if rows < len(series):
                            series[rows, 0], series[rows, 1], series[rows, 2] = q, now, value
                        rows += 1
                    total += held - own[q]
                    own[q] = held
                    seen[q], sign[q], noted[q] = held + transit[q], 0, now
            if total > peaks[0]:
                peaks[0], peaks[1] = total, now
        # 2. how long every rate stays as it is
        coming = _NEVER
        if next_message < messages:
            coming = ready_ns[next_message]
        if next_flow < flows:
            coming = min(coming, flow_start_ns[next_flow])
        busy = n_active > 0 or (paced == 0 and after[messages] != messages)
        if not busy:
            for i in range(n_moving):
                q = moving[i]
                if noted[q] != now:
                    if rows < len(series):
                        series[rows, 0], series[rows, 1], series[rows, 2] = q, now, seen[q]
                    rows += 1
                sign[q], noted[q] = 0, now
            n_moving = 0
            if coming == _NEVER:
                break
            now = coming
            continue
        span = coming - now
        for i in range(n_active):
            f = active[i]
            span = min(span, rest_of_flow[f] // flow_rate[f])
            if flow_kind[f] == SEND:
                need[flow_message[f]] += flow_rate[f]
        spare = node_rate
        for i in range(n_active):
            f = active[i]
            m = flow_message[f]
            if flow_kind[f] != SEND or need[m] <= 0:
                continue
            if outside[m] > 0:
                span = min(span, outside[m] // need[m])
                spare -= need[m]
            if paced != 0 and backlog[flow_voq[f]] > served[flow_voq[f]] * feedback_ns + mtu:
                above = backlog[flow_voq[f]] - served[flow_voq[f]] * feedback_ns - mtu
                span = min(span, above // served[flow_voq[f]])
            need[m] = -need[m]  # counted
        if paced == 0 and spare > 0:
            m = after[messages]
            while m != messages and need[m] != 0:
                m = after[m]
            if m != messages:
                span = min(span, outside[m] // spare)
        for i in range(n_active):
            if flow_kind[active[i]] == SEND:
                need[flow_message[active[i]]] = 0
        span = max(span, 1)
        # 3. move bytes for that long; over a single ns amounts may run out, so they are bounded
        n_touched, step = 0, step + 1
        for i in range(n_active):
            f = active[i]
            q = flow_voq[f]
            moved = min(flow_rate[f] * span, rest_of_flow[f])
            rest_of_flow[f] -= moved
            if flow_kind[f] == SEND:
                m = flow_message[f]
                if inject_ns[m] < 0:
                    inject_ns[m] = now
                need[m] += moved
                unsent[m] -= moved
                backlog[q] -= moved
            elif flow_kind[f] == FORWARD:
                transit[q] -= moved
                total_transit -= moved
                total -= moved
            else:
                transit[q] += moved
                total_transit += moved
                total += moved
            if stamp[q] != step:
                stamp[q] = step
                touched[n_touched] = q
                n_touched += 1
        if paced != 0:
            for i in range(n_touched):
                q = touched[i]
                held = min(served[q] * feedback_ns + mtu, backlog[q]) if served[q] > 0 else 0
                total += held - own[q]
                own[q] = held
            for i in range(n_active):
                if flow_kind[active[i]] == SEND:
                    need[flow_message[active[i]]] = 0
        else:
            used = 0
            for i in range(n_active):
                f = active[i]
                m = flow_message[f]
                if flow_kind[f] != SEND or need[m] <= 0:
                    continue
                entered = min(outside[m], need[m])
                if entered > 0:
                    outside[m] -= entered
                    used += entered
                    if outside[m] == 0:
                        after[before[m]], before[after[m]] = after[m], before[m]
                own[flow_voq[f]] += entered - need[m]
                total += entered - need[m]
                need[m] = -need[m]  # draining: not among the waiting
            m = after[messages]
            if m != messages:
                free = node_rate * span - used
                while m != messages and free > 0:
                    following = after[m]
                    if need[m] == 0:
                        q = voq[m]
                        entered = min(outside[m], free)
                        if inject_ns[m] < 0:
                            inject_ns[m] = now
                        outside[m] -= entered
                        free -= entered
                        own[q] += entered
                        total += entered
                        if outside[m] == 0:
                            after[before[m]], before[following] = following, before[m]
                        if stamp[q] != step:
                            stamp[q] = step
                            touched[n_touched] = q
                            n_touched += 1
                    m = following
            for i in range(n_active):
                if flow_kind[active[i]] == SEND:
                    need[flow_message[active[i]]] = 0
        # 4. remember turning points, which include every local maximum
        for i in range(n_moving):
            q = moving[i]
            if stamp[q] != step:
                stamp[q] = step
                touched[n_touched] = q
                n_touched += 1
        n_moving = 0
        for i in range(n_touched):
            q = touched[i]
            value = own[q] + transit[q]
            direction = 1 if value > seen[q] else (-1 if value < seen[q] else 0)
            if direction != sign[q]:
                if noted[q] != now:
                    if rows < len(series):
                        series[rows, 0], series[rows, 1], series[rows, 2] = q, now, seen[q]
                    rows += 1
                sign[q], noted[q] = direction, now
            if direction != 0:
                moving[n_moving] = q
                n_moving += 1
            seen[q] = value
        now += span
        if total > peaks[0]:
            peaks[0], peaks[1] = total, now
        peaks[2] = max(peaks[2], total_transit)
    for q in range(voqs):
        if noted[q] != now:
            if rows < len(series):
                series[rows, 0], series[rows, 1], series[rows, 2] = q, now, seen[q]
            rows += 1
    return rows


@register_warm_up
def _warm_up() -> None:
    one, none = np.ones(1, np.int64), np.zeros(1, np.int64)
    series = np.zeros((8, 3), np.int64)
    account_node(1, 0, 1, 1, none, one, none, none, none, none, none, one, one, 1,
                 np.zeros(3, np.int64), np.zeros(1, np.int64), series)  # fmt: skip
