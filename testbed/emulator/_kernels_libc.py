"""libc for compiled code: clocks, batched socket calls, epoll, and ordered loads and stores.

Functions of libc are named by symbol (`types.ExternalFunction`), never by a ctypes pointer, so
kernels that call them can be cached. Addresses travel as `uintp`, from `array.ctypes.data`; the
caller keeps the array alive. Every size and offset below is the kernel's ABI on 64-bit Linux.
"""

from __future__ import annotations

import platform
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from scheduler.kernel import kernel, register_warm_up

__all__ = [
    "CLOCK_MONOTONIC",
    "EPOLL_EVENT",
    "IOVEC",
    "MMSGHDR",
    "MSG_DONTWAIT",
    "MSG_TRUNC",
    "NS_PER_S",
    "TIMER_ABSTIME",
    "clock_gettime",
    "clock_nanosleep",
    "epoll_wait",
    "errno",
    "load_acquire_i64",
    "load_i32",
    "monotonic_ns",
    "recvmmsg",
    "sendmmsg",
    "sleep_until_ns",
    "store_release_i64",
]

CLOCK_MONOTONIC: Final = 1  # the clock of bpf_ktime_get_ns
TIMER_ABSTIME: Final = 1
MSG_DONTWAIT: Final = 0x40
MSG_TRUNC: Final = 0x20  # msg_len is the frame's own length, however short the buffer
NS_PER_S: Final = 1_000_000_000

MMSGHDR: Final = np.dtype(
    {
        "names": ["name", "namelen", "iov", "iovlen", "control", "controllen", "flags", "len"],
        "formats": ["u8", "u4", "u8", "u8", "u8", "u8", "i4", "u4"],
        "offsets": [0, 8, 16, 24, 32, 40, 48, 56],
        "itemsize": 64,
    }
)
"""`struct mmsghdr`: `name` and `control` are addresses, `len` is what was sent or received."""

IOVEC: Final = np.dtype([("base", "u8"), ("len", "u8")])
"""`struct iovec`."""

_PACKED: Final = platform.machine() in ("x86_64", "AMD64")  # <sys/epoll.h> packs it there only
EPOLL_EVENT: Final = np.dtype(
    {
        "names": ["events", "data"],
        "formats": ["u4", "u8"],
        "offsets": [0, 4 if _PACKED else 8],
        "itemsize": 12 if _PACKED else 16,
    }
)
"""`struct epoll_event`; Python's `select.epoll` puts the file descriptor into `data`."""

_int: Final = types.int32
_address: Final = types.uintp
_errno_location: Final = types.ExternalFunction("__errno_location", _address())

clock_gettime: Final = types.ExternalFunction("clock_gettime", _int(_int, _address))
clock_nanosleep: Final = types.ExternalFunction(
    "clock_nanosleep", _int(_int, _int, _address, _address)
)
sendmmsg: Final = types.ExternalFunction("sendmmsg", _int(_int, _address, types.uint32, _int))
recvmmsg: Final = types.ExternalFunction(
    "recvmmsg", _int(_int, _address, types.uint32, _int, _address)
)
epoll_wait: Final = types.ExternalFunction("epoll_wait", _int(_int, _address, _int, _int))


def _load_i32(_context: Any, address: Any) -> Any:  # noqa: ANN401 (Numba's own, untyped)
    """Return `*(int32 *)address`."""

    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:  # noqa: ANN401
        return builder.load(builder.inttoptr(arguments[0], ir.IntType(32).as_pointer()))

    return types.int32(address), generate


def _load_acquire_i64(_context: Any, address: Any) -> Any:  # noqa: ANN401 (Numba's own, untyped)
    """Return `*(int64 *)address`; later loads stay later."""

    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:  # noqa: ANN401
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.load_atomic(pointer, ordering="acquire", align=8)

    return types.int64(address), generate


def _store_release_i64(_context: Any, address: Any, _value: Any) -> Any:  # noqa: ANN401 (as above)
    """Set `*(int64 *)address = value`; earlier stores stay earlier for readers on other cores."""

    def generate(target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:  # noqa: ANN401
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        builder.store_atomic(arguments[1], pointer, ordering="release", align=8)
        return target.get_dummy_value()

    return types.void(address, types.int64), generate


load_i32: Final[Any] = intrinsic(_load_i32)
load_acquire_i64: Final[Any] = intrinsic(_load_acquire_i64)
store_release_i64: Final[Any] = intrinsic(_store_release_i64)


@kernel
def errno() -> int:
    """Return the calling thread's errno: read it right after the call that failed."""
    return int(load_i32(_errno_location()))


@kernel
def monotonic_ns(timespec: np.ndarray[Any, np.dtype[np.int64]]) -> int:
    """Return CLOCK_MONOTONIC in ns; `timespec` int64[2] is scratch, so nothing is allocated."""
    clock_gettime(CLOCK_MONOTONIC, timespec.ctypes.data)
    return int(timespec[0] * NS_PER_S + timespec[1])


@kernel
def sleep_until_ns(until_ns: int, timespec: np.ndarray[Any, np.dtype[np.int64]]) -> None:
    """Sleep until CLOCK_MONOTONIC shows `until_ns`, at once if it is past; `timespec` as above.

    A signal may end the sleep early: the caller looks at the clock again in any case.
    """
    timespec[0] = until_ns // NS_PER_S
    timespec[1] = until_ns % NS_PER_S
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, timespec.ctypes.data, 0)


@register_warm_up
def _warm_up() -> None:
    timespec = np.zeros(2, np.int64)
    errno()
    sleep_until_ns(monotonic_ns(timespec), timespec)
