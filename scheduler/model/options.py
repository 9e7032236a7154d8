"""The choices an expansion leaves open, and how they are checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from topologies.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PROTOCOLS", "ExpansionOptions"]

PROTOCOLS: Final = {"Simple": (1, 1), "LL": (2, 1), "LL128": (128, 120)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpansionOptions:
    """How collectives become messages.

    `collectives` and `sizes` are keyed KIND or, for one group, KIND@GROUP: the algorithm, and the
    bytes every rank puts in where the workload does not say. The data of a collective are split
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
        from scheduler.model.collectives import ALGORITHMS, find_algorithm

        for name in ("channels", "chunk_bytes", "split", "reduce_bw_bps", "scale_up_bps"):
            value = getattr(self, name)
            if isinstance(value, int) and value < 1:
                raise UsageError(
                    f"{name}={value}", "expansion", "the least possible is 1", f"correct {name}"
                )
        if not isinstance(self.split, int) and self.split != "planes":
            why = "a message is split into a number of pieces, or into one per plane"
            raise UsageError(f"split={self.split!r}", "expansion", why, "write planes or a number")
        if self.protocol not in PROTOCOLS:
            why = f"the protocols are {', '.join(PROTOCOLS)}"
            raise UsageError(
                f"there is no protocol {self.protocol!r}", "expansion", why, "choose one of them"
            )
        for key in (*self.collectives, *self.sizes):
            if (kind := key.partition("@")[0]) not in ALGORITHMS:
                why = f"the kinds of collective are {', '.join(ALGORITHMS)}"
                raise UsageError(f"there is no collective {kind!r}", key, why, "choose one of them")
        for key, algorithm in self.collectives.items():
            find_algorithm(key.partition("@")[0], algorithm)
        for key, size in self.sizes.items():
            if size < 0:
                raise UsageError(
                    f"its size is {size} bytes", key, "a size is not negative", "correct it"
                )
