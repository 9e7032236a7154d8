"""The algorithms: how each kind of collective moves its bytes between its members.

A function here gets `sizes_bytes`, shape (n,), the data of each member or chunk, and returns
`Flows` over members 0..n-1. Message to message, steps strictly increase along arcs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from scheduler.model.flows import GATE, Flows, pairs
from topologies.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from scheduler.model.taskgraph import Int64s

    _Algorithm: TypeAlias = Callable[[Int64s, int], Flows]
    _Tree: TypeAlias = Callable[[int], tuple[Int64s, Int64s]]  # parent and step of each place

__all__ = ["ALGORITHMS", "DEFAULTS", "find_algorithm"]


def _ring(sizes_bytes: Int64s, phases: tuple[int, ...], first_chunk: int, reducing: int) -> Flows:
    """Ring of `phases` x (n-1) steps: at step k member r sends chunk (r + first_chunk - k) mod n.

    Step k at r carries what r received in step k-1, and so waits for it. The first `reducing` steps
    add to what the receiver has.
    """
    n = len(sizes_bytes)
    step, member = np.indices((len(phases) * (n - 1), n))
    chunk = (member + first_chunk - step) % n
    row = step * n + member
    waits = step > 0
    arcs = np.stack([((step - 1) * n + (member - 1) % n)[waits], row[waits]], axis=1)
    return Flows.of(
        member, (member + 1) % n, sizes_bytes[chunk], step, reduces=step < reducing, arcs=arcs
    )


def ring_reduce_scatter(sizes_bytes: Int64s) -> Flows:
    """n-1 steps to the next member; member r ends with chunk r (Patarasuk, Yuan 2009)."""
    return _ring(sizes_bytes, (0,), -1, len(sizes_bytes) - 1)


def ring_all_gather(sizes_bytes: Int64s) -> Flows:
    """n-1 steps to the next member; r begins with its own chunk (Patarasuk, Yuan 2009)."""
    return _ring(sizes_bytes, (0,), 0, 0)


def ring_all_reduce(sizes_bytes: Int64s) -> Flows:
    """Ring reduce-scatter, then ring all-gather: 2(n-1) steps (Patarasuk, Yuan 2009)."""
    return _ring(sizes_bytes, (0, 1), -1, len(sizes_bytes) - 1)


def _direct(n: int, first_step: int) -> tuple[Int64s, Int64s, Int64s]:
    """Source, destination, step of n(n-1) messages: in step d-1 member r sends to r + d."""
    distance, member = np.indices((n - 1, n)).reshape(2, -1)
    return member, (member + distance + 1) % n, distance + first_step


def direct_reduce_scatter(sizes_bytes: Int64s) -> Flows:
    """Each member sends chunk j straight to member j, nearest next member first."""
    src, dst, step = _direct(len(sizes_bytes), 0)
    return Flows.of(src, dst, sizes_bytes[dst], step, reduces=True)


def direct_all_gather(sizes_bytes: Int64s) -> Flows:
    """Each member sends its chunk straight to every other, nearest next member first."""
    src, dst, step = _direct(len(sizes_bytes), 0)
    return Flows.of(src, dst, sizes_bytes[src], step)


def direct_all_reduce(sizes_bytes: Int64s) -> Flows:
    """Direct reduce-scatter, then all-gather; each chunk waits for its own n-1 inputs only."""
    n = len(sizes_bytes)
    src, dst, step = _direct(n, 0)
    messages = n * (n - 1)
    gate = 2 * messages + np.arange(n)
    rows = np.arange(messages)
    arcs = np.concatenate(
        [
            np.stack([rows, gate[dst]], axis=1),
            np.stack([gate[src], messages + rows], axis=1),
        ]
    )
    return Flows.of(
        np.concatenate([src, src, np.arange(n)]),
        np.concatenate([dst, dst, np.full(n, GATE)]),
        np.concatenate([sizes_bytes[dst], sizes_bytes[src], np.zeros(n, np.int64)]),
        np.concatenate([step, step + n - 1, np.full(n, n - 1)]),
        reduces=np.arange(2 * messages + n) < messages,
        arcs=arcs,
    )


def all_to_all(splits_bytes: Int64s) -> Flows:
    """Member i sends splits[i, j] straight to j; the diagonal stays local. Shape (n, n)."""
    src, dst, step = _direct(len(splits_bytes), 0)
    return Flows.of(src, dst, splits_bytes[src, dst], step)


def gather(sizes_bytes: Int64s, root: int) -> Flows:
    """Each member sends its data straight to the root."""
    others = np.delete(np.arange(len(sizes_bytes)), root)
    distance = (root - others) % len(sizes_bytes) - 1
    return Flows.of(others, np.full(len(others), root), sizes_bytes[others], distance)


def scatter(sizes_bytes: Int64s, root: int) -> Flows:
    """The root sends each member its data, nearest next member first."""
    others = np.delete(np.arange(len(sizes_bytes)), root)
    distance = (others - root) % len(sizes_bytes) - 1
    return Flows.of(np.full(len(others), root), others, sizes_bytes[others], distance)


def _broadcast(tree: _Tree) -> _Algorithm:
    """Send the whole down a tree of places counted from the root."""

    def flows(sizes_bytes: Int64s, root: int) -> Flows:
        n = len(sizes_bytes)
        parent, step = tree(n)
        child = np.arange(1, n)  # row v-1 is the message to place v
        inner = child[parent[child] > 0]
        arcs = np.stack([parent[inner] - 1, inner - 1], axis=1)
        src, dst = (parent[child] + root) % n, (child + root) % n
        return Flows.of(src, dst, np.full(n - 1, sizes_bytes.sum()), step[child], arcs=arcs)

    return flows


def _reduce(tree: _Tree) -> _Algorithm:
    """Send the whole up the same tree: the mirror image of `_broadcast`, last step first."""

    def flows(sizes_bytes: Int64s, root: int) -> Flows:
        down = _broadcast(tree)(sizes_bytes, root)
        step = down.step.max(initial=0) - down.step
        arcs = down.arcs[:, ::-1]
        return Flows.of(down.dst, down.src, down.size_bytes, step, reduces=True, arcs=arcs)

    return flows


def _chain(n: int) -> tuple[Int64s, Int64s]:
    place = np.arange(n)
    return np.maximum(place - 1, 0), place - 1


def _binomial(n: int) -> tuple[Int64s, Int64s]:
    """Place v hangs under v without its lowest set bit; farthest children are served first."""
    place = np.arange(n)
    low = place & -place
    rounds = max(n - 1, 1).bit_length()
    return place & (place - 1), rounds - 1 - np.log2(np.maximum(low, 1)).astype(np.int64)


def _star(n: int) -> tuple[Int64s, Int64s]:
    return np.zeros(n, np.int64), np.arange(n) - 1


def send(size_bytes: int) -> Flows:
    """One message, from member 0 to member 1."""
    return Flows.of(np.array([0]), np.array([1]), np.array([size_bytes]), np.array([0]))


def barrier(n: int) -> Flows:
    """No payload: everybody leaves when everybody has entered (one gate)."""
    zero = np.zeros(1, np.int64)
    return Flows.of(
        zero,
        zero + GATE,
        zero,
        zero,
        entered=pairs([(member, 0) for member in range(n)]),
        left=pairs([(0, member) for member in range(n)]),
    )


_TREES: Final = {"chain": _chain, "ring": _chain, "tree": _binomial, "direct": _star}

ALGORITHMS: Final[Mapping[str, Mapping[str, _Algorithm]]] = {
    "all_reduce": {
        "ring": lambda sizes, _: ring_all_reduce(sizes),
        "direct": lambda sizes, _: direct_all_reduce(sizes),
    },
    "all_gather": {
        "ring": lambda sizes, _: ring_all_gather(sizes),
        "direct": lambda sizes, _: direct_all_gather(sizes),
    },
    "reduce_scatter": {
        "ring": lambda sizes, _: ring_reduce_scatter(sizes),
        "direct": lambda sizes, _: direct_reduce_scatter(sizes),
    },
    "all_to_all": {"direct": lambda sizes, _: all_to_all(sizes)},
    "broadcast": {name: _broadcast(tree) for name, tree in _TREES.items()},
    "reduce": {name: _reduce(tree) for name, tree in _TREES.items()},
    "gather": {"direct": gather},
    "scatter": {"direct": scatter},
    "barrier": {"direct": lambda sizes, _: barrier(len(sizes))},
    "send_recv": {"direct": lambda sizes, _: send(int(sizes[0]))},
}
DEFAULTS: Final = {kind: next(iter(named)) for kind, named in ALGORITHMS.items()}


def find_algorithm(kind: str, name: str) -> _Algorithm:
    """Return the algorithm `name` of `kind`: a function of the data and the root's member number.

    Raises `UsageError` where there is none.
    """
    named = ALGORITHMS[kind]
    if name not in named:
        why = f"the algorithms of {kind} are {', '.join(named)}"
        raise UsageError(f"there is no algorithm {name!r}", kind, why, "choose one of them")
    return named[name]
