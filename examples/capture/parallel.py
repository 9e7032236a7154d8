"""Megatron-style tensor, sequence and data parallelism, small enough to read in one sitting.

Every collective goes through `Communicator`. NCCL describes its collectives in PyTorch's traces
(`record_param_comms`: kind, sizes, group); gloo does not, so there each one is wrapped in an event
named `record_comms` with the same keys. Waiting is an event too, so that computing and waiting
can be told apart.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 (PyTorch's own spelling)
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Iterable

_NAMES = {"all_reduce": "allreduce", "all_gather": "_allgather_base"} | {
    "reduce_scatter": "_reduce_scatter_base"
}
_DTYPES = {torch.bfloat16: "BFloat16", torch.float32: "Float", torch.int64: "Long"}
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Communicator:
    """One process group. `waited_s` is the time this rank spent waiting for it."""

    def __init__(self, ranks: list[int], group: dist.ProcessGroup, desc: str) -> None:
        self.group = group
        self.size = len(ranks)
        self.index = ranks.index(dist.get_rank())
        self.waited_s = 0.0
        self._seq = 0
        self._records_itself = dist.get_backend(group) == "nccl"
        self._about = {
            "Process Group Name": group.group_name,
            "Process Group Description": desc,
            "Process Group Ranks": str(ranks),
            "Group size": len(ranks),
            "Rank": dist.get_rank(),
        }

    def record(self, name: str, dtype: torch.dtype, sizes: tuple[int, int], seq: int) -> Any:  # noqa: ANN401 (a private type of PyTorch)
        """Return a context whose event says what `record_param_comms` says under NCCL."""
        about = {
            "Collective name": name,
            "dtype": _DTYPES[dtype],
            "In msg nelems": sizes[0],
            "Out msg nelems": sizes[1],
            "Seq": seq,
            **self._about,
        }
        return torch._C._profiler._RecordFunctionFast("record_comms", [json.dumps(about)], about)  # noqa: SLF001 (the one way to give an event arguments from Python)

    def start(self, kind: str, source: Tensor, target: Tensor | None = None) -> Pending:
        """Issue a collective; `target` receives it, or `source` itself for all_reduce."""
        target = source if target is None else target
        self._seq += 1
        pending = Pending(self, self._seq, target)
        if self._records_itself:
            pending.work = self._issue(kind, source, target)
        else:
            sizes = (source.numel(), target.numel())
            with self.record(_NAMES[kind], source.dtype, sizes, self._seq):
                pending.work = self._issue(kind, source, target)
        return pending

    def _issue(self, kind: str, source: Tensor, target: Tensor) -> Any:  # noqa: ANN401
        if kind == "all_gather":
            return _all_gather(target, source, group=self.group, async_op=True)
        if kind == "reduce_scatter":
            return _reduce_scatter(target, source, group=self.group, async_op=True)
        return dist.all_reduce(target, group=self.group, async_op=True)

    def gather(self, shard: Tensor) -> Pending:
        """Start an all_gather along the first dimension."""
        whole = shard.new_empty((shard.shape[0] * self.size, *shard.shape[1:]))
        return self.start("all_gather", shard.contiguous(), whole)

    def scatter_sum(self, whole: Tensor) -> Pending:
        """Start a reduce_scatter along the first dimension."""
        shard = whole.new_empty((whole.shape[0] // self.size, *whole.shape[1:]))
        return self.start("reduce_scatter", whole.contiguous(), shard)


class Pending:
    """A collective under way."""

    work: Any

    def __init__(self, comms: Communicator, seq: int, target: Tensor) -> None:
        self._comms = comms
        self._seq = seq
        self._target = target

    def wait(self) -> Tensor:
        """Return the result; what is computed next depends on it."""
        began = time.perf_counter()
        if self._comms._records_itself:  # noqa: SLF001 (two halves of one thing)
            self.work.wait()
        else:
            with self._comms.record("wait", self._target.dtype, (0, 0), self._seq):
                self.work.wait()
        self._comms.waited_s += time.perf_counter() - began
        return self._target


class ColumnLinear(torch.autograd.Function):
    """y = gather(x) w^T with w split by output features; x is this rank's part of the sequence.

    Backward gathers x again beside the data gradient and scatters that beside the weight gradient.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, comms: Communicator) -> Tensor:  # noqa: ANN401
        """Gather, then multiply."""
        ctx.save_for_backward(x, weight)
        ctx.comms = comms
        return torch.mm(comms.gather(x).wait(), weight.t())

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:  # noqa: ANN401
        """Overlap both collectives with the two multiplications."""
        x, weight = ctx.saved_tensors
        gathering = ctx.comms.gather(x)
        dx_whole = torch.mm(dy, weight)
        x_whole = gathering.wait()
        scattering = ctx.comms.scatter_sum(dx_whole)
        dweight = torch.mm(dy.t(), x_whole)
        return scattering.wait(), dweight, None


