"""Reactive policies as compiled functions of one type, so that one dispatcher serves them all."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scheduler.kernel import cache_directory
from scheduler.model.program import ReactiveProgram
from topologies.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from scheduler.model.program import Program

__all__ = ["compiled_policy"]


@cache
def _signature() -> Any:  # noqa: ANN401 (Numba ships no types)
    from numba import types

    from scheduler.dispatch._kernels_columns import Core

    line, table = types.int64[::1], types.int64[:, ::1]
    kinds = {
        "rule": line,
        "numbers": line,
        "granted": line,
        "cursor": line,
    }
    core = types.NamedTuple([kinds.get(name, table) for name in Core._fields], Core)
    return types.int64(core, types.int64, types.int64, types.int64)


@cache
def _compile(function: Callable[..., int], where: str) -> Callable[..., int]:
    import numba

    source = getattr(function, "py_func", function)
    keep = cache_directory() is not None and Path(source.__code__.co_filename).is_file()
    try:
        compiled: Callable[..., int] = numba.cfunc(_signature(), cache=keep)(source)
    except numba.core.errors.NumbaError as error:
        why = f"Numba cannot compile it: {str(error).strip().splitlines()[-1]}"
        fix = "use what Numba supports, or simulate it uncompiled"
        raise UsageError("the policy is not compilable", where, why, fix) from error
    return compiled


def compiled_policy(program: Program) -> Callable[..., int]:
    """Return a program's policy as a first-class compiled function.

    Programs that are not reactive get one that does nothing, so that the dispatcher's type is the
    same. Raises `UsageError` if the policy does not compile.
    """
    if isinstance(program, ReactiveProgram):
        return _compile(program.function, program.policy)
    from scheduler.dispatch._kernels_policy import idle

    return _compile(idle, "idle")
