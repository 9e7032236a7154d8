"""Train a small Llama with tensor and data parallelism and record what a replay needs.

Alone it starts all ranks on this machine (gloo on CPUs, NCCL where there are enough GPUs); under
`torchrun` it is one rank of a job. Every rank writes a Kineto trace and an execution trace;
rank 0 adds `meta.json`. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from parallel import (
    ColumnLinear,
    Communicator,
    FlatParameters,
    RMSNorm,
    RowLinear,
    ScatterSum,
    VocabularyCrossEntropy,
    attend,
    rotate,
    rotations,
)
from torch import Tensor, nn
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, schedule

GPUS = {"A100": 312e12, "H100": 989e12}  # dense BF16 FLOP/s from the vendor's data sheets


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The model and the batch of one data-parallel replica."""

    layers: int = 3
    hidden: int = 1024
    heads: int = 16
    kv_heads: int = 4
    feed_forward: int = 2816
    vocabulary: int = 8192
    sequence: int = 2048
    micro_batch: int = 1

    def flops_per_step(self) -> int:
        """Multiplications and additions of one replica's step: matrices and causal attention.

        2 FLOPs a weight and token forwards, 4 backwards; attention's two products likewise, halved
        by the causal mask. Norms, activations and the optimizer are not counted, as is usual.
        """
        width = self.hidden // self.heads
        attention = self.hidden * width * (2 * self.heads + 2 * self.kv_heads)
        weights = self.layers * (attention + 3 * self.hidden * self.feed_forward)
        weights += self.hidden * self.vocabulary
        tokens = self.sequence * self.micro_batch
        return 6 * weights * tokens + 3 * self.layers * 2 * self.sequence * tokens * self.hidden


