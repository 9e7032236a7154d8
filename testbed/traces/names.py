"""What traces call collectives, data types and communication kernels, and what we call them."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

__all__ = [
    "DTYPE_BYTES",
    "NOT_TRAFFIC",
    "collective_kind",
    "dtype_bytes",
    "is_communication",
    "kernel_kind",
]

_NAMES: Final = 4096  # a trace repeats few names often

NOT_TRAFFIC: Final = frozenset({"wait", "init", "nop", "coalesced"})

_KINDS: Final = {
    "allreduce": "all_reduce",
    "allreducecoalesced": "all_reduce",
    "allreducesparse": "all_reduce",
    "allgather": "all_gather",
    "allgatherbase": "all_gather",
    "allgatherintotensor": "all_gather",
    "allgatherintotensorcoalesced": "all_gather",
    "allgatherintotensorout": "all_gather",
    "allgathercoalesced": "all_gather",
    "allgatherv": "all_gather",
    "reducescatter": "reduce_scatter",
    "reducescatterbase": "reduce_scatter",
    "reducescattertensor": "reduce_scatter",
    "reducescattertensorcoalesced": "reduce_scatter",
    "reducescatterv": "reduce_scatter",
    "reducescatterblock": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "alltoallbase": "all_to_all",
    "alltoallsingle": "all_to_all",
    "broadcast": "broadcast",
    "broadcastoop": "broadcast",
    "bcast": "broadcast",
    "reduce": "reduce",
    "reduceoop": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "send": "send",
    "recv": "recv",
    "recvanysource": "recv",
    "isend": "send",
    "irecv": "recv",
}

DTYPE_BYTES: Final = {
    **dict.fromkeys(("byte", "char", "bool", "uchar", "unsigned char", "signed char"), 1),
    **dict.fromkeys(("int8", "uint8", "i8", "u8", "float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("float8_e4m3fnuz", "float8_e5m2fnuz", "fp8"), 1),
    **dict.fromkeys(("short", "short int", "half", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("float16", "f16", "bf16"), 2),
    **dict.fromkeys(("int", "float", "int32", "uint32", "float32", "i32", "u32", "f32"), 4),
    **dict.fromkeys(("long", "long int", "double", "int64", "uint64", "float64"), 8),
    **dict.fromkeys(("i64", "u64", "f64", "complexfloat", "complex64"), 8),
    **dict.fromkeys(("complexdouble", "complex128"), 16),
}

_COMMUNICATION: Final = re.compile(
    r"nccl|rccl|hccl|dpsk::ep::(?:inter|intra)node::(?:dispatch|combine|notify)|deep_ep"
    r"|multimem_all_(?:reduce|gather)|(?:one|two)_shot_all_reduce|cross_device_reduce",
    re.IGNORECASE,
)


_KERNEL_KIND: Final = re.compile(
    r"(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce)(?:_|\b)", re.IGNORECASE
)


@lru_cache(_NAMES)
def kernel_kind(kernel: str) -> str | None:
    """Return what a communication kernel's name says it does; None where it does not.

    >>> kernel_kind("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)"), kernel_kind("ncclX")
    ('all_reduce', None)
    """
    match = _KERNEL_KIND.search(kernel)
    return None if match is None else collective_kind(match[1])


@lru_cache(_NAMES)
def collective_kind(name: str) -> str | None:
    """Return our name of a collective; "send" or "recv" for half a send_recv; None if unknown.

    >>> [collective_kind(n) for n in ("nccl:_all_gather_base", "c10d::alltoall_base_", "AllReduce")]
    ['all_gather', 'all_to_all', 'all_reduce']
    """
    last = name.rpartition(":")[2].strip("_").lower()
    return _KINDS.get(last.replace("_", "").partition(" ")[0])


def dtype_bytes(name: str) -> int | None:
    """Return the bytes of one element of a type as any trace spells it; None if unknown.

    >>> [dtype_bytes(n) for n in ("c10::BFloat16", "Float", "long int", "torch.int64", "?")]
    [2, 4, 8, 8, None]
    """
    text = name.lower().removeprefix("c10::").removeprefix("torch.")
    return DTYPE_BYTES.get(text, 1 if text.startswith("float8") else None)


@lru_cache(_NAMES)
def is_communication(kernel: str) -> bool:
    """Tell whether a GPU kernel moves data between GPUs."""
    return _COMMUNICATION.search(kernel) is not None
