"""From a schedule to the ordered program that executes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scheduler.model.program import OrderedProgram

if TYPE_CHECKING:
    from scheduler.model.taskgraph import Int64s
    from scheduler.policies._kernels_flux import Instance, Schedule
    from topologies.fabric import Fabric

__all__ = ["first_circuits", "program_of"]


def program_of(
    fabric: Fabric, instance: Instance, schedule: Schedule, messages: Int64s
) -> OrderedProgram:
    """Write each circuit's run of messages as an entry (two on a duplex plane used both ways).

    Entries are in the order their runs began, so that every port's projection is the order in which
    the schedule used it. `initial_circuits` are the entries that come first at both their ports.
    """
    position = np.empty(len(schedule.order), np.int64)
    position[schedule.order] = np.arange(len(schedule.order))
    order = messages[np.argsort(position[messages])]
    plane, source, episode = schedule.plane, schedule.out_port, schedule.episode
    order = order[np.lexsort((source[order], episode[order], plane[order]))]  # stable: time order
    keys = np.stack([plane[order], episode[order], source[order]])
    changes = np.ones(len(order), bool)
    changes[1:] = (np.diff(keys, axis=1) != 0).any(axis=0)
    first = np.flatnonzero(changes)
    heads = order[first]
    base = instance.port_base[plane[heads]]
    entries = np.stack([plane[heads], source[heads] - base, schedule.in_port[heads] - base])
    matching = np.where(
        np.array([p.all_stop and p.kind == "ocs" for p in fabric.planes])[entries[0]],
        schedule.configuration[heads],
        np.arange(len(heads)),
    )
    by_matching = np.lexsort((np.arange(len(heads)), matching, entries[0]))
    bounds = np.append(first, len(order))
    pieces = [order[bounds[e] : bounds[e + 1]] for e in by_matching]
    lengths = np.array([len(piece) for piece in pieces], np.int64)
    return OrderedProgram(
        planes=len(fabric.planes),
        plane=entries[0][by_matching],
        src_port=entries[1][by_matching],
        dst_port=entries[2][by_matching],
        matching=matching[by_matching],
        message_ptr=np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]),
        message=np.concatenate([*pieces, np.zeros(0, np.int64)]).astype(np.int64),
        initial_circuits=first_circuits(fabric, entries[:, by_matching], matching[by_matching]),
    )


def first_circuits(
    fabric: Fabric, entries: Int64s, matching: Int64s
) -> tuple[tuple[int, int, int], ...]:
    """Return the circuits that come first at both their ports; all of them on an all-stop plane.

    `entries` has the rows plane, src_port, dst_port; `matching` counts from 0 on all-stop planes.
    """
    used: set[tuple[int, int, str]] = set()
    initial = []
    for (k, a, b), number in zip(entries.T.tolist(), matching.tolist(), strict=True):
        plane = fabric.planes[k]
        if plane.kind == "eps" or (plane.all_stop and number > 0):
            continue
        ends = {(k, a, "out"), (k, b, "in")}
        if plane.duplex:
            ends |= {(k, b, "out"), (k, a, "in")}
        if not ends & used:
            initial.append((k, a, b))
        used |= ends
    return tuple(initial)