class Block(nn.Module):
    """RMSNorm, attention, RMSNorm, SwiGLU; tokens of its input and output are split over ranks."""

    def __init__(self, shape: Shape, tp: Communicator, device: torch.device) -> None:
        super().__init__()
        self.tp = tp
        self.width = shape.hidden // shape.heads
        self.heads = shape.heads // tp.size
        self.kv_heads = shape.kv_heads // tp.size
        q, kv, ff = self.heads * self.width, self.kv_heads * self.width, shape.feed_forward
        make = {"device": device, "dtype": torch.bfloat16}
        self.norm_attention = nn.Parameter(torch.ones(shape.hidden, **make))
        self.qkv = nn.Parameter(torch.empty(q + 2 * kv, shape.hidden, **make))
        self.out = nn.Parameter(torch.empty(shape.hidden, q, **make))
        self.norm_mlp = nn.Parameter(torch.ones(shape.hidden, **make))
        self.gate_up = nn.Parameter(torch.empty(2 * ff // tp.size, shape.hidden, **make))
        self.down = nn.Parameter(torch.empty(shape.hidden, ff // tp.size, **make))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """One layer; x is [sequence * batch / tp, hidden]."""
        qkv = ColumnLinear.apply(RMSNorm.apply(x, self.norm_attention), self.qkv, self.tp)
        qkv = qkv.view(cos.shape[0], -1, self.heads + 2 * self.kv_heads, self.width)
        qk, v = qkv.split([self.heads + self.kv_heads, self.kv_heads], dim=2)
        q, k = rotate(qk, cos, sin).split([self.heads, self.kv_heads], dim=2)
        mixed = attend(q, k, v)
        x = x + RowLinear.apply(mixed, self.out, self.tp)
        gate, up = ColumnLinear.apply(RMSNorm.apply(x, self.norm_mlp), self.gate_up, self.tp).chunk(
            2, dim=-1
        )
        return x + RowLinear.apply(nn.functional.silu(gate) * up, self.down, self.tp)


class Llama(nn.Module):
    """This rank's slice of the model."""

    def __init__(self, shape: Shape, tp: Communicator, device: torch.device) -> None:
        super().__init__()
        self.tp = tp
        make = {"device": device, "dtype": torch.bfloat16}
        rows = shape.vocabulary // tp.size
        self.first_token = rows * tp.index
        self.embedding = nn.Parameter(torch.empty(rows, shape.hidden, **make))
        self.blocks = nn.ModuleList(Block(shape, tp, device) for _ in range(shape.layers))
        self.norm = nn.Parameter(torch.ones(shape.hidden, **make))
        self.head = nn.Parameter(torch.empty(rows, shape.hidden, **make))
        self.rotations = rotations(shape.sequence, shape.hidden // shape.heads, device)
        generator = torch.Generator(device).manual_seed(1 + tp.index)
        for parameter in self.parameters():
            if parameter.dim() == 2:  # noqa: PLR2004 (matrices; norms start at one)
                nn.init.normal_(parameter, std=0.02, generator=generator)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy; tokens and targets are [sequence * batch], equal on all TP ranks."""
        local = tokens - self.first_token
        here = (local >= 0) & (local < self.embedding.shape[0])
        rows = nn.functional.embedding(local.where(here, 0), self.embedding)
        x = ScatterSum.apply(rows * here.unsqueeze(-1), self.tp)
        for block in self.blocks:
            x = block(x, *self.rotations)
        logits = ColumnLinear.apply(RMSNorm.apply(x, self.norm), self.head, self.tp)
        return VocabularyCrossEntropy.apply(logits, targets, self.tp)


class Trainer:
    """Model, flat parameters and optimizer of one rank."""

    def __init__(self, options: argparse.Namespace, shape: Shape, device: torch.device) -> None:
        rank, tp, dp = dist.get_rank(), options.tp, options.dp
        members = [("tp", [[r * tp + i for i in range(tp)] for r in range(dp)])]
        members += [("dp", [[i + r * tp for r in range(dp)] for i in range(tp)])]
        mine: dict[str, Communicator] = {}
        for desc, lists in members:  # every rank creates every group, in the same order
            for ranks in lists:
                group = dist.new_group(ranks, group_desc=desc)
                if rank in ranks:
                    mine[desc] = Communicator(ranks, group, desc)
        self.tp, self.dp = mine["tp"], mine["dp"]
        self.shape, self.device = shape, device
        self.model = Llama(shape, self.tp, device)
        self.flat = FlatParameters(self.model.parameters(), self.dp, options.bucket_bytes)
        self.norms = [p for p in self.model.parameters() if p.dim() == 1]
        self.optimizer = torch.optim.AdamW([self.flat.weights], lr=3e-4, fused=True)

    def waited_s(self) -> float:
        """Return the time spent waiting for collectives so far."""
        return self.tp.waited_s + self.dp.waited_s

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Counting up from random numbers: something a model can learn in a few steps."""
        shape = self.shape
        generator = torch.Generator().manual_seed(1000 * step + self.dp.index)
        first = torch.randint(shape.vocabulary, (1, shape.micro_batch), generator=generator)
        ids = (first + torch.arange(shape.sequence + 1)[:, None]) % shape.vocabulary
        ids = ids.to(self.device)
        return ids[:-1].flatten(), ids[1:].flatten()

    def step(self, number: int) -> Tensor:
        """Forward, backward with overlapped gradient all_reduces, clip, update."""
        self.flat.zero()
        loss: Tensor = self.model(*self.batch(number))
        (loss / self.dp.size).backward()
        self.flat.finish()
        # each TP rank saw its part of the sequence only: add up what the norms learnt from it
        grads = [p.grad for p in self.norms if p.grad is not None]
        total = self.tp.start("all_reduce", torch.cat(grads)).wait()
        torch._foreach_copy_(grads, list(total.split(self.shape.hidden)))
        squares = self.flat.gradients.float().square().sum()
        squares = self.tp.start("all_reduce", squares.unsqueeze(0)).wait()
        self.flat.gradients.mul_((1.0 / (squares.sqrt() + 1e-6)).clamp(max=1.0).bfloat16())
        self.optimizer.step()
        return loss.detach()


def compress(path: Path) -> None:
    """Replace a trace by its gzip, with no time stamp in it: equal traces make equal files."""
    with (
        path.open("rb") as source,
        Path(f"{path}.gz").open("wb") as target,
        gzip.GzipFile("", "wb", 9, target, mtime=0) as packed,
    ):
        shutil.copyfileobj(source, packed)
    path.unlink()


def write_meta(options: argparse.Namespace, shape: Shape, compute_s: list[float]) -> None:
    """Say what was run, and on CPUs how the last step's compute time relates to a GPU's.

    `compute_scale` is roofline time over captured time: what to multiply captured compute by to
    replay the step as fast as `--gpu` at `--mfu` would compute it. On GPUs it is 1: their own times
    are in the trace, and the host's clock says little about them.
    """
    flops = shape.flops_per_step() // options.tp
    roofline_s = flops / (GPUS[options.gpu] * options.mfu)
    captured_s = sum(compute_s) / len(compute_s)
    on_gpus = dist.get_backend() == "nccl"
    scale = 1.0 if on_gpus else float(f"{roofline_s / captured_s:.6g}")
    meta = {
        "model": asdict(shape),
        "tp": options.tp,
        "dp": options.dp,
        "dtype": "bfloat16",
        "bucket_bytes": options.bucket_bytes,
        "backend": dist.get_backend(),
        "torch": torch.__version__,
        "steps_recorded": options.record,
        "flops_per_rank_and_step": flops,
        "captured_compute_ns": None if on_gpus else round(captured_s * 1e9),
        "captured_compute_ns_by_rank": None if on_gpus else [round(s * 1e9) for s in compute_s],
        "gpu": options.gpu,
        "gpu_peak_flops": round(GPUS[options.gpu]),
        "mfu": options.mfu,
        "roofline_compute_ns": round(roofline_s * 1e9),
        "compute_scale": scale,
    }
    (options.out / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")
    print(
        f"{options.gpu} at {options.mfu:.0%} of its peak: --compute-scale {meta['compute_scale']}"
    )


def run(rank: int, options: argparse.Namespace) -> None:
    """Be one rank."""
    os.environ.setdefault("RANK", str(rank))
    os.environ.setdefault("WORLD_SIZE", str(options.tp * options.dp))
    local = int(os.environ.get("LOCAL_RANK", rank))
    beside = int(os.environ.get("LOCAL_WORLD_SIZE", options.tp * options.dp))
    gpus = torch.cuda.device_count() >= beside
    device = torch.device("cuda", local) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if gpus else "gloo")
    if dist.get_world_size() != options.tp * options.dp:
        raise SystemExit(f"{dist.get_world_size()} ranks, but tp x dp = {options.tp * options.dp}")
    rank = dist.get_rank()
    shape = Shape(**{name: getattr(options, name) for name in asdict(Shape())})
    trainer = Trainer(options, shape, device)
    options.out.mkdir(parents=True, exist_ok=True)
    kineto, et = (options.out / f"{kind}_rank{rank}.json" for kind in ("kineto", "et"))
    observer = ExecutionTraceObserver()
    observer.register_callback(str(et))
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * gpus
    last = options.skip + options.record
    with profile(
        activities=activities,
        schedule=schedule(wait=options.skip, warmup=1, active=options.record, repeat=1),
        record_shapes=True,
        on_trace_ready=lambda p: p.export_chrome_trace(str(kineto)),
    ) as profiler:
        for number in range(last + 1):
            if number == last:  # one step says it all: execution traces are large
                observer.start()
            began, waited = time.perf_counter(), trainer.waited_s()
            loss = trainer.step(number)
            took = time.perf_counter() - began
            compute_s = took - (trainer.waited_s() - waited)
            if number == last:
                observer.stop()
            if rank == 0:
                print(f"step {number}: loss {loss.item():.4f}, {took:.2f} s", flush=True)
            profiler.step()
    observer.unregister_callback()
    compress(kineto)
    compress(et)
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, compute_s)
    if rank == 0:
        write_meta(options, shape, every)
    dist.destroy_process_group()


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="directory for the traces")
    parser.add_argument("--tp", type=int, default=4, help="tensor-parallel ranks")
    parser.add_argument("--dp", type=int, default=2, help="data-parallel replicas")
    parser.add_argument("--skip", type=int, default=1, help="steps before the recorded ones")
    parser.add_argument("--record", type=int, default=2, help="recorded steps")
    parser.add_argument("--bucket-bytes", type=int, default=6_000_000)
    parser.add_argument("--gpu", choices=GPUS, default="A100")
    parser.add_argument("--mfu", type=float, default=0.4, help="fraction of the GPU's peak")
    for name, value in asdict(Shape()).items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=value)
    return parser.parse_args()


def main() -> None:
    """Start all ranks here, or be one of a job that `torchrun` started."""
    options = arguments()
    if "RANK" in os.environ:
        run(int(os.environ["RANK"]), options)
        return
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    torch.multiprocessing.spawn(run, (options,), nprocs=options.tp * options.dp)


if __name__ == "__main__":
    main()
