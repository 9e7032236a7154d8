"""Small Kineto traces for tests: one kernel per collective, one per computation."""

from __future__ import annotations

from typing import Any


def event(cat: str, name: str, ts: Any, dur: Any, tid: Any = 1, **args: Any) -> dict[str, Any]:
    return {
        "ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": ts, "dur": dur,
        "args": args,
    }  # fmt: skip


def step(number: int, ts: int, dur: int) -> dict[str, Any]:
    return event("user_annotation", f"ProfilerStep#{number}", ts, dur)


def compute(ts: int, dur: int, correlation: int, launched: int | None = None) -> list[Any]:
    return [
        event("cuda_runtime", "cudaLaunchKernel", launched or ts - 1, 1, correlation=correlation),
        event("kernel", "gemm", ts, dur, tid=20, stream=20, correlation=correlation),
    ]


def collective(
    name: str, ts: int, dur: int, correlation: int, elements: int = 4, **args: Any
) -> list[Any]:
    about = {
        "Collective name": name,
        "In msg nelems": elements,
        "Out msg nelems": elements,
        "dtype": "Float",
        "Group size": 2,
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1]",
    } | args
    return [
        event("cuda_runtime", "cudaLaunchKernel", ts - 1, 1, correlation=correlation),
        event(
            "kernel", f"ncclDevKernel_{name}", ts, dur, tid=30, stream=30,
            correlation=correlation, **about,
        ),
    ]  # fmt: skip


def trace(rank: int, events: list[Any], world: int = 2, **top: Any) -> dict[str, Any]:
    about = {"backend": "nccl", "rank": rank, "world_size": world}
    return {"schemaVersion": 1, "distributedInfo": about, "traceEvents": events, **top}


def plain(rank: int, *, number: int = 3, late: int = 0) -> dict[str, Any]:
    """Compute 100 us, all_reduce, compute 50 us that waited for it; `late` us slower before it."""
    start = 1000 + 1000 * number
    ready = start + 101 + late
    return trace(
        rank,
        [
            step(number, start, 400),
            *compute(start + 1, 100 + late, 1),
            *collective("allreduce", ready, start + 251 - ready, 2),
            *compute(start + 252, 50, 3, launched=start + 120),
        ],
    )
