"""Writing down what ranks do, in program order, with what each waits for."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from scheduler.model.workload import Collective, Compute, Group, Participation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scheduler.model.workload import Operation

__all__ = ["STREAMS", "Recorder"]

STREAMS: Final = {
    name: number
    for number, name in enumerate(
        ("compute", "tp", "cp", "ep", "dp", "send", "receive", "send_back", "receive_back")
    )
}


class Recorder:
    """Collects operations. Work of a rank is merged until something else happens on it.

    Each rank has its last computation and a set of operations its next one waits for; a collective
    starts after both.
    """

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.groups: dict[str, Group] = {}
        self._names: dict[tuple[str, tuple[int, ...]], str] = {}
        self._sequence: dict[str, int] = defaultdict(int)
        self._pending_ns: dict[int, float] = defaultdict(float)
        self._waits: dict[int, tuple[int, ...]] = defaultdict(tuple)
        self._computed: dict[int, tuple[int, ...]] = defaultdict(tuple)

    def group(self, desc: str, ranks: Sequence[int]) -> str:
        """Return the id of the group of `ranks` for the purpose `desc`, made when first asked."""
        key = (desc, tuple(ranks))
        if key not in self._names:
            self._names[key] = name = f"{desc}{self._next(desc)}"
            self.groups[name] = Group(ranks=key[1], desc=desc)
        return self._names[key]

    def work(self, rank: int, dur_ns: float) -> None:
        """Let `rank` compute."""
        self._pending_ns[rank] += dur_ns

    def wait(self, rank: int, *operations: int) -> None:
        """Let all later work of `rank` wait for `operations`."""
        if set(operations) - set(self._waits[rank]):
            self._flush(rank)
            self._waits[rank] = tuple(dict.fromkeys(self._waits[rank] + operations))

    def _flush(self, rank: int) -> None:
        if (pending := round(self._pending_ns.pop(rank, 0.0))) > 0:
            self._compute(rank, pending)

    def _compute(self, rank: int, dur_ns: int) -> None:
        number = len(self.operations)
        self.operations.append(
            Compute(id=number, rank=rank, stream=0, dur_ns=dur_ns, iter=0, deps=self._waits[rank])
        )
        self._waits[rank] = ()
        self._computed[rank] = (number,)

    def _ready(self, rank: int) -> tuple[int, ...]:
        self._flush(rank)
        return self._waits[rank] + self._computed[rank]

    def join(self, rank: int) -> None:
        """End a rank's step: a computation of no time waits for all that is awaited."""
        self._flush(rank)
        if self._waits[rank]:
            self._compute(rank, 0)

    def collect(
        self,
        kind: str,
        group: str,
        in_bytes: Mapping[int, int] | int,
        out_bytes: Mapping[int, int] | int,
        *,
        stream: str,
        dtype: str = "bfloat16",
        splits: Mapping[int, tuple[int, ...]] | None = None,
    ) -> int:
        """Start a collective when its members have computed; return its id. Nobody waits for it."""
        ranks = self.groups[group].ranks
        parts = {
            rank: Participation(
                in_bytes=in_bytes if isinstance(in_bytes, int) else in_bytes[rank],
                out_bytes=out_bytes if isinstance(out_bytes, int) else out_bytes[rank],
                stream=STREAMS[stream],
                deps=self._ready(rank),
            )
            for rank in ranks
        }
        number = len(self.operations)
        self.operations.append(
            Collective(
                id=number, kind=kind, group=group, ranks=parts, seq=self._next(group), iter=0,
                dtype=dtype, splits=splits,
            )
        )  # fmt: skip
        return number

    def send(self, group: str, source: int, target: int, size_bytes: int, *, back: bool) -> int:
        """Send when `source` has computed; `target` is ready to receive. Return the id."""
        suffix = "_back" if back else ""
        parts = {
            source: Participation(
                in_bytes=size_bytes,
                out_bytes=None,
                stream=STREAMS[f"send{suffix}"],
                deps=self._ready(source),
            ),
            target: Participation(
                in_bytes=None, out_bytes=size_bytes, stream=STREAMS[f"receive{suffix}"]
            ),
        }
        number = len(self.operations)
        self.operations.append(
            Collective(
                id=number, kind="send_recv", group=group, ranks=parts, seq=self._next(group),
                iter=0, dtype="bfloat16", root=source, peer=target,
            )
        )  # fmt: skip
        return number

    def _next(self, name: str) -> int:
        self._sequence[name] += 1
        return self._sequence[name] - 1
