"""The choices an expansion leaves open, and how they are checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from scheduler.model.collectives import ALGORITHMS, find_algorithm
from topologies.errors import UsageError
from topologies.spelling import meant

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["HIERARCHICAL", "PROTOCOLS", "ExpansionOptions"]

HIERARCHICAL: Final = "hierarchical"
PROTOCOLS: Final = {"Simple": (1, 1), "LL": (2, 1), "LL128": (128, 120)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpansionOptions:
    """How collectives become messages.

    `collectives` and `sizes` are keyed KIND or, for one group, KIND@GROUP: the algorithm, and the
    bytes every rank puts in where the workload does not say. Algorithms are those of
    `scheduler.model.collectives`, and `hierarchical:8` for servers of 8 ranks (`hierarchical` alone
    takes the hosts the workload was recorded on). The data of a collective are split
    over `channels`, each proceeding on its own (all the same way round a ring, as NCCL's do), and
    further so that no message is larger than `chunk_bytes`. `split` sends every message in that
    many separate ones ("planes": one per plane), which arrive together or not at all. `protocol`
    is NCCL's: `Simple` sends the data, `LL` twice as much, `LL128` 128 bytes for 120. With
    `eager_send` a message does not wait for its receiver to enter. `reduce_bw_bps` is how fast
    received data are added (None: in no time), `scale_up_bps` the rate inside a server for
    hierarchical algorithms (None: in no time). `iteration`: which one (None: the last).

    Raises `UsageError` for a choice that does not exist.
    """

    collectives: Mapping[str, str] = field(default_factory=dict)
    channels: int = 1
    chunk_bytes: int | None = None
    split: int | str = 1
    protocol: str = "Simple"
    eager_send: bool = False
    reduce_bw_bps: int | None = None
    scale_up_bps: int | None = None
    iteration: int | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        where = "expansion"
        for name in ("channels", "chunk_bytes", "split", "reduce_bw_bps", "scale_up_bps"):
            value = getattr(self, name)
            if isinstance(value, int) and value < 1:
                fix = f"correct {name}"
                raise UsageError(f"{name}={value}", where, "the least possible is 1", fix)
        if not isinstance(self.split, int) and self.split != "planes":
            why = "a message is split into a number of pieces, or into one per plane"
            raise UsageError(f"split={self.split!r}", where, why, "write planes or a number")
        if self.protocol not in PROTOCOLS:
            what = f"there is no protocol {self.protocol!r}"
            why = f"the protocols are {', '.join(PROTOCOLS)}"
            raise UsageError(what, where, why, "choose one of them")
        for key, algorithm in self.collectives.items():
            _check_algorithm(key, algorithm)
        for key, size_bytes in self.sizes.items():
            _kind(key)
            if size_bytes < 0:
                what = f"its size is {size_bytes} bytes"
                raise UsageError(what, key, "a size is not negative", "correct it")


def _kind(key: str) -> str:
    """Return the kind of collective that KIND or KIND@GROUP names."""
    kind = key.partition("@")[0]
    if kind not in ALGORITHMS:
        why = f"the kinds of collective are {', '.join(ALGORITHMS)}"
        fix = meant(kind, ALGORITHMS, "choose one of them")
        raise UsageError(f"there is no collective {kind!r}", key, why, fix)
    return kind


def _check_algorithm(key: str, algorithm: str) -> None:
    kind = _kind(key)
    name, colon, size = algorithm.partition(":")
    if name != HIERARCHICAL:
        find_algorithm(kind, algorithm)
    elif colon and not (size.isascii() and size.isdecimal() and 0 < int(size[:9]) == int(size)):
        why = "a server has a number of GPUs"
        raise UsageError(f"{algorithm!r} has no size", key, why, "write hierarchical:8")
