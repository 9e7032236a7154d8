"""How long a GPU takes: a roofline over its data-sheet, or a share of its peak."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from topologies.errors import UsageError
from topologies.spelling import meant

__all__ = ["GPUS", "Clock", "Gpu", "find_gpu"]

_NS: Final = 10**9


@dataclass(frozen=True, slots=True)
class Gpu:
    """Dense BF16 peak (FLOP/s) and memory bandwidth (bytes/s), from NVIDIA's data-sheets."""

    name: str
    peak_flops: float
    memory_bytes_per_s: float


GPUS: Final = {
    gpu.name: gpu
    for gpu in (
        Gpu("A100", 312e12, 2.039e12),  # A100 80GB SXM
        Gpu("H100", 989.4e12, 3.35e12),  # H100 SXM5
        Gpu("H200", 989.4e12, 4.8e12),  # H200 SXM
        Gpu("B200", 2250e12, 8e12),  # HGX B200, per GPU
    )
}


def find_gpu(name: str) -> Gpu:
    """Return a GPU by name, in either case; raises `UsageError` where there is none."""
    if name.upper() not in GPUS:
        why = f"the GPUs are {', '.join(GPUS)}"
        fix = meant(name, GPUS, "choose one of them")
        raise UsageError(f"there is no GPU {name!r}", "synth", why, fix)
    return GPUS[name.upper()]


@dataclass(frozen=True, slots=True)
class Clock:
    """Turns work into time.

    With `mfu` a computation takes its FLOP over that share of the peak, and moving memory is part
    of it. Without, it takes the larger of FLOP at peak and bytes at full memory bandwidth
    (Williams, Waterman, Patterson 2009).
    """

    gpu: Gpu
    mfu: float | None = None

    def __post_init__(self) -> None:
        if self.mfu is not None and not 0 < self.mfu <= 1:
            why = "it is the share of the peak that is used"
            raise UsageError(f"mfu is {self.mfu}", "synth", why, "write a number such as 0.4")

    def matmul_ns(self, rows: float, weights: float) -> float:
        """Multiply `rows` activations by matrices of `weights` elements in all, BF16.

        Moved once: the weights, and as many activations as a square matrix of that size has on
        each side.
        """
        flop = 2 * rows * weights
        if self.mfu is not None:
            return flop / (self.gpu.peak_flops * self.mfu) * _NS
        moved = 2 * (weights + 2 * rows * math.sqrt(weights))
        return max(flop / self.gpu.peak_flops, moved / self.gpu.memory_bytes_per_s) * _NS

    def attention_ns(self, flop: float, moved_bytes: float) -> float:
        """Attention of `flop` operations that reads and writes `moved_bytes`, scores unmoved.

        FlashAttention keeps the scores on chip (Dao et al., arXiv 2205.14135).
        """
        if self.mfu is not None:
            return flop / (self.gpu.peak_flops * self.mfu) * _NS
        return max(flop / self.gpu.peak_flops, self.memory_ns(moved_bytes) / _NS) * _NS

    def elementwise_ns(self, moved_bytes: float) -> float:
        """Norms, activations, residuals: memory only; part of the share where `mfu` is given."""
        return 0.0 if self.mfu is not None else self.memory_ns(moved_bytes)

    def memory_ns(self, moved_bytes: float) -> float:
        """Move bytes to or from memory."""
        return moved_bytes / self.gpu.memory_bytes_per_s * _NS
