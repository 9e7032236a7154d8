"""The sentences fluxbed refuses with: what, where, why, and what to do about it.

FluxbedError                 exit 1   the run failed
├── UsageError               exit 2   an option, a unit or a name is wrong
│   └── FabricError                   the fabric cannot exist
├── CheckError               exit 3   a check or the integrity of a run is not met
├── MachineError             exit 4   this machine lacks something
├── InputError               exit 5   a file cannot be used
└── StalledError             exit 6   an operation waits for a circuit that will not come
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "CheckError",
    "FabricError",
    "FluxbedError",
    "InputError",
    "MachineError",
    "StalledError",
    "UsageError",
]


class FluxbedError(Exception):
    """Base of everything fluxbed refuses on purpose; its text is one sentence.

    >>> print(FluxbedError("no messages", "step.json", "every group has one rank", "capture more"))
    step.json: no messages, because every group has one rank: capture more
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, where: str, why: str, fix: str) -> None:
        super().__init__(f"{where}: {what}, because {why}: {fix}")
        self.what = what
        self.where = where
        self.why = why
        self.fix = fix

    def __reduce__(self) -> tuple[type, tuple[str, str, str, str]]:
        return type(self), (self.what, self.where, self.why, self.fix)


class UsageError(FluxbedError):
    """An option, a unit or a name that does not exist or does not fit the others."""

    exit_code = 2


class FabricError(UsageError, ValueError):
    """The fabric cannot exist. Raised on construction, so a `Plane` in hand is always sound."""


class CheckError(FluxbedError):
    """A plan or a finished run breaks a rule of the model."""

    exit_code = 3


class MachineError(FluxbedError):
    """This machine cannot do what was asked, though another could."""

    exit_code = 4


class InputError(FluxbedError):
    """A file that is damaged, incomplete, or not what it says it is."""

    exit_code = 5


class StalledError(FluxbedError):
    """Operations are left that wait for a circuit which will not come."""

    exit_code = 6
