"""The one way to compile: `@kernel` makes a function Numba compiles on first use and caches.

Numba's own cache does not notice that a callee in another file was edited, and fails at import
when it finds no writable place. Here the cache directory is named by a hash of every kernel
source and of where they are, so an edit anywhere starts a fresh one, and without a writable
directory kernels are compiled in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import os
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = [
    "KERNEL_SOURCES",
    "cache_directory",
    "compile_all",
    "interpreted",
    "kernel",
    "lean_kernel",
    "register_warm_up",
    "warm_up",
]

Function = TypeVar("Function", bound="Callable[..., object]")

_ROOT: Final = Path(__file__).resolve().parent.parent
KERNEL_SOURCES: Final = ("scheduler/**/_kernels_*.py", "testbed/**/_kernels_*.py")
_USER: Final = os.getuid() if hasattr(os, "getuid") else 0  # as st_uid is where there are none
_warm_ups: Final[list[Callable[[], None]]] = []


def _sources() -> list[Path]:
    return [path for pattern in KERNEL_SOURCES for path in sorted(_ROOT.glob(pattern))]


def _sources_hash() -> str:
    import numba

    # the place too: Numba keeps code by it, so what is complete for one checkout is not for another
    digest = hashlib.sha256(f"{numba.__version__} {sys.version_info[:2]} {_ROOT}".encode())
    for path in _sources():
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


@cache
def cache_directory() -> Path | None:
    """Return the directory compiled kernels are kept in, or None where none can be written."""
    base = os.environ.get("FLUXBED_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    candidates = [Path(base)] if base else []
    candidates += [Path.home() / ".cache", Path(tempfile.gettempdir()) / f"uid-{_USER}"]
    for candidate in candidates:
        directory = candidate / "fluxbed" / _sources_hash()
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError:
            continue
        if os.access(directory, os.W_OK) and directory.stat().st_uid == _USER:
            return directory
    return None


def kernel(function: Function) -> Function:
    """Compile `function` on first call: nopython, without the GIL, cached where possible.

    The Python source stays reachable as `.py_func`. Integer arithmetic wraps as in C and there
    are no bounds checks unless NUMBA_BOUNDSCHECK=1, so callers size and check arrays first.
    """
    return _compiled(function)


def lean_kernel(function: Function) -> Function:
    """Compile as `kernel` does, for functions that neither make nor return arrays.

    Without reference counts, passing a tuple of tables costs nanoseconds instead of a microsecond.
    """
    return _compiled(function, _nrt=False)


def _compiled(function: Function, **options: bool) -> Function:
    import numba

    directory = cache_directory()
    if directory is not None:
        numba.config.CACHE_DIR = str(directory)
    compiled: Any = numba.njit(nogil=True, cache=directory is not None, **options)(function)
    _take_constants_as_values(compiled)
    if directory is not None:
        _save_one_at_a_time(compiled, directory / "lock")
    same: Function = compiled
    return same


def _take_constants_as_values(compiled: Any) -> None:  # noqa: ANN401 (Numba's)
    """Keep Numba from compiling a callee again for every constant it is called with."""
    from numba.types import unliteral

    template = compiled.get_call_template

    def general(args: Sequence[Any], kws: Mapping[str, Any]) -> Any:  # noqa: ANN401 (Numba's)
        return template(tuple(map(unliteral, args)), {name: unliteral(kws[name]) for name in kws})

    compiled.get_call_template = general


def _save_one_at_a_time(compiled: Any, lock: Path) -> None:  # noqa: ANN401 (Numba's)
    """Let one process at a time save to the cache.

    Two that choose the name of a new file at once would choose the same, and later processes
    would call the code of another signature.
    """
    kept = compiled._cache  # noqa: SLF001 (Numba has no other hook)
    save = kept.save_overload

    def alone(signature: Any, data: Any) -> None:  # noqa: ANN401 (Numba's)
        with _locked(lock):
            save(signature, data)

    kept.save_overload = alone


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the file at `path` alone, where files can be locked."""
    if importlib.util.find_spec("fcntl") is None:
        yield
        return
    import fcntl

    with path.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def interpreted(function: Function) -> Function:
    """Return a kernel's twin in plain Python, which calls the twins of the kernels it calls.

    The same source, so a test can hold one against the other; and the way to run what Numba does
    not compile. Plain functions are returned as they are.
    """
    twins: dict[object, Any] = {}

    def twin(kernel: Any) -> Any:  # noqa: ANN401 (any function)
        if kernel not in twins:
            source = kernel.py_func
            names = dict(source.__globals__)
            twins[kernel] = FunctionType(
                source.__code__, names, source.__name__, source.__defaults__, source.__closure__
            )
            for name in source.__code__.co_names:
                if hasattr(names.get(name), "py_func"):
                    names[name] = twin(names[name])
        return twins[kernel]

    same: Function = twin(function) if hasattr(function, "py_func") else function
    return same


def register_warm_up(function: Callable[[], None]) -> Callable[[], None]:
    """Register a function that calls its module's kernels once, with the types used for real."""
    _warm_ups.append(function)
    return function


def warm_up() -> None:
    """Compile, or load from the cache, every kernel whose module has been imported."""
    for function in _warm_ups:
        function()


def compile_all() -> None:
    """Compile every kernel there is into the cache, once per state of their sources.

    Provisioning calls this, so that the first command of a user does not wait for the compiler.
    One process per processor, and the last registered, the engine's, first: it lasts longest.
    """
    directory = cache_directory()
    if directory is not None and (directory / "complete").exists():
        return
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    _import_all()
    if directory is None or os.cpu_count() == 1:
        warm_up()
    else:
        with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
            list(pool.map(_warm_up_one, reversed(range(len(_warm_ups)))))
    if directory is not None:
        (directory / "complete").touch()


def _import_all() -> None:
    for path in _sources():
        importlib.import_module(".".join(path.relative_to(_ROOT).with_suffix("").parts))


def _warm_up_one(position: int) -> None:
    """Warm up what is `position`-th in the order of registration, in a process of its own."""
    _import_all()
    _warm_ups[position]()
