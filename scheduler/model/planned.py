"""Hold what was achieved against what was planned: the same circuits, found again by order."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from scheduler.model.timeline import NONE, Timeline

if TYPE_CHECKING:
    from scheduler.model.taskgraph import Int64s
    from scheduler.model.timeline import Circuits

__all__ = ["with_planned"]


def with_planned(achieved: Timeline, predicted: Timeline) -> Timeline:
    """Return `achieved` with each circuit's `planned_up_ns` from `predicted`.

    The k-th circuit between two ports of a plane is the k-th of the prediction: programs order the
    circuits of a port, whatever the clock does. NONE where the prediction has no such circuit.
    """
    ours, theirs = achieved.circuits, predicted.circuits
    known = dict(zip(_keys(theirs), theirs.up_ns.tolist(), strict=True))
    planned = np.fromiter((known.get(key, NONE) for key in _keys(ours)), np.int64, len(ours.plane))
    return dataclasses.replace(achieved, circuits=dataclasses.replace(ours, planned_up_ns=planned))


def _keys(circuits: Circuits) -> list[tuple[int, int, int, int]]:
    """Number the circuits of each (plane, src_port, dst_port) in order of up_ns."""
    ports = np.column_stack([circuits.plane, circuits.src_port, circuits.dst_port])
    order = np.lexsort((circuits.up_ns, *ports.T[::-1]))
    ranks: Int64s = np.zeros(len(order), np.int64)
    if len(order):
        fresh = np.ones(len(order), bool)
        fresh[1:] = (ports[order[1:]] != ports[order[:-1]]).any(axis=1)
        begin = np.maximum.accumulate(np.where(fresh, np.arange(len(order)), 0))
        ranks[order] = np.arange(len(order)) - begin
    return [
        (*pair, rank) for pair, rank in zip(map(tuple, ports.tolist()), ranks.tolist(), strict=True)
    ]
