"""The one way to compile: what it does that Numba alone does not."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from scheduler.kernel import cache_directory, kernel

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

SAVE = """
from scheduler import kernel
from scheduler.model import _kernels_order

hold = kernel._locked
def announced(path):
    print("compiled", flush=True)
    return hold(path)

kernel._locked = announced
kernel.warm_up()
"""


@kernel
def _scaled(value: int, factor: int) -> int:
    return value * factor


@kernel
def _caller(value: int) -> int:
    return _scaled(value, 2) + _scaled(value, 3) + _scaled(5, value) + _scaled(value=1, factor=7)


def test_a_callee_is_compiled_once_whatever_constants_it_is_called_with() -> None:
    assert _caller(10) == 20 + 30 + 50 + 7
    assert len(vars(_scaled)["overloads"]) == 1


def test_one_process_at_a_time_saves_to_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLUXBED_CACHE_DIR", str(tmp_path))
    directory = cache_directory.__wrapped__()
    assert directory is not None
    command = [sys.executable, "-c", SAVE]
    with (
        (directory / "lock").open("a") as held,
        subprocess.Popen(command, stdout=subprocess.PIPE) as child,  # noqa: S603 (ourselves)
    ):
        fcntl.flock(held, fcntl.LOCK_EX)
        assert child.stdout is not None
        assert child.stdout.readline() == b"compiled\n"
        time.sleep(0.5)  # time enough to write, were it not for the lock
        assert list(directory.rglob("*.nbi")) == []
        fcntl.flock(held, fcntl.LOCK_UN)
        assert child.wait() == 0
    assert list(directory.rglob("*.nbi"))
