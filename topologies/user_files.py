"""A user's Python file, named on the command line as `file.py:attribute`, and what it holds."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from topologies.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["is_in_file", "load_attribute"]

_MARK: Final = ".py:"
_ERRORS: Final = (
    ArithmeticError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)


def is_in_file(name: str) -> bool:
    """Tell `my_flux.py:MyFlux` from a name of ours."""
    return _MARK in name


def load_attribute(name: str, spec: str, suits: Callable[[Any], bool]) -> Any:  # noqa: ANN401 (theirs)
    """Run the file in `name` and return the attribute; `spec` is what the user wrote.

    `suits` picks what is listed when there is no such attribute. Raises `UsageError` when the file
    is missing, does not run, or has no such attribute.
    """
    file_name, _, attribute = name.rpartition(":")
    path = Path(file_name)
    if not path.is_file():
        why = "no such file can be read"
        raise UsageError(f"{file_name!r} is missing", spec, why, "correct the path")
    module_name = f"_fluxbed_user_{path.stem}"
    module_spec = importlib.util.spec_from_file_location(module_name, path.resolve())
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_name] = module  # dataclasses and pickling look it up there
    try:
        module_spec.loader.exec_module(module)
    except _ERRORS as error:
        del sys.modules[module_name]
        why = f"running it raises {type(error).__name__}: {error}"
        raise UsageError(f"{file_name!r} cannot be used", spec, why, "correct the file") from error
    if not hasattr(module, attribute):
        own = [
            key
            for key, value in vars(module).items()
            if getattr(value, "__module__", None) == module_name and suits(value)
        ]
        what, why = f"{file_name!r} has no {attribute!r}", f"it has {', '.join(own) or 'none'}"
        raise UsageError(what, spec, why, "name one of these")
    return getattr(module, attribute)
