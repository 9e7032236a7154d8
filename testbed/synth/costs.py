"""What one layer costs one GPU: time forward, time for input and weight gradients, and weights.

A backward pass does the forward's matrix work twice, once for the gradients of inputs and once for
those of weights; attention itself has no weights (arXiv 2205.05198, appendix A).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from testbed.synth.recipe import Recipe

__all__ = ["Costs", "Times"]


class Times(NamedTuple):
    """Durations in ns: forward, input gradients, weight gradients."""

    forward_ns: float = 0.0
    inputs_ns: float = 0.0
    weights_ns: float = 0.0


class Costs:
    """Costs of a recipe's blocks on one rank, for one micro-batch."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._clock = recipe.clock
        shard = recipe.tp if recipe.sharded_sequence else 1
        self.own_tokens = recipe.tokens // shard
        self.core_ns = self._attention_ns()

    def _attention_ns(self) -> float:
        recipe, model = self._recipe, self._recipe.model
        flop = recipe.tokens * model.attention_flop(recipe.seq, causal=recipe.causal) / recipe.tp
        heads = 2 * model.heads + 2 * model.kv_heads
        moved = 2 * recipe.tokens * heads * model.head_dim / recipe.tp
        return self._clock.attention_ns(flop, moved)

    def _edges_ns(self) -> float:
        """Norm and residual around a block: read twice, written twice, BF16."""
        return self._clock.elementwise_ns(2 * 4 * self.own_tokens * self._recipe.model.hidden)

    def attention(self) -> Times:
        """Projections, attention and the edges; backward attention works twice as long."""
        recipe = self._recipe
        matrices = self._clock.matmul_ns(recipe.tokens, recipe.model.attention_weights / recipe.tp)
        edges = self._edges_ns()
        return Times(matrices + self.core_ns + edges, matrices + 2 * self.core_ns + edges, matrices)

    def projections_ns(self) -> float:
        """Time to make queries, keys and values: what comes before keys are gathered."""
        model, tp = self._recipe.model, self._recipe.tp
        output = model.heads * model.head_dim * model.hidden
        return self._clock.matmul_ns(self._recipe.tokens, (model.attention_weights - output) / tp)

    def feed_forward(self) -> Times:
        """A dense feed-forward and its edges."""
        recipe, model = self._recipe, self._recipe.model
        matrices = self._clock.matmul_ns(recipe.tokens, model.ffn_weights / recipe.tp)
        widths = (3 if model.gated else 2) * model.ffn / recipe.tp
        between = self._clock.elementwise_ns(2 * recipe.tokens * widths) + self._edges_ns()
        return Times(matrices + between, matrices + between, matrices)

    def shared(self) -> Times:
        """Router and shared experts on this rank's own tokens."""
        model, clock = self._recipe.model, self._clock
        matrices = clock.matmul_ns(self.own_tokens, model.router_weights) + self._edges_ns()
        for _ in range(model.shared_experts):
            matrices += clock.matmul_ns(self.own_tokens, model.expert_weights)
        return Times(matrices, matrices, matrices)

    def experts(self, visits: float) -> Times:
        """This rank's experts on `visits` tokens in all."""
        model = self._recipe.model
        held = model.experts // self._recipe.ep
        matrices = held * self._clock.matmul_ns(visits / held, model.expert_weights)
        return Times(matrices, matrices, matrices)

    def lookup_ns(self) -> float:
        """Read one row of the embedding per token, and write it."""
        return self._clock.elementwise_ns(2 * self._recipe.activation_bytes)

    def head(self) -> Times:
        """The output layer: sharded over the vocabulary, or replicated on own tokens."""
        recipe = self._recipe
        if recipe.vocabulary == "replicated":
            matrices = self._clock.matmul_ns(self.own_tokens, recipe.model.embedding_weights)
        else:
            table = recipe.model.embedding_weights / recipe.tp
            matrices = self._clock.matmul_ns(recipe.tokens, table)
        return Times(matrices, matrices, matrices)

    def update_ns(self, weights: float) -> float:
        """Adam on `weights` of a rank: moments and master read and written, FP32, and the rest.

        12 bytes read and 12 written per weight, the gradient read, 2 bytes written (arXiv
        1910.02054, §3.1).
        """
        return self._clock.memory_ns(weights * (12 + 12 + self._recipe.grad_bytes + 2))

    def weights(self, layer: int) -> dict[str, int]:
        """Weights of a layer on one rank, by who holds the same: `dp`, `expert` or `stage`.

        Attention and dense feed-forwards are sharded over tp (their norms counted with them);
        experts are whole and shared out over ep; router and shared experts are everywhere.
        """
        recipe, model = self._recipe, self._recipe.model
        held = {"dp": model.attention_weights + model.small_weights}
        if model.is_mixture(layer):
            held["expert"] = model.experts // recipe.ep * model.expert_weights
            everywhere = model.router_weights + model.shared_experts * model.expert_weights
            held["stage"] = everywhere
        else:
            held["dp"] += model.ffn_weights
        held["dp"] //= recipe.tp
        return self._merged(held)

    def table_weights(self) -> dict[str, int]:
        """Weights of one embedding on one rank, as `weights`."""
        recipe = self._recipe
        whole = recipe.model.embedding_weights
        if recipe.vocabulary == "omitted":
            return {}
        if recipe.vocabulary == "replicated":
            return self._merged({"stage" if recipe.sharded_sequence else "dp": whole})
        return {"dp": -(-whole // recipe.tp)}

    def _merged(self, held: dict[str, int]) -> dict[str, int]:
        if self._recipe.tp == 1 and "stage" in held:  # the same ranks as dp
            held["dp"] = held.get("dp", 0) + held.pop("stage")
        return held
