"""From a workload to the messages one of its iterations sends over a known fabric.

Every operation becomes tasks, numbered in program order: a computation one COMPUTE task (with a
MARKER in front if something starts after it does); a collective a MARKER per member that enters,
its messages by step, and a MARKER per member that leaves. Moments inside a collective (a chunk is
complete, a transfer stays on its node) are MARKERs of stream -1; time spent there (reductions,
transfers inside a server) is a COMPUTE task of stream `INTERNAL_STREAM`, which runs beside others.

Rules: a rank enters when its dependencies and its stream's previous operation are done; a message
starts after the messages it carries on have arrived and both its ends have entered; a rank leaves
when all its bytes are sent and received. Arcs that follow from others are left out.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from scheduler.model.collectives import ALGORITHMS, DEFAULTS, Demand, find_algorithm
from scheduler.model.flows import require_countable
from scheduler.model.hierarchical import Servers, hierarchical
from scheduler.model.layout import Draft
from scheduler.model.options import HIERARCHICAL, PROTOCOLS, ExpansionOptions
from scheduler.model.placement import place
from scheduler.model.sizes import data_of, element_bytes
from scheduler.model.workload import Compute, Loss
from topologies.errors import InputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scheduler.model.flows import Flows
    from scheduler.model.taskgraph import Int64s, TaskGraph
    from scheduler.model.workload import Collective, Operation, Workload
    from topologies.fabric import Fabric

__all__ = [
    "Expansion",
    "ExpansionOptions",
    "expand",
    "messages_sha256",
    "traffic_matrix",
]

Choice = TypeVar("Choice")
_DEFAULT: Final = ExpansionOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """One iteration, expanded. `rank_to_node[r]` is the node of rank r.

    `sha256` identifies the messages (see `messages_sha256`); `losses` is what was left out or
    assumed on the way.
    """

    graph: TaskGraph
    rank_to_node: tuple[int, ...]
    options: ExpansionOptions
    sha256: str
    losses: tuple[Loss, ...] = ()


def messages_sha256(graph: TaskGraph) -> str:
    """Hash the messages: ids, op, src, dst, size_bytes and step, each as little-endian int64.

    The hashed bytes are the number of nodes and of messages, then the six columns one after the
    other, messages in ascending id.
    """
    rows = graph.messages
    digest = hashlib.sha256(np.array([graph.nodes, len(rows)], "<i8").tobytes())
    digest.update(rows.astype("<i8").tobytes())
    for column in (graph.op, graph.src, graph.dst, graph.size_bytes, graph.step):
        digest.update(column[rows].astype("<i8").tobytes())
    return digest.hexdigest()


def traffic_matrix(graph: TaskGraph) -> Int64s:
    """Return the bytes each node sends each other in one iteration, shape (nodes, nodes)."""
    rows = graph.messages
    matrix = np.zeros((graph.nodes, graph.nodes), np.int64)
    np.add.at(matrix, (graph.src[rows], graph.dst[rows]), graph.size_bytes[rows])
    return matrix


def expand(
    workload: Workload,
    fabric: Fabric,
    options: ExpansionOptions = _DEFAULT,
    rank_to_node: Sequence[int] | None = None,
) -> Expansion:
    """Expand one iteration of `workload` into the messages its collectives send over `fabric`.

    `rank_to_node` defaults to rank r on node r, or on server r // gpus_per_node of a fabric whose
    nodes are servers; between ranks of one node data take its scale-up link, not the planes. Time
    and memory are linear in the messages.

    Raises `UsageError` for a fabric with fewer nodes than ranks, or an algorithm that does not fit
    a group; `InputError` for a workload whose operations contradict each other, wait for
    themselves, or do not know their size.
    """
    placement = place(workload, fabric, rank_to_node)
    operations, losses = _chosen(workload, options)
    scale_up_bps = options.scale_up_bps or fabric.scale_up_bps
    shapes = _Shapes(workload, options, fabric, placement)
    draft = Draft(
        workload,
        placement,
        fabric.nodes,
        eager_send=options.eager_send,
        scale_up_bps=scale_up_bps,
    )
    for op in operations:
        if isinstance(op, Compute):
            draft.add_compute(op, round(op.dur_ns * workload.compute_scale))
        else:
            members = _members(op, workload)
            draft.add_collective(op, members, shapes.flows(op, members))
    graph = draft.graph()
    assumed = Counter(
        {"size assumed": shapes.assumed, "dependency of another iteration": draft.cut}
    )
    losses += [Loss(what=what, count=count) for what, count in assumed.items() if count]
    return Expansion(
        graph=graph,
        rank_to_node=placement,
        options=options,
        sha256=messages_sha256(graph),
        losses=tuple(losses),
    )


def _chosen(workload: Workload, options: ExpansionOptions) -> tuple[list[Operation], list[Loss]]:
    """Return the operations of the chosen iteration, and what is left out for good."""
    if not (math.isfinite(workload.compute_scale) and workload.compute_scale >= 0):
        raise InputError(
            f"compute_scale is {workload.compute_scale}",
            workload.source.path,
            "durations are multiplied by it",
            "make it a number that is not negative",
        )
    if not workload.iterations:
        raise InputError(
            "it has no iteration",
            workload.source.path,
            "one iteration is what is replayed",
            "list its iterations in the header",
        )
    iteration = workload.iterations[-1] if options.iteration is None else options.iteration
    if iteration not in workload.iterations:
        raise UsageError(
            f"there is no iteration {iteration}",
            workload.source.path,
            f"its iterations are {', '.join(map(str, workload.iterations))}",
            "choose one of them",
        )
    operations = [op for op in workload.operations if op.iter == iteration]
    if not operations:
        raise InputError(
            f"iteration {iteration} has no operation",
            workload.source.path,
            "an iteration is replayed by its operations",
            "choose another iteration or correct the iter of the operations",
        )
    outside = sum(op.iter is None for op in workload.operations)
    losses = [Loss(what="operation outside every iteration", count=outside)] if outside else []
    return operations, losses


def _members(op: Collective, workload: Workload) -> tuple[int, ...]:
    """Return the ranks of a collective in the order its algorithm counts them."""
    where = f"operation {op.id} ({op.kind})"
    if op.kind not in DEFAULTS:
        why = f"the kinds of collective are {', '.join(DEFAULTS)}"
        raise InputError(f"its kind is {op.kind!r}", where, why, "correct it in the workload")
    if op.group not in workload.groups:
        why = f"the workload has {len(workload.groups)} groups and it is none of them"
        raise InputError(f"its group is {op.group!r}", where, why, "add the group to the header")
    group = workload.groups[op.group].ranks
    if op.kind == "send_recv":
        ends = (op.root, op.peer)
        if None in ends or op.root == op.peer:
            why = "it sends from one rank, root, to another, peer"
            raise InputError(f"root is {op.root}, peer {op.peer}", where, why, "correct them")
        members = tuple(rank for rank in ends if rank is not None)
    else:
        members = group
    for rank in members:
        if rank not in op.ranks:
            why = f"rank {rank} is a member and takes no part"
            raise InputError("a rank is missing", where, why, f"add rank {rank} to its ranks")
        if not 0 <= rank < workload.world:
            why = f"the ranks are 0 to {workload.world - 1}"
            raise InputError(f"rank {rank} takes part", where, why, "correct world or the group")
    if len(members) != len(set(members)) or len(op.ranks) > len(members):
        why = f"its group has the members {', '.join(map(str, members))}"
        raise InputError(f"{len(op.ranks)} ranks take part", where, why, "correct the group")
    rooted = op.kind in ("broadcast", "reduce", "gather", "scatter") or op.root is not None
    if rooted and op.root not in members:
        why = f"its members are {', '.join(map(str, members))}"
        raise InputError(f"its root is {op.root}", where, why, "make one of them the root")
    return members


class _Shapes:
    """The flows of collectives, made once for all that have the same shape."""

    def __init__(
        self,
        workload: Workload,
        options: ExpansionOptions,
        fabric: Fabric,
        placement: tuple[int, ...],
    ) -> None:
        self._options = options
        self._hosts: Mapping[int, object] | None = workload.placement
        if fabric.gpus_per_node > 1:
            self._hosts = dict(enumerate(placement))
        self._scale_up_bps = options.scale_up_bps or fabric.scale_up_bps
        planes = len(fabric.planes)
        self._pieces = planes if isinstance(options.split, str) else options.split
        self._known: dict[tuple[object, ...], tuple[Flows, bool]] = {}
        self.assumed = 0

    def flows(self, op: Collective, members: tuple[int, ...]) -> Flows:
        algorithm = self._algorithm(op)
        servers = self._servers(algorithm, members)
        root = 0 if op.root is None else members.index(op.root)
        sizes = tuple((op.ranks[rank].in_bytes, op.ranks[rank].out_bytes) for rank in members)
        splits = op.splits and tuple(op.splits.get(rank) for rank in members)
        assumed_bytes = self._choice(self._options.sizes, op)
        key = (op.kind, algorithm, servers, op.dtype, root, assumed_bytes, sizes, splits)
        if key not in self._known:
            data, assumed = data_of(op, members, assumed_bytes)
            demand = Demand(data, root, element_bytes(op.dtype))
            if servers:
                inside = Servers(np.array(servers, np.int64), self._scale_up_bps)
                flows = hierarchical(op.kind, demand, inside)
            else:
                flows = find_algorithm(op.kind, algorithm)(demand)
            self._known[key] = self._refine(flows, demand.element_bytes), assumed
        flows, assumed = self._known[key]
        self.assumed += assumed
        return flows

    @staticmethod
    def _choice(choices: Mapping[str, Choice], op: Collective) -> Choice | None:
        return choices.get(f"{op.kind}@{op.group}", choices.get(op.kind))

    def _algorithm(self, op: Collective) -> str:
        """Return what the user chose, else what was recorded if we know it, else the default."""
        recorded = (op.algo or "").lower()
        known = recorded if recorded in ALGORITHMS[op.kind] else DEFAULTS[op.kind]
        return self._choice(self._options.collectives, op) or known

    def _servers(self, algorithm: str, members: tuple[int, ...]) -> tuple[int, ...]:
        """Return each member's server, numbered by first appearance; empty if it has no say."""
        name, colon, size = algorithm.partition(":")
        if name != HIERARCHICAL:
            return ()
        if not colon and self._hosts is None:
            raise UsageError(
                "it is not known which ranks share a server",
                algorithm,
                "neither the workload nor the topology says",
                "say how many GPUs a server has, such as hierarchical:8",
            )
        hosts = self._hosts or {}
        homes = [rank // int(size) if colon else hosts.get(rank, rank) for rank in members]
        number: dict[object, int] = {}
        return tuple(number.setdefault(home, len(number)) for home in homes)

    def _refine(self, flows: Flows, element: int) -> Flows:
        options = self._options
        lanes = options.channels
        if options.chunk_bytes:
            largest = int(flows.size_bytes.max(initial=0))
            lanes *= max(1, -(-largest // (lanes * options.chunk_bytes)))
        require_countable(flows.rows * lanes * self._pieces)
        flows = flows.lanes(lanes, element).without_empty().pieces(self._pieces, element)
        if options.reduce_bw_bps:
            flows = flows.reduced(options.reduce_bw_bps)
        return flows.on_the_wire(*PROTOCOLS[options.protocol]).ordered()
