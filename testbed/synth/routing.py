"""Which tokens go to which expert-parallel rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scheduler.model.flows import divide

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from scheduler.model.taskgraph import Int64s
    from testbed.synth.recipe import Recipe

__all__ = ["visits"]


def _popularity(recipe: Recipe, layer: int) -> NDArray[np.float64]:
    """Share of each expert-parallel rank: Zipf over experts, in an order drawn for the layer."""
    model = recipe.model
    weight = 1.0 / np.arange(1, model.experts + 1) ** recipe.expert_skew
    order = np.random.default_rng([recipe.seed, layer]).permutation(model.experts)
    summed = weight[order].reshape(recipe.ep, -1).sum(axis=1)
    share: NDArray[np.float64] = summed / summed.sum()
    return share


def visits(recipe: Recipe, layer: int, batch: int, ranks: Sequence[int], own_tokens: int) -> Int64s:
    """Return how many tokens each rank of an expert group sends each, shape (ep, ep).

    Every token visits `experts_per_token` experts. Without skew a rank sends equally many to all;
    with it the numbers are drawn per layer, micro-batch and rank from `recipe.seed`.
    """
    total = own_tokens * recipe.model.experts_per_token
    if recipe.expert_skew == 0:
        return np.repeat(divide(np.array([total]), recipe.ep, 1), recipe.ep, axis=0)
    share = _popularity(recipe, layer)
    rows = [
        np.random.default_rng([recipe.seed, layer, batch, rank]).multinomial(total, share)
        for rank in ranks
    ]
    return np.stack(rows).astype(np.int64)
