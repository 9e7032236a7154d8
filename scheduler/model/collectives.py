"""The algorithms: how each kind of collective moves its bytes between its members.

`ALGORITHMS` names them, per kind; each makes `Flows` over members 0..n-1 from a `Demand`. From
message to message, steps strictly increase along arcs. Those that know about servers are in
`scheduler.model.hierarchical`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from scheduler.model.flows import GATE, Flows, divide, join, pairs, require_countable
from topologies.errors import UsageError
from topologies.spelling import meant

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from scheduler.model.taskgraph import Int64s

    _Tree: TypeAlias = Callable[[int], tuple[Int64s, Int64s]]  # parent and step of each place

__all__ = ["ALGORITHMS", "DEFAULTS", "Algorithm", "Demand", "find_algorithm"]


class Demand(NamedTuple):
    """What a collective must move, as `scheduler.model.sizes.data_of` says it.

    `sizes_bytes` has shape (n,), for all_to_all (n, n); `root` is a member number.
    """

    sizes_bytes: Int64s
    root: int = 0
    element_bytes: int = 1


Algorithm: TypeAlias = "Callable[[Demand], Flows]"


def _ring(sizes_bytes: Int64s, steps: int, first_chunk: int, reducing: int) -> Flows:
    """Ring of `steps` steps: at step k member r sends chunk (r + first_chunk - k) mod n.

    Step k at r carries what r received in step k-1, and so waits for it. The first `reducing` steps
    add to what the receiver has.
    """
    n = len(sizes_bytes)
    require_countable(steps * n)
    step, member = np.indices((steps, n))
    chunk = (member + first_chunk - step) % n
    row = step * n + member
    waits = step > 0
    arcs = np.stack([((step - 1) * n + (member - 1) % n)[waits], row[waits]], axis=1)
    return Flows.of(
        member, (member + 1) % n, sizes_bytes[chunk], step, reduces=step < reducing, arcs=arcs
    )


def _ring_reduce_scatter(sizes_bytes: Int64s) -> Flows:
    """n-1 steps to the next member; member r ends with chunk r (Patarasuk, Yuan 2009)."""
    n = len(sizes_bytes)
    return _ring(sizes_bytes, n - 1, -1, n - 1)


def _ring_all_gather(sizes_bytes: Int64s) -> Flows:
    """n-1 steps to the next member; r begins with its own chunk (Patarasuk, Yuan 2009)."""
    return _ring(sizes_bytes, len(sizes_bytes) - 1, 0, 0)


def _ring_all_reduce(sizes_bytes: Int64s) -> Flows:
    """Ring reduce-scatter, then ring all-gather: 2(n-1) steps (Patarasuk, Yuan 2009)."""
    n = len(sizes_bytes)
    return _ring(sizes_bytes, 2 * (n - 1), -1, n - 1)


def _direct(n: int, first_step: int) -> tuple[Int64s, Int64s, Int64s]:
    """Source, destination, step of n(n-1) messages: in step d-1 member r sends to r + d."""
    require_countable(n * (n - 1))
    distance, member = np.indices((n - 1, n)).reshape(2, -1)
    return member, (member + distance + 1) % n, distance + first_step


def _direct_reduce_scatter(sizes_bytes: Int64s) -> Flows:
    """Each member sends chunk j straight to member j, nearest next member first."""
    src, dst, step = _direct(len(sizes_bytes), 0)
    return Flows.of(src, dst, sizes_bytes[dst], step, reduces=True)


def _direct_all_gather(sizes_bytes: Int64s) -> Flows:
    """Each member sends its chunk straight to every other, nearest next member first."""
    src, dst, step = _direct(len(sizes_bytes), 0)
    return Flows.of(src, dst, sizes_bytes[src], step)


def _direct_all_reduce(sizes_bytes: Int64s) -> Flows:
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


def _all_to_all(splits_bytes: Int64s) -> Flows:
    """Member i sends splits[i, j] straight to j; the diagonal stays local. Shape (n, n)."""
    src, dst, step = _direct(len(splits_bytes), 0)
    return Flows.of(src, dst, splits_bytes[src, dst], step)


def _gather(demand: Demand) -> Flows:
    """Each member sends its data straight to the root."""
    sizes_bytes, root, _ = demand
    others = np.delete(np.arange(len(sizes_bytes)), root)
    distance = (root - others) % len(sizes_bytes) - 1
    return Flows.of(others, np.full(len(others), root), sizes_bytes[others], distance)


def _scatter(demand: Demand) -> Flows:
    """The root sends each member its data, nearest next member first."""
    sizes_bytes, root, _ = demand
    others = np.delete(np.arange(len(sizes_bytes)), root)
    distance = (others - root) % len(sizes_bytes) - 1
    return Flows.of(np.full(len(others), root), others, sizes_bytes[others], distance)


def _halving(sizes_bytes: Int64s) -> Flows:
    """Recursive halving: in step i exchange half of what is left with r xor n/2^(i+1).

    Member r ends with chunk r. A message waits for all its sender has received before.
    """
    n = len(sizes_bytes)
    _require_power_of_two(n)
    ends = np.concatenate([[0], np.cumsum(sizes_bytes)])
    steps = n.bit_length() - 1
    step, member = np.indices((steps, n))
    distance = n >> (step + 1)
    partner = member ^ distance
    block = partner // distance * distance  # the chunks the partner keeps after this step
    return Flows.of(
        member,
        partner,
        ends[block + distance] - ends[block],
        step,
        reduces=True,
        arcs=_after_all_received(member, partner),
    )


def _doubling(sizes_bytes: Int64s) -> Flows:
    """Recursive doubling: in step i exchange all that is held with r xor 2^i."""
    n = len(sizes_bytes)
    _require_power_of_two(n)
    ends = np.concatenate([[0], np.cumsum(sizes_bytes)])
    step, member = np.indices((n.bit_length() - 1, n))
    distance = 1 << step
    partner = member ^ distance
    block = member // distance * distance
    size_bytes = ends[block + distance] - ends[block]
    return Flows.of(member, partner, size_bytes, step, arcs=_after_all_received(member, partner))


def _halving_doubling(sizes_bytes: Int64s) -> Flows:
    """Recursive halving, then doubling (Thakur, Rabenseifner, Gropp 2005)."""
    down, up = _halving(sizes_bytes), _doubling(sizes_bytes)
    both = join([down, replace(up, step=up.step + down.step.max(initial=-1) + 1)])
    n = len(sizes_bytes)
    arcs = _after_all_received(both.src.reshape(-1, n), both.dst.reshape(-1, n))
    return replace(both, arcs=arcs)


def _after_all_received(src: Int64s, dst: Int64s) -> Int64s:
    """Arcs from every message to all its receiver sends in later steps; arrays (steps, n)."""
    steps, n = src.shape
    listed = [pairs()]
    for later in range(1, steps):
        sender = np.argsort(src[later])
        for earlier in range(later):
            row = np.arange(n)
            listed.append(np.stack([earlier * n + row, later * n + sender[dst[earlier]]], axis=1))
    return np.concatenate(listed)


def _require_power_of_two(n: int) -> None:
    if n & (n - 1):
        raise UsageError(
            f"the group has {n} members",
            "halving-doubling",
            "it exchanges with members at distances 1, 2, 4, ...",
            "use ring for this group, such as --collective all_reduce@GROUP=ring",
        )


def _parents(n: int) -> Int64s:
    """Parent of each place in NCCL's binary tree (-1: the root, place 0); as in `trees.cc`."""
    place = np.arange(n)
    bit = place & -place
    parent = (place ^ bit) | (bit << 1)
    parent = np.where(parent >= n, place ^ bit, parent)
    parent[0] = -1
    return parent


