"""Data parallelism: gradients are summed, weights gathered, and the optimizer takes its step.

Plain data parallelism all-reduces gradients. ZeRO-1 and -2 reduce-scatter them and all-gather the
new weights, the same bytes; ZeRO-3 gathers weights before each use, forward and backward, and
scatters gradients after each: 1.5 times (Rajbhandari et al., arXiv 1910.02054, §7).
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from scheduler.model.flows import divide

if TYPE_CHECKING:
    from collections.abc import Sequence

    from testbed.synth.costs import Costs
    from testbed.synth.recipe import Recipe
    from testbed.synth.recorder import Recorder

__all__ = ["Gradients"]

_ZERO_3 = 3


class Gradients:
    """What a stage's ranks do about weights that others hold too.

    Weights are counted per kind of holders ("dp", "expert", "stage": groups of `Recipe.groups`).
    """

    def __init__(self, recipe: Recipe, costs: Costs, recorder: Recorder) -> None:
        self._recipe = recipe
        self._costs = costs
        self._rec = recorder
        self._bucket: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self._buckets: dict[int, list[dict[str, int]]] = defaultdict(list)
        self._started: dict[int, list[int]] = defaultdict(list)
        self._gathered: dict[int, list[int]] = defaultdict(list)
        self._gathering: dict[tuple[int, int], dict[int, list[int]]] = {}
        self._ahead: dict[int, list[int]] = {}

    # ZeRO-3: weights before use

    def gather_ahead(self, stage: int, layers: Sequence[int]) -> None:
        """Start gathering the weights of the first of `layers`; `need` starts the next."""
        self._ahead[stage] = list(layers)
        self._gather_next(stage)

    def _gather_next(self, stage: int) -> None:
        if self._recipe.zero == _ZERO_3 and self._ahead[stage]:
            layer = self._ahead[stage].pop(0)
            held = self._costs.weights(layer)
            self._gathering[stage, layer] = self._gather(stage, held)

    def need(self, stage: int, layer: int) -> None:
        """Wait for the weights of `layer`, and start gathering those used after it."""
        gathered = self._gathering.pop((stage, layer), {})
        self._gather_next(stage)
        for rank, operations in gathered.items():
            self._rec.wait(rank, *operations)

    def _gather(self, stage: int, held: dict[str, int]) -> dict[int, list[int]]:
        started: dict[int, list[int]] = defaultdict(list)
        for kind, ranks in self._groups(stage, held):
            shares = self._shares(held[kind], ranks)
            into = {rank: 2 * share for rank, share in shares.items()}
            group = self._rec.group(kind, ranks)
            one = self._rec.collect("all_gather", group, into, 2 * held[kind], stream="dp")
            for rank in ranks:
                started[rank].append(one)
        return started

    def _groups(self, stage: int, held: dict[str, int]) -> list[tuple[str, tuple[int, ...]]]:
        return [
            (kind, ranks)
            for kind, weights in held.items()
            for ranks in self._recipe.groups(kind, stage)
            if len(ranks) > 1 and weights
        ]

    @staticmethod
    def _shares(weights: int, ranks: Sequence[int]) -> dict[int, int]:
        cut = divide(np.array([weights]), len(ranks), 1)[0].tolist()
        return dict(zip(ranks, cut, strict=True))

    # Gradients after use

    def ready(self, stage: int, layer: int, *, last: bool) -> None:
        """The gradients of `layer` are there for one micro-batch; the last one's are summed."""
        if self._recipe.zero == _ZERO_3 or last:
            self._add(stage, self._costs.weights(layer))

    def table(self, stage: int, *, last: bool) -> None:
        """Sum the gradients of an embedding table after the last micro-batch; ZeRO-3 does too."""
        if last:
            self._add(stage, self._costs.table_weights())

    def _add(self, stage: int, held: dict[str, int]) -> None:
        bucket = self._bucket[stage]
        for kind, weights in held.items():
            bucket[kind] += weights
        size = sum(bucket.values()) * self._recipe.grad_bytes
        if size >= (self._recipe.bucket_bytes or 1):
            self._seal(stage)

    def _seal(self, stage: int) -> None:
        if bucket := dict(self._bucket.pop(stage, {})):
            self._buckets[stage].append(bucket)
            if self._recipe.overlap:
                self._sum(stage, bucket)

    def _sum(self, stage: int, held: dict[str, int]) -> None:
        size = self._recipe.grad_bytes
        dtype = {2: "bfloat16", 4: "float32"}[size]
        for kind, ranks in self._groups(stage, held):
            whole = size * held[kind]
            name, out = "all_reduce", dict.fromkeys(ranks, whole)
            if self._recipe.zero:
                shares = self._shares(held[kind], ranks)
                name, out = "reduce_scatter", {rank: size * s for rank, s in shares.items()}
            group = self._rec.group(kind, ranks)
            one = self._rec.collect(name, group, whole, out, stream="dp", dtype=dtype)
            for rank in ranks:
                self._started[rank].append(one)

    # The end of the step

    def finish(self) -> None:
        """Sum what is left, sum tied embeddings, update the weights and gather them."""
        recipe = self._recipe
        for stage in range(recipe.pp):
            self._seal(stage)
            if not recipe.overlap:
                for bucket in self._buckets[stage]:
                    self._sum(stage, bucket)
            for rank in recipe.stage(stage):
                self._rec.wait(rank, *self._started[rank])
        if recipe.vocabulary == "tied" and recipe.pp > 1:
            self._sum_tied()
        for stage in range(recipe.pp):
            self._update(stage)

    def _sum_tied(self) -> None:
        """Sum the two copies of a tied table, on the first and the last stage (Megatron-LM)."""
        size = self._recipe.grad_bytes * self._costs.table_weights()["dp"]
        dtype = {2: "bfloat16", 4: "float32"}[self._recipe.grad_bytes]
        last = self._recipe.pp - 1
        for pair in zip(self._recipe.stage(0), self._recipe.stage(last), strict=True):
            group = self._rec.group("tied", pair)
            one = self._rec.collect("all_reduce", group, size, size, stream="dp", dtype=dtype)
            for rank in pair:
                self._rec.wait(rank, one)

    def _update(self, stage: int) -> None:
        recipe = self._recipe
        held = self._held(stage)
        for kind, weights in held.items():
            for ranks in recipe.groups(kind, stage):
                share = weights / len(ranks) if recipe.zero else weights
                for rank in ranks if recipe.optimizer else ():
                    self._rec.work(rank, self._costs.update_ns(share))
        again = self._buckets[stage] if recipe.zero in (1, 2) else []
        if recipe.zero == _ZERO_3:  # embeddings stay gathered through a step
            again = [self._costs.table_weights()] * self._tables(stage)
        for bucket in again:
            for rank, operations in self._gather(stage, bucket).items():
                self._gathered[rank] += operations
        for rank in recipe.stage(stage):
            self._rec.wait(rank, *self._gathered[rank])
            self._rec.join(rank)

    def _tables(self, stage: int) -> int:
        """How many embedding tables a stage holds."""
        recipe = self._recipe
        if recipe.vocabulary == "omitted":
            return 0
        both = recipe.vocabulary != "tied" or recipe.pp > 1
        return (stage == 0) + (stage == recipe.pp - 1 and both)

    def _held(self, stage: int) -> dict[str, int]:
        """Weights of one rank of a stage, by who holds the same."""
        recipe = self._recipe
        parts = [self._costs.table_weights()] * self._tables(stage)
        for chunk in range(recipe.virtual_stages):
            layers = recipe.layers_of(chunk * recipe.pp + stage)
            parts += [self._costs.weights(layer) for layer in layers]
        total: dict[str, int] = defaultdict(int)
        for part in parts:
            for kind, weights in part.items():
                total[kind] += weights
        return total
