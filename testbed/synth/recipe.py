"""How a model is trained: its parallelism, batch and machine, and which rank is where in the grid.

Ranks count tensor-parallel place first, then context, then data, then pipeline stage (Megatron-LM's
order): rank = ((stage * dp + d) * cp + c) * tp + t.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from testbed.synth.gpus import Clock, find_gpu
from testbed.synth.schedules import passes_of
from topologies.errors import UsageError

if TYPE_CHECKING:
    from testbed.synth.models import Model

__all__ = ["Recipe"]

_CHOICES: Final = {
    "embeddings": ("sharded", "tied", "replicated", "omitted"),
    "recompute": ("none", "selective", "full"),
    "zero": (0, 1, 2, 3),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A training step. `seq` tokens x `micro_batch` samples x `micro_batches` per data rank.

    `sequence_parallel`: what tensor parallelism does not shard is sharded along the sequence
    (arXiv 2205.05198); `regather` gathers inputs again for weight gradients, as Megatron-LM does.
    `schedule` is 1f1b, interleaved (over `virtual_stages`), zero-bubble or a `.csv` file. `zero` is
    the ZeRO stage
    (arXiv 1910.02054). Gradients of `grad_bytes` an element are reduced in buckets of at least
    `bucket_bytes` (None: one per layer), with `overlap` as soon as they are there. `recompute` is
    none, selective (attention) or full. `embeddings`: None does what the model does. With
    `expert_skew` > 0 experts are chosen with Zipf's law of that exponent, drawn by `seed`. `mfu`:
    None times by roofline. Raises `UsageError` for what does not fit together.
    """

    model: Model
    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    cp: int = 1
    layers: int | None = None
    seq: int = 8192
    micro_batch: int = 1
    micro_batches: int | None = None
    gpu: str = "A100"
    mfu: float | None = None
    sequence_parallel: bool = True
    regather: bool = True
    schedule: str = "1f1b"
    virtual_stages: int = 1
    zero: int = 0
    grad_bytes: int = 2
    bucket_bytes: int | None = None
    overlap: bool = True
    recompute: str = "none"
    embeddings: str | None = None
    causal: bool = True
    optimizer: bool = True
    expert_skew: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        model = self.model
        numbers = "tp pp dp ep cp layers seq micro_batch micro_batches virtual_stages bucket_bytes"
        for name in numbers.split():
            value = getattr(self, name)
            self._require(value is None or value >= 1, name, "the least possible is 1")
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            known = value in choices or (value is None and name == "embeddings")
            self._require(known, name, f"it must be one of {', '.join(map(str, choices))}")
        self._require(self.grad_bytes in (2, 4), "grad_bytes", "gradients are of 2 or 4 bytes")
        self._require(self.expert_skew >= 0, "expert_skew", "0 is uniform and more is more skewed")
        for name in ("heads", "ffn"):
            whole = getattr(model, name) % self.tp == 0
            self._require(whole, "tp", f"it must divide the model's {name}, {getattr(model, name)}")
        self._require(self.seq % self.cp == 0, "cp", f"it must divide seq, {self.seq}")
        if self.sharded_sequence:
            tokens = self.tokens
            self._require(
                tokens % self.tp == 0, "tp", f"it must divide the {tokens} tokens of a rank"
            )
        ranks = self.tp * self.cp * self.dp
        if model.experts:
            self._require(
                model.experts % self.ep == 0, "ep", f"it must divide {model.experts} experts"
            )
            self._require(ranks % self.ep == 0, "ep", f"it must divide tp x cp x dp, {ranks}")
            together = self.tp == 1 or self.sequence_parallel
            self._require(
                together, "sequence_parallel", "experts need it together with tensor parallelism"
            )
        else:
            self._require(self.ep == 1, "ep", f"{model.name} has no experts")
        stages = self.pp * self.virtual_stages
        self._require(self.depth >= stages, "layers", f"each of {stages} stages needs one")
        passes_of(self.schedule, self.pp, self.batches, self.virtual_stages)

    def _require(self, holds: bool, name: str, why: str) -> None:  # noqa: FBT001 (an assertion)
        if not holds:
            what = f"{name} is {getattr(self, name)}"
            raise UsageError(what, "synth", why, f"correct {name}")

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def depth(self) -> int:
        """How many layers are trained: all, or the first `layers` of them."""
        return self.model.layers if self.layers is None else self.layers

    @property
    def batches(self) -> int:
        """Micro-batches of a step; twice the stages by default, one without a pipeline."""
        if self.micro_batches is not None:
            return self.micro_batches
        return 1 if self.pp == 1 else 2 * self.pp

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch at one context-parallel rank."""
        return self.micro_batch * self.seq // self.cp

    @property
    def sharded_sequence(self) -> bool:
        """Whether activations between blocks are sharded over the tensor-parallel ranks."""
        return self.sequence_parallel and self.tp > 1

    @property
    def activation_bytes(self) -> int:
        """The activations of `tokens`, whole, in BF16: a b s h of arXiv 2205.05198."""
        return 2 * self.tokens * self.model.hidden

    @property
    def vocabulary(self) -> str:
        """What is done with embeddings."""
        if self.embeddings is not None:
            return self.embeddings
        return "tied" if self.model.tied else "sharded"

    @property
    def clock(self) -> Clock:
        """How work takes time on the GPU."""
        return Clock(find_gpu(self.gpu), self.mfu)

    def stage(self, stage: int) -> range:
        """Return the ranks of a pipeline stage."""
        size = self.tp * self.cp * self.dp
        return range(stage * size, (stage + 1) * size)

    def groups(self, kind: str, stage: int) -> list[tuple[int, ...]]:
        """Return the groups of a stage.

        `tp`, `cp`; `dp`: those that hold the same weights; `ep`: those that share the experts out;
        `expert`: those that hold the same experts; `stage`: all.
        """
        ranks = self.stage(stage)
        t, c = self.tp, self.cp
        match kind:
            case "tp":
                return [tuple(ranks[i : i + t]) for i in range(0, len(ranks), t)]
            case "cp":
                starts = range(0, len(ranks), t * c)
                return [tuple(ranks[s + i : s + t * c : t]) for s in starts for i in range(t)]
            case "dp":
                return [tuple(ranks[i::t]) for i in range(t)]
            case "ep":
                return [tuple(ranks[i : i + self.ep]) for i in range(0, len(ranks), self.ep)]
            case "expert":
                return [tuple(ranks[i :: self.ep]) for i in range(self.ep)]
            case _:
                return [tuple(ranks)]

    def layers_of(self, virtual_stage: int) -> range:
        """Return the layers of a virtual stage; where they do not divide, early ones get more."""
        stages = self.pp * self.virtual_stages
        share, rest = divmod(self.depth, stages)
        first = virtual_stage * share + min(virtual_stage, rest)
        return range(first, first + share + (virtual_stage < rest))