def _up_and_down(parent: Int64s, size_bytes: int) -> Flows:
    """Reduce to the root and broadcast back; row r sends up from r, row n+r down to r."""
    n = len(parent)
    height, depth = np.zeros((2, n), np.int64)
    for _ in range(2 * n.bit_length()):  # a tree this deep has settled by then
        inner = parent >= 0
        np.maximum.at(height, parent[inner], height[inner] + 1)
        depth[inner] = depth[parent[inner]] + 1
    child = np.flatnonzero(parent >= 0)
    row = np.full(n, -1, np.int64)
    row[child] = np.arange(n - 1)
    above = parent[child]
    climbs = row[above] >= 0
    arcs = [
        np.stack([row[child], row[above]], axis=1)[climbs],  # up, when all children have arrived
        np.stack([row[above] + n - 1, row[child] + n - 1], axis=1)[climbs],  # and down
    ]
    turn = child[~climbs]
    arcs += [pairs([(row[a], row[b] + n - 1) for a in turn for b in turn])]
    return Flows.of(
        np.concatenate([child, above]),
        np.concatenate([above, child]),
        np.full(2 * (n - 1), size_bytes),
        np.concatenate([height[child], height.max(initial=0) + depth[child] - 1]),
        reduces=np.arange(2 * (n - 1)) < n - 1,
        arcs=np.concatenate(arcs),
    )


