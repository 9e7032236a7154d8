"""A training step, operation by operation.

`Step.run` follows the pipeline schedule of every stage, a pass as soon as what it needs has been
sent, so that operations only wait for earlier ones. All ranks of a stage do the same at once.
Streams are those of `STREAMS`: computation, and one per kind of communicator, as in Megatron-LM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.model.workload import Source, Workload
from testbed.synth.costs import Costs, Times
from testbed.synth.gradients import Gradients
from testbed.synth.recorder import Recorder
from testbed.synth.routing import visits
from testbed.synth.schedules import Pass, passes_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scheduler.model.taskgraph import Int64s
    from testbed.synth.recipe import Recipe

__all__ = ["Step"]


class Step:
    """Builds the workload of one step of `recipe`."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._costs = Costs(recipe)
        self._rec = Recorder()
        self._gradients = Gradients(recipe, self._costs, self._rec)
        self._arrived: dict[tuple[str, int, int], dict[int, int]] = {}
        self._later: dict[tuple[int, int, int], list[tuple[int, float, list[dict[int, int]]]]] = {}
        self._last = recipe.pp * recipe.virtual_stages - 1
        self._passes = passes_of(recipe.schedule, recipe.pp, recipe.batches, recipe.virtual_stages)
        self._separate = [
            {(p.micro_batch, p.chunk) for p in passes if p.phase == "W"} for passes in self._passes
        ]
        self._ends = [  # each chunk's last backward pass, and last pass of weight gradients
            {(p.chunk, what): p for p in passes for what in self._makes(stage, p)}
            for stage, passes in enumerate(self._passes)
        ]

    def run(self) -> Workload:
        """Return the workload."""
        recipe = self._recipe
        left = self._passes
        turns = [0] * recipe.pp
        while any(turn < len(passes) for turn, passes in zip(turns, left, strict=True)):
            for stage, passes in enumerate(left):
                while turns[stage] < len(passes) and self._can(stage, passes[turns[stage]]):
                    self._pass(stage, passes[turns[stage]])
                    turns[stage] += 1
        self._gradients.finish()
        return Workload(
            world=recipe.world,
            groups=self._rec.groups,
            operations=tuple(self._rec.operations),
            source=Source(path=recipe.model.name, sha256=None, format="synth"),
            iterations=(0,),
            notes=(repr(recipe),),
        )

    def _makes(self, stage: int, step: Pass) -> tuple[str, ...]:
        """Say which gradients a pass makes: of inputs, of weights, of both, or none."""
        if step.phase == "B":
            apart = (step.micro_batch, step.chunk) in self._separate[stage]
            return ("inputs",) if apart else ("inputs", "weights")
        return ("weights",) if step.phase == "W" else ()

    def _is_last(self, stage: int, step: Pass, what: str) -> bool:
        """Whether no later pass of the step makes such gradients of the chunk."""
        return self._ends[stage][step.chunk, what] == step

    def _virtual(self, stage: int, chunk: int) -> int:
        return chunk * self._recipe.pp + stage

    def _can(self, stage: int, step: Pass) -> bool:
        """Whether what the pass needs from another stage has been sent."""
        place = self._virtual(stage, step.chunk)
        edge = {"F": 0, "B": self._last}.get(step.phase, place)
        return place == edge or (step.phase, step.micro_batch, place) in self._arrived

    def _pass(self, stage: int, step: Pass) -> None:
        place = self._virtual(stage, step.chunk)
        self._wait(self._arrived.pop((step.phase, step.micro_batch, place), {}))
        layers = self._recipe.layers_of(place)
        if step.phase == "F":
            if place == 0:
                self._look_up(stage)
            self._gradients.gather_ahead(stage, layers)
            for layer in layers:
                self._gradients.need(stage, layer)
                self._forward(stage, layer, step.micro_batch)
            if place == self._last:
                self._head(stage)
            else:
                self._send(stage, step, place + 1)
        elif step.phase == "B":
            self._backward_pass(stage, step, place)
        else:
            self._weights_pass(stage, step)

    def _weights_pass(self, stage: int, step: Pass) -> None:
        """Do the weight gradients that a backward pass left for later."""
        left = self._later.pop((stage, step.micro_batch, step.chunk))
        for layer, weights_ns, gathered in left:
            self._wait(*gathered)
            self._work(stage, weights_ns)
            self._gradients.ready(stage, layer, last=self._is_last(stage, step, "weights"))

    def _backward_pass(self, stage: int, step: Pass, place: int) -> None:
        layers = self._recipe.layers_of(place)
        later: list[tuple[int, float, list[dict[int, int]]]] = []
        separate = (step.micro_batch, step.chunk) in self._separate[stage]
        last = self._is_last(stage, step, "inputs")
        if place == self._last:
            self._head_back(stage, last=last)
        backwards = layers[::-1]
        self._gradients.gather_ahead(stage, backwards)
        for layer in backwards:
            self._gradients.need(stage, layer)
            if self._recipe.recompute == "full":
                self._forward(stage, layer, step.micro_batch)
            weights_ns, gathered = self._backward(stage, layer, step.micro_batch, separate=separate)
            if separate:
                later.append((layer, weights_ns, gathered))
            else:
                self._gradients.ready(stage, layer, last=self._is_last(stage, step, "weights"))
        if separate:
            self._later[stage, step.micro_batch, step.chunk] = later
        if place == 0:
            self._look_up_back(stage, last=last)
        else:
            self._send(stage, step, place - 1)

    # Tensor, context and expert parallelism

    def _work(self, stage: int, dur_ns: float) -> None:
        for rank in self._recipe.stage(stage):
            self._rec.work(rank, dur_ns)

    def _collect(
        self, kind: str, stage: int, in_bytes: int, out_bytes: int, *, stream: str = "tp"
    ) -> dict[int, int]:
        """Start a collective in all groups of the stage; return each rank's operation."""
        started: dict[int, int] = {}
        for ranks in self._recipe.groups(stream, stage):
            if len(ranks) > 1:
                group = self._rec.group(stream, ranks)
                one = self._rec.collect(kind, group, in_bytes, out_bytes, stream=stream)
                started.update(dict.fromkeys(ranks, one))
        return started

    def _wait(self, *started: dict[int, int]) -> None:
        for operations in started:
            for rank, operation in operations.items():
                self._rec.wait(rank, operation)

    def _gather(self, stage: int) -> dict[int, int]:
        """All-gather activations along the sequence, where it is sharded (arXiv 2205.05198)."""
        whole = self._recipe.activation_bytes
        if not self._recipe.sharded_sequence:
            return {}
        return self._collect("all_gather", stage, whole // self._recipe.tp, whole)

    def _reduce(self, stage: int) -> dict[int, int]:
        """Sum over tensor-parallel ranks: to their shards of the sequence, or whole."""
        whole = self._recipe.activation_bytes
        if self._recipe.sharded_sequence:
            return self._collect("reduce_scatter", stage, whole, whole // self._recipe.tp)
        return self._collect("all_reduce", stage, whole, whole)

    def _keys_bytes(self) -> int:
        """Keys and values of a rank's tokens, BF16; of latent attention what they are made from."""
        recipe, model = self._recipe, self._recipe.model
        if model.is_latent:
            return 2 * recipe.tokens * (model.kv_rank + model.rope_dim)
        heads = max(1, model.kv_heads // recipe.tp)
        return 2 * 2 * recipe.tokens * heads * model.head_dim

    def _gather_keys(self, stage: int) -> dict[int, int]:
        """All-gather keys and values over context-parallel ranks (arXiv 2407.21783, §3.3.2)."""
        shard = self._keys_bytes()
        return self._collect("all_gather", stage, shard, shard * self._recipe.cp, stream="cp")

    def _forward(self, stage: int, layer: int, batch: int) -> None:
        attention = self._costs.attention()
        self._wait(self._gather(stage))
        first = self._costs.projections_ns() if self._recipe.cp > 1 else 0.0
        self._work(stage, first)
        self._wait(self._gather_keys(stage))
        self._work(stage, attention.forward_ns - first)
        self._wait(self._reduce(stage))
        if self._recipe.model.is_mixture(layer):
            self._mixture(stage, layer, batch, "forward_ns")
            return
        self._wait(self._gather(stage))
        self._work(stage, self._costs.feed_forward().forward_ns)
        self._wait(self._reduce(stage))

    def _backward(
        self, stage: int, layer: int, batch: int, *, separate: bool
    ) -> tuple[float, list[dict[int, int]]]:
        """Do a layer backward; with `separate` return the weight gradients' time, left for later.

        The second value is what they wait for.
        """
        left_ns = 0.0
        waits: list[dict[int, int]] = []
        if self._recipe.model.is_mixture(layer):
            self._mixture(stage, layer, batch, "inputs_ns")
            blocks = [(self._costs.attention(), True)]
            left_ns = self._mixture_weights(stage, layer, batch, separate=separate)
        else:
            blocks = [(self._costs.feed_forward(), False), (self._costs.attention(), True)]
        for times, is_attention in blocks:
            gathered = self._block_back(stage, times, is_attention=is_attention, separate=separate)
            left_ns += times.weights_ns if separate else 0.0
            waits.append(gathered)
        return left_ns, waits

    def _block_back(
        self, stage: int, times: Times, *, is_attention: bool, separate: bool
    ) -> dict[int, int]:
        """Input gradients, whose sum travels while weight gradients are computed."""
        self._wait(self._gather(stage))
        gathered = self._gather(stage) if self._recipe.regather else {}
        again = 0.0
        if is_attention:
            self._wait(self._gather_keys(stage))
            again = self._costs.core_ns if self._recipe.recompute == "selective" else 0.0
        self._work(stage, again + times.inputs_ns)
        if is_attention and self._recipe.cp > 1:
            shard = self._keys_bytes()
            whole = shard * self._recipe.cp
            self._wait(self._collect("reduce_scatter", stage, whole, shard, stream="cp"))
        summed = self._reduce(stage)
        if not separate:
            self._wait(gathered)
            self._work(stage, times.weights_ns)
        self._wait(summed)
        return gathered

    def _routes(
        self, stage: int, layer: int, batch: int
    ) -> Iterable[tuple[tuple[int, ...], Int64s]]:
        for ranks in self._recipe.groups("ep", stage):
            yield ranks, visits(self._recipe, layer, batch, ranks, self._costs.own_tokens)

    def _mixture(self, stage: int, layer: int, batch: int, phase: str) -> None:
        """Dispatch tokens, let experts work, combine; backward the same way round.

        Each exchange moves k b s h a (e-1)/e bytes per rank (arXiv 2412.19437, §3.2): the gradient
        of a combine is a dispatch, that of a dispatch a combine. Shared experts work meanwhile.
        """
        shared = getattr(self._costs.shared(), phase)
        routes = list(self._routes(stage, layer, batch))
        out = self._exchange(routes, back=False)
        self._work(stage, shared)
        self._wait(out)
        for ranks, sent in routes:
            for rank, received in zip(ranks, sent.sum(axis=0).tolist(), strict=True):
                self._rec.work(rank, getattr(self._costs.experts(received), phase))
        self._wait(self._exchange(routes, back=True))

    def _mixture_weights(self, stage: int, layer: int, batch: int, *, separate: bool) -> float:
        """Weight gradients of a mixture: now, or the mean over ranks for later."""
        shared = self._costs.shared().weights_ns
        routes = list(self._routes(stage, layer, batch))
        if separate:
            mean = self._costs.own_tokens * self._recipe.model.experts_per_token
            return shared + self._costs.experts(mean).weights_ns
        self._work(stage, shared)
        for ranks, sent in routes:
            for rank, received in zip(ranks, sent.sum(axis=0).tolist(), strict=True):
                self._rec.work(rank, self._costs.experts(received).weights_ns)
        return 0.0

    def _exchange(
        self, routes: list[tuple[tuple[int, ...], Int64s]], *, back: bool
    ) -> dict[int, int]:
        started: dict[int, int] = {}
        token_bytes = 2 * self._recipe.model.hidden
        for ranks, sent in routes:
            if len(ranks) > 1:
                rows = ((sent.T if back else sent) * token_bytes).tolist()
                into = {rank: sum(row) for rank, row in zip(ranks, rows, strict=True)}
                out = {
                    rank: sum(column)
                    for rank, column in zip(ranks, zip(*rows, strict=True), strict=True)
                }
                splits = {rank: tuple(row) for rank, row in zip(ranks, rows, strict=True)}
                group = self._rec.group("ep", ranks)
                one = self._rec.collect("all_to_all", group, into, out, stream="ep", splits=splits)
                started.update(dict.fromkeys(ranks, one))
        return started

    # The ends of the pipeline

    def _look_up(self, stage: int) -> None:
        if self._recipe.vocabulary == "omitted":
            return
        self._work(stage, self._costs.lookup_ns())
        if self._recipe.vocabulary != "replicated":
            self._wait(self._reduce(stage))  # each rank has the words of its shard

    def _look_up_back(self, stage: int, *, last: bool) -> None:
        if self._recipe.vocabulary == "omitted":
            return
        if self._recipe.vocabulary != "replicated":
            self._wait(self._gather(stage))
        self._work(stage, self._costs.lookup_ns())
        self._gradients.table(stage, last=last)

    def _head(self, stage: int) -> None:
        """Logits and loss; sharded ones need three sums of a float a token (Megatron-LM)."""
        if self._recipe.vocabulary == "omitted":
            return
        sharded = self._recipe.vocabulary != "replicated"
        if sharded:
            self._wait(self._gather(stage))
        self._work(stage, self._costs.head().forward_ns)
        if sharded:
            size = 4 * self._recipe.tokens
            for _ in range(3):
                self._wait(self._collect("all_reduce", stage, size, size))

    def _head_back(self, stage: int, *, last: bool) -> None:
        """Input and weight gradients of the output layer."""
        if self._recipe.vocabulary == "omitted":
            return
        times = self._costs.head()
        self._work(stage, times.inputs_ns)
        summed = self._reduce(stage) if self._recipe.vocabulary != "replicated" else {}
        self._work(stage, times.weights_ns)
        self._wait(summed)
        if self._recipe.vocabulary != "tied" or self._recipe.pp > 1:  # else with the look-up's
            self._gradients.table(stage, last=last)

    def _send(self, stage: int, step: Pass, place: int) -> None:
        """Send activations or their gradients to virtual stage `place`.

        b s h, sharded with the sequence: 1/t of it (arXiv 2104.04473, §4.1).
        """
        recipe = self._recipe
        target = place % recipe.pp
        size = recipe.activation_bytes // (recipe.tp if recipe.sharded_sequence else 1)
        arrived: dict[int, int] = {}
        for source, sink in zip(recipe.stage(stage), recipe.stage(target), strict=True):
            pipeline = [recipe.stage(s)[source % len(recipe.stage(0))] for s in range(recipe.pp)]
            group = self._rec.group("pp", pipeline)
            back = step.phase == "B"
            arrived[sink] = self._rec.send(group, source, sink, size, back=back)
        self._arrived[step.phase, step.micro_batch, place] = arrived
