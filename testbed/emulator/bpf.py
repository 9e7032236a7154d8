"""bpf(2): array maps that are also memory of ours, and programs the kernel has verified."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform
import struct
from typing import Final

from topologies import MachineError

__all__ = ["MappedArray", "load_classifier"]

_SYSCALL: Final = {"x86_64": 321, "aarch64": 280}
_MAP_CREATE, _PROG_LOAD = 0, 5
_MAP_TYPE_ARRAY: Final = 2
_PROG_TYPE_SCHED_CLS: Final = 3
_F_MMAPABLE: Final = 1 << 10  # kernel >= 5.5
_ATTR_BYTES: Final = 144
_LOG_BYTES: Final = 1 << 18
_NAME_BYTES: Final = 16


def _bpf(command: int, attributes: bytes) -> int:
    machine = platform.machine()
    if machine not in _SYSCALL:
        why = f"the number of bpf(2) is known for {' and '.join(_SYSCALL)}, not for {machine}"
        raise MachineError("no eBPF program can be loaded", "bpf", why, "use one of those machines")
    libc = ctypes.CDLL(None, use_errno=True)
    block = ctypes.create_string_buffer(attributes, max(_ATTR_BYTES, len(attributes)))
    result = int(libc.syscall(_SYSCALL[machine], command, block, len(block)))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"bpf: {os.strerror(number)}")
    return result


class MappedArray:
    """A one-value array map of `size` bytes, shared with the kernel as plain memory.

    The map lives until it is closed here, every program that uses it is gone, and the last
    NumPy array over `memory` is gone too. Raises `OSError` where the kernel refuses.
    """

    def __init__(self, size: int, name: str) -> None:
        label = name.encode().ljust(_NAME_BYTES, b"\0")
        attributes = struct.pack("=6I", _MAP_TYPE_ARRAY, 4, size, 1, _F_MMAPABLE, 0)
        self.fd = _bpf(_MAP_CREATE, attributes + bytes(4) + label)
        self.size = size
        try:
            self.memory = mmap.mmap(self.fd, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
        except BaseException:
            os.close(self.fd)
            raise

    def close(self) -> None:
        """Give up the file descriptor and the memory; with arrays over it, that goes with them."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        with contextlib.suppress(BufferError):
            self.memory.close()


def load_classifier(code: bytes, name: str) -> int:
    """Load a tc classifier and return its file descriptor.

    Raises `MachineError` with the verifier's last line where the kernel refuses it.
    """
    instructions = ctypes.create_string_buffer(code, len(code))
    license_text = ctypes.create_string_buffer(b"GPL")  # the helpers we call ask for it
    log = ctypes.create_string_buffer(_LOG_BYTES)

    def attributes(log_level: int) -> bytes:
        head = struct.pack(
            "=IIQQ",
            _PROG_TYPE_SCHED_CLS,
            len(code) // 8,
            ctypes.addressof(instructions),
            ctypes.addressof(license_text),
        )
        size, where = (_LOG_BYTES, ctypes.addressof(log)) if log_level else (0, 0)
        tail = struct.pack("=IIQII", log_level, size, where, 0, 0)
        return head + tail + name.encode().ljust(_NAME_BYTES, b"\0")

    try:
        return _bpf(_PROG_LOAD, attributes(0))
    except OSError as refused:
        try:
            return _bpf(_PROG_LOAD, attributes(1))  # again, only to hear why
        except OSError:
            last = (log.value.decode("ascii", "replace").strip().splitlines() or [str(refused)])[-1]
            fix = "use a kernel of 5.10 or later as root, and see fluxbed doctor"
            raise MachineError(
                "the crossbar program was refused", "bpf", f"the kernel says {last!r}", fix
            ) from refused