class RowLinear(torch.autograd.Function):
    """y = scatter_sum(x w^T) with w split by input features; y is this rank's part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, comms: Communicator) -> Tensor:  # noqa: ANN401
        """Multiply, then add up and scatter."""
        ctx.save_for_backward(x, weight)
        ctx.comms = comms
        return comms.scatter_sum(torch.mm(x, weight.t())).wait()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:  # noqa: ANN401
        """Gather the gradient, which both multiplications need."""
        x, weight = ctx.saved_tensors
        dy_whole = ctx.comms.gather(dy).wait()
        return torch.mm(dy_whole, weight), torch.mm(dy_whole.t(), x), None


class RMSNorm(torch.autograd.Function):
    """y = weight x / rms(x), in single precision inside; a few events where PyTorch's makes 80."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:  # noqa: ANN401
        """Normalise the last dimension."""
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True).add_(1e-6))
        normal = wide.mul_(scale).to(x.dtype)
        ctx.save_for_backward(normal, scale, weight)
        return normal * weight

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        """Project out what scaling x could change."""
        normal, scale, weight = ctx.saved_tensors
        dweight = (dy * normal).sum(0)
        dnormal = (dy * weight).float()
        along = (dnormal * normal).mean(-1, keepdim=True)
        return dnormal.addcmul_(normal, along, value=-1).mul_(scale).to(dy.dtype), dweight


class ScatterSum(torch.autograd.Function):
    """Add up over ranks and keep this rank's part of the sequence; backward gathers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, comms: Communicator) -> Tensor:  # noqa: ANN401
        """reduce_scatter."""
        ctx.comms = comms
        return comms.scatter_sum(x).wait()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        """all_gather."""
        return ctx.comms.gather(dy).wait(), None


class VocabularyCrossEntropy(torch.autograd.Function):
    """Mean cross entropy of logits split by vocabulary: three small all_reduces."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, comms: Communicator) -> Tensor:  # noqa: ANN401
        """Maximum, target logit and sum of exponentials over all ranks."""
        logits = logits.float()
        width = logits.shape[-1]
        local = targets - comms.index * width
        outside = (local < 0) | (local >= width)
        local = local.masked_fill(outside, 0)
        # a sum of per-rank maxima bounds the maximum: any common shift is exact
        shift = comms.start("all_reduce", logits.amax(-1).relu()).wait()
        logits = logits - shift.unsqueeze(-1)
        hit = logits.gather(-1, local.unsqueeze(-1)).squeeze(-1).masked_fill(outside, 0.0)
        hit = comms.start("all_reduce", hit).wait()
        exponentials = logits.exp()
        total = comms.start("all_reduce", exponentials.sum(-1)).wait()
        ctx.save_for_backward(exponentials / total.unsqueeze(-1), local, outside)
        return (total.log() - hit).mean()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
        """Softmax minus one-hot."""
        softmax, local, outside = ctx.saved_tensors
        here = (~outside).to(softmax.dtype).unsqueeze(-1)
        softmax = softmax.scatter_add(-1, local.unsqueeze(-1), -here)
        return (softmax * (grad / local.numel())).to(torch.bfloat16), None, None


class FlatParameters:
    """All weights in one tensor and all gradients in another, the latter all-reduced in buckets.

    A bucket goes out as soon as backward has filled it, so gradients travel while earlier layers
    are still being differentiated. `weights` is what the optimizer sees.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], comms: Communicator, cap: int) -> None:
        order = list(parameters)[::-1]  # about the order in which backward fills them
        self.weights = nn.Parameter(torch.cat([p.detach().flatten() for p in order]))
        self.gradients = self.weights.grad = torch.zeros_like(self.weights)
        self._comms = comms
        self._pending: list[Pending] = []
        self._buckets: list[Tensor] = []
        self._members: list[int] = []
        first = offset = members = 0
        for parameter in order:
            size = parameter.numel()
            index = len(self._buckets)
            parameter.data = self.weights.data[offset : offset + size].view_as(parameter)
            parameter.grad = self.gradients[offset : offset + size].view_as(parameter)
            parameter.register_post_accumulate_grad_hook(lambda _, index=index: self._filled(index))
            offset, members = offset + size, members + 1
            if (offset - first) * parameter.element_size() >= cap or parameter is order[-1]:
                self._buckets.append(self.gradients[first:offset])
                self._members.append(members)
                first, members = offset, 0
        self._left = list(self._members)

    def _filled(self, index: int) -> None:
        self._left[index] -= 1
        if self._left[index] == 0 and self._comms.size > 1:
            self._pending.append(self._comms.start("all_reduce", self._buckets[index]))

    def zero(self) -> None:
        """Forget the last step's gradients."""
        self._left = list(self._members)
        self.gradients.zero_()

    def finish(self) -> None:
        """Wait for every bucket."""
        for pending in self._pending:
            pending.wait()
        self._pending.clear()


def rotations(sequence: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines of rotary position embedding, [sequence, 1, 1, width / 2]."""
    rates = 10000.0 ** (-torch.arange(0, width, 2, device=device) / width)
    angles = torch.arange(sequence, device=device)[:, None, None, None] * rates
    return angles.cos().to(torch.bfloat16), angles.sin().to(torch.bfloat16)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding; x is [sequence, batch, heads, width]."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention with grouped queries; all [sequence, batch, heads, width]."""
    q, k, v = (x.permute(1, 2, 0, 3) for x in (q, k, v))
    out: Tensor = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return out.permute(2, 0, 1, 3).reshape(q.shape[0] * q.shape[2], -1)