def _double_tree(demand: Demand) -> Flows:
    """NCCL's double binary tree: half the data up and down each of two trees.

    The second tree is the first mirrored (even n) or shifted by one (odd n), so that a leaf of one
    is an inner place of the other (Sanders, Speck, Traeff 2009; NCCL 2.4).
    """
    n = len(demand.sizes_bytes)
    first = _parents(n)
    other = (n - 1 - np.arange(n)) if n % 2 == 0 else (np.arange(n) - 1) % n
    back = (n - 1 - first) if n % 2 == 0 else (first + 1) % n
    second = np.where(first < 0, -1, back)[other]
    halves = divide(demand.sizes_bytes.sum(keepdims=True), 2, demand.element_bytes)[0]
    trees = [
        _up_and_down(tree, int(half)) for tree, half in zip((first, second), halves, strict=True)
    ]
    return join([replace(tree, part=tree.part + k) for k, tree in enumerate(trees)])


def _broadcast(tree: _Tree) -> Algorithm:
    """Send the whole down a tree of places counted from the root."""

    def flows(demand: Demand) -> Flows:
        n, root, size_bytes = len(demand.sizes_bytes), demand.root, demand.sizes_bytes.sum()
        parent, step = tree(n)
        child = np.arange(1, n)  # row v-1 is the message to place v
        inner = child[parent[child] > 0]
        arcs = np.stack([parent[inner] - 1, inner - 1], axis=1)
        src, dst = (parent[child] + root) % n, (child + root) % n
        return Flows.of(src, dst, np.full(n - 1, size_bytes), step[child], arcs=arcs)

    return flows


def _reduce(tree: _Tree) -> Algorithm:
    """Send the whole up the same tree: the mirror image of `_broadcast`, last step first."""

    def flows(demand: Demand) -> Flows:
        down = _broadcast(tree)(demand)
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


def _send(sizes_bytes: Int64s) -> Flows:
    """One message, from member 0 to member 1."""
    return Flows.of(np.array([0]), np.array([1]), sizes_bytes[:1], np.array([0]))


def _barrier(sizes_bytes: Int64s) -> Flows:
    """No payload: everybody leaves when everybody has entered (one gate)."""
    n = len(sizes_bytes)
    zero = np.zeros(1, np.int64)
    return Flows.of(
        zero,
        zero + GATE,
        zero,
        zero,
        entered=pairs([(member, 0) for member in range(n)]),
        left=pairs([(0, member) for member in range(n)]),
    )


def _of_sizes(make: Callable[[Int64s], Flows]) -> Algorithm:
    """Turn a function of the sizes alone into an algorithm."""
    return lambda demand: make(demand.sizes_bytes)


_TREES: Final[Mapping[str, _Tree]] = {
    "ring": _chain,
    "chain": _chain,
    "tree": _binomial,
    "direct": _star,
}

ALGORITHMS: Final[Mapping[str, Mapping[str, Algorithm]]] = {
    "all_reduce": {
        "ring": _of_sizes(_ring_all_reduce),
        "direct": _of_sizes(_direct_all_reduce),
        "halving-doubling": _of_sizes(_halving_doubling),
        "tree": _double_tree,
    },
    "all_gather": {
        "ring": _of_sizes(_ring_all_gather),
        "direct": _of_sizes(_direct_all_gather),
        "halving-doubling": _of_sizes(_doubling),
    },
    "reduce_scatter": {
        "ring": _of_sizes(_ring_reduce_scatter),
        "direct": _of_sizes(_direct_reduce_scatter),
        "halving-doubling": _of_sizes(_halving),
    },
    "all_to_all": {"direct": _of_sizes(_all_to_all)},
    "broadcast": {name: _broadcast(tree) for name, tree in _TREES.items()},
    "reduce": {name: _reduce(tree) for name, tree in _TREES.items()},
    "gather": {"direct": _gather},
    "scatter": {"direct": _scatter},
    "barrier": {"direct": _of_sizes(_barrier)},
    "send_recv": {"direct": _of_sizes(_send)},
}
DEFAULTS: Final = {kind: next(iter(named)) for kind, named in ALGORITHMS.items()}


def find_algorithm(kind: str, name: str) -> Algorithm:
    """Return the algorithm `name` of `kind`; raises `UsageError` where there is none."""
    named = ALGORITHMS[kind]
    if name not in named:
        why = f"the algorithms of {kind} are {', '.join((*named, 'hierarchical:GPUS'))}"
        fix = meant(name, named, "choose one of them")
        raise UsageError(f"there is no algorithm {name!r}", kind, why, fix)
    return named[name]
