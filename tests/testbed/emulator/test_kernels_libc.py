"""libc from compiled code: Linux's clock, errno of a failed call, structs that fit the ABI."""

from __future__ import annotations

import errno as errno_names
import select
import socket
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from scheduler.kernel import kernel
from testbed.emulator import _kernels_libc as libc

if TYPE_CHECKING:
    from numpy.typing import NDArray


@kernel
def epoll_once(epoll: int, events: NDArray[Any]) -> tuple[int, int]:
    got = libc.epoll_wait(epoll, events.ctypes.data, len(events), 0)
    return got, libc.errno()


@kernel
def send_batch(fd: int, headers: NDArray[Any]) -> int:
    return libc.sendmmsg(fd, headers.ctypes.data, np.uint32(len(headers)), 0)


@kernel
def receive_batch(fd: int, headers: NDArray[Any]) -> int:
    flags = libc.MSG_DONTWAIT | libc.MSG_TRUNC
    return libc.recvmmsg(fd, headers.ctypes.data, np.uint32(len(headers)), flags, 0)


@kernel
def swap_in(cell: NDArray[np.int64], value: int) -> int:
    libc.store_release_i64(cell.ctypes.data, value)
    return libc.load_acquire_i64(cell.ctypes.data)


def headers_over(frames: NDArray[np.uint8]) -> tuple[NDArray[Any], NDArray[Any]]:
    vectors = np.zeros(len(frames), libc.IOVEC)
    headers = np.zeros(len(frames), libc.MMSGHDR)
    vectors["base"] = frames.ctypes.data + frames.strides[0] * np.arange(len(frames))
    vectors["len"] = frames.shape[1]
    headers["iov"] = vectors.ctypes.data + libc.IOVEC.itemsize * np.arange(len(frames))
    headers["iovlen"] = 1
    return vectors, headers


def test_the_clock_is_the_one_python_reads() -> None:
    timespec = np.zeros(2, np.int64)
    before, read, after = time.monotonic_ns(), libc.monotonic_ns(timespec), time.monotonic_ns()
    assert before <= read <= after


def test_a_sleep_never_ends_early_and_a_past_one_returns() -> None:
    timespec = np.zeros(2, np.int64)
    until_ns = time.monotonic_ns() + 2_000_000
    libc.sleep_until_ns(until_ns, timespec)
    assert time.monotonic_ns() >= until_ns
    libc.sleep_until_ns(5, timespec)
    assert timespec.tolist() == [0, 5]


@pytest.mark.parametrize("value", [0, 1, -1, (1 << 63) - 1])
def test_a_released_value_is_what_is_acquired(value: int) -> None:
    cell = np.full(1, 7, np.int64)
    assert swap_in(cell, value) == value == cell[0]


def test_a_failed_call_leaves_its_errno() -> None:
    got, why = epoll_once(-1, np.zeros(1, libc.EPOLL_EVENT))
    assert (got, why) == (-1, errno_names.EBADF)


def test_batches_epoll_and_true_lengths() -> None:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    epoll = select.epoll()
    with near, far, epoll:
        epoll.register(far.fileno(), select.EPOLLIN)
        events = np.zeros(4, libc.EPOLL_EVENT)
        assert epoll_once(epoll.fileno(), events)[0] == 0
        outgoing = np.arange(3 * 100, dtype=np.uint8).reshape(3, 100)
        vectors, headers = headers_over(outgoing)
        assert send_batch(near.fileno(), headers) == 3
        assert headers["len"].tolist() == [100, 100, 100]
        assert epoll_once(epoll.fileno(), events)[0] == 1
        assert events["data"][0] & 0xFFFFFFFF == far.fileno()
        assert events["events"][0] == select.EPOLLIN
        incoming = np.zeros((8, 16), np.uint8)
        vectors, headers = headers_over(incoming)
        assert receive_batch(far.fileno(), headers) == 3
        assert headers["len"].tolist() == [100, 100, 100, 0, 0, 0, 0, 0]
        np.testing.assert_array_equal(incoming[:3], outgoing[:, :16])
        assert receive_batch(far.fileno(), headers) == -1
        assert vectors["len"].tolist() == [16] * 8
