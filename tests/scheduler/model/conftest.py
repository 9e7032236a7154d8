"""Small workloads of one collective, and what their expansions amount to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from scheduler.model.expansion import ExpansionOptions, expand
from scheduler.model.workload import Collective, Compute, Group, Participation, Source, Workload
from topologies import rails

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scheduler.model.expansion import Expansion
    from scheduler.model.taskgraph import TaskGraph


class Bench:
    """Builds workloads and expands them; `n` ranks form the group `g`."""

    @staticmethod
    def workload(n: int, *operations: Collective | Compute, **header: Any) -> Workload:
        groups = header.pop("groups", None) or {"g": Group(ranks=tuple(range(n)))}
        source = Source(path="made.workload.jsonl", sha256=None, format="test")
        return Workload(world=n, groups=groups, operations=operations, source=source, **header)

    @staticmethod
    def collective(
        kind: str,
        sizes: Sequence[tuple[int | None, int | None]],
        number: int = 0,
        ranks: Sequence[int] | None = None,
        **fields: Any,
    ) -> Collective:
        """Make a collective; `sizes` are (in_bytes, out_bytes) of its members."""
        stream = fields.pop("stream", 0)
        deps = fields.pop("deps", {})
        members = range(len(sizes)) if ranks is None else ranks
        parts = {
            rank: Participation(
                in_bytes=size[0], out_bytes=size[1], stream=stream, deps=deps.get(rank, ())
            )
            for rank, size in zip(members, sizes, strict=True)
        }
        fields.setdefault("group", "g")
        fields.setdefault("iter", 0)
        return Collective(id=number, kind=kind, ranks=parts, **fields)

    def expand_one(
        self,
        kind: str,
        data: Sequence[tuple[int | None, int | None]],
        algorithm: str | None = None,
        *,
        dtype: str | None = None,
        root: int | None = None,
        splits: Any = None,
        planes: int = 2,
        **options: Any,
    ) -> Expansion:
        op = self.collective(kind, data, dtype=dtype, root=root, splits=splits)
        chosen = {} if algorithm is None else {kind: algorithm}
        return expand(
            self.workload(len(data), op),
            rails(nodes=max(2, len(data)), planes=planes),
            ExpansionOptions(collectives=chosen, **options),
        )

    @staticmethod
    def enters(graph: TaskGraph) -> list[int]:
        """Tasks at which the ranks of the only collective enter, by rank."""
        on_stream = (graph.position == 0) & (graph.stream >= 0)
        return [int(np.flatnonzero(on_stream & (graph.rank == r))[0]) for r in range(graph.nodes)]

    @staticmethod
    def leaves(graph: TaskGraph) -> list[int]:
        on_stream = (graph.position == 1) & (graph.stream >= 0)
        return [int(np.flatnonzero(on_stream & (graph.rank == r))[0]) for r in range(graph.nodes)]

    @staticmethod
    def reach(graph: TaskGraph, start: int) -> set[int]:
        """Everything that follows `start` within the iteration."""
        pointers, listed, _ = graph.successors(1)
        found, front = {start}, [start]
        while front:
            task = front.pop()
            for after in listed[pointers[task] : pointers[task + 1]].tolist():
                if after not in found:
                    found.add(after)
                    front.append(after)
        return found

    @staticmethod
    def longest_ns(graph: TaskGraph, ns_per_byte: int = 1) -> int:
        """When all is done if nothing shares anything and a byte takes `ns_per_byte`."""
        pointers, listed, _ = graph.successors(1)
        end = np.zeros(graph.tasks, np.int64)
        for task in graph.topological_order():
            end[task] += graph.dur_ns[task] + graph.size_bytes[task] * ns_per_byte
            for after in listed[pointers[task] : pointers[task + 1]]:
                end[after] = max(end[after], end[task])
        return int(end.max())


@pytest.fixture(scope="session")
def bench() -> Bench:
    return Bench()
