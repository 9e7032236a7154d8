"""An expanded workload as GOAL text, for LogGOPSim and its kin: sends, receives and calculations.

A GOAL rank is a node of the fabric. A message is a `send` there and a `recv` here with its id as
tag, so that each finds its own; a computation is a `calc` of ns on one `cpu` per stream; a marker
is a `calc 0`. GOAL orders a rank by itself only, so where one node waits for another without data
(a barrier, a server's members) a message of one byte says so, and is counted.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from scheduler.model.taskgraph import MESSAGE
from testbed.files.codec import write_chunks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scheduler.model.expansion import Expansion

__all__ = ["export_goal"]


def export_goal(expansion: Expansion, path: Path) -> int:
    """Write one iteration to `path`; return how many one-byte messages stand for bare waiting.

    Raises `InputError` when the file cannot be written.
    """
    schedule = _Schedule(expansion)
    write_chunks(path, schedule.text())
    return schedule.tokens


class _Schedule:
    """Lines per node: what it does, and what waits for what."""

    def __init__(self, expansion: Expansion) -> None:
        graph = expansion.graph
        self._nodes = graph.nodes
        self._does: list[list[str]] = [[] for _ in range(graph.nodes)]
        self._waits: list[list[str]] = [[] for _ in range(graph.nodes)]
        self.tokens = 0
        placed = np.array(expansion.rank_to_node, np.int64)
        home = np.where(graph.rank >= 0, placed[graph.rank], -1)
        self._home: list[int] = home.tolist()
        self._source: list[int] = graph.src.tolist()
        self._target: list[int] = graph.dst.tolist()
        self._is_message: list[bool] = (graph.kind == MESSAGE).tolist()
        self._unused_tag = graph.tasks
        cpus: list[dict[tuple[int, int], int]] = [{} for _ in range(graph.nodes)]
        rows = zip(
            graph.rank.tolist(), graph.stream.tolist(), graph.dur_ns.tolist(),
            graph.size_bytes.tolist(), strict=True,
        )  # fmt: skip
        for task, (rank, stream, dur_ns, size_bytes) in enumerate(rows):
            if self._is_message[task]:
                source, target = self._source[task], self._target[task]
                self._does[source].append(f"l{task}: send {size_bytes}b to {target} tag {task}")
                self._does[target].append(f"l{task}: recv {size_bytes}b from {source} tag {task}")
            else:
                node = self._home[task]
                cpu = cpus[node].setdefault((rank, stream), len(cpus[node]))
                self._does[node].append(f"l{task}: calc {dur_ns} cpu {cpu}")
        inside = graph.arcs.distance == 0
        arcs = zip(
            graph.arcs.before[inside].tolist(), graph.arcs.after[inside].tolist(), strict=True
        )
        self._draw(arcs)

    def _draw(self, arcs: Iterator[tuple[int, int]]) -> None:
        """Write each arc at a node that sees both its ends; else send a token between them.

        A node sees the end of a message it sends or receives.
        """
        apart: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        for before, after in arcs:
            shared = [node for node in self._at(after) if node in self._at(before)]
            if self._is_message[before] and self._is_message[after]:
                shared = [self._source[after]] if self._source[after] in shared else []
            if shared:
                for node in shared:
                    self._waits[node].append(f"l{after} requires l{before}")
            else:
                apart[before, self._at(after)[0]].append((before, after))
        for (before, node), waiting in apart.items():
            source = self._at(before)[-1]
            tag, self._unused_tag = self._unused_tag, self._unused_tag + 1
            self._does[source].append(f"l{tag}: send 1b to {node} tag {tag}")
            self._waits[source].append(f"l{tag} requires l{before}")
            self._does[node].append(f"l{tag}: recv 1b from {source} tag {tag}")
            self._waits[node] += [f"l{after} requires l{tag}" for _, after in waiting]
            self.tokens += 1

    def _at(self, task: int) -> tuple[int, ...]:
        """Return the nodes where a task appears: a message at its source and its target."""
        if self._is_message[task]:
            return self._source[task], self._target[task]
        return (self._home[task],)

    def text(self) -> Iterator[bytes]:
        """Yield the file, a node at a time; labels are defined before they are named."""
        yield f"num_ranks {self._nodes}\n".encode()
        for node, (does, waits) in enumerate(zip(self._does, self._waits, strict=True)):
            lines = [f"\nrank {node} {{", *does, *waits, "}", ""]
            yield "\n".join(lines).encode()
