"""What a scheduler is: something with a name that turns a problem into a program.

A scheduler of one's own is a subclass of `Planner` (any Python over NumPy arrays) or of `Reactive`
(one compiled function). Its options are the keyword parameters of its `__init__`, written
`my_flux.py:MyFlux,slot=100us` on the command line: a parameter that ends in `_ns`, `_bps` or
`_bytes` is written without that ending and with a unit.

>>> class Nothing(Planner):
...     '''Circuits for nobody.'''
...     name = "nothing"
...     def plan(self, problem):
...         return OrderedProgram.from_entries([[] for _ in problem.fabric.planes])
>>> Nothing().describe()
'Circuits for nobody.'
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from scheduler.model.program import OrderedProgram, ReactiveProgram

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from scheduler.model.problem import Problem
    from scheduler.model.program import Program
    from topologies.fabric import Fabric

__all__ = ["OrderedProgram", "Planner", "Reactive", "Scheduler"]

Option = bool | int | float | str | None


class Scheduler(ABC):
    """Anything that answers a `Problem` with a `Program`.

    `name` and `version` go into plan files; `reference` marks what no hardware could do, so that
    tables set it apart. `params` are the options as given, for plan files and for people.
    """

    name: ClassVar[str]
    version: ClassVar[str] = "1"
    reference: ClassVar[bool] = False

    @property
    def params(self) -> Mapping[str, Option]:
        """The options of this instance, by parameter name; every parameter is an attribute too."""
        parameters = inspect.signature(type(self)).parameters
        return {name: getattr(self, name) for name in parameters}

    def fabric_for(self, fabric: Fabric) -> Fabric:
        """Return the fabric to plan for and to execute on: `fabric` itself, except references."""
        return fabric

    @abstractmethod
    def plan(self, problem: Problem) -> Program:
        """Return a program for `problem`; raises `FluxbedError` where there is none."""

    @classmethod
    def describe(cls) -> str:
        """Return the first line of the class's documentation."""
        return (inspect.getdoc(cls) or "").partition("\n")[0]


class Planner(Scheduler):
    """A scheduler that decides before the workload runs: ordered and timed programs."""


class Reactive(Scheduler):
    """A scheduler that decides while the workload runs, by one compiled function of the state.

    Subclasses return that function from `function`. It is a `@kernel` called for every event with
    (core, now_ns, event, arg), and acts through `send` and `bring_up`: see
    `scheduler.dispatch._kernels_policy` for what it may read and do. It is called for all that
    happens within `gather_ns` of an event when the last of it has happened.
    """

    gather_ns: int = 0

    @abstractmethod
    def function(self) -> Callable[..., int]:
        """Return the compiled policy; importing it may be slow, so it is imported here."""

    def plan(self, problem: Problem) -> Program:
        """Wrap the policy; nothing is decided before the workload runs."""
        del problem
        return ReactiveProgram(
            policy=self.name,
            function=self.function(),
            params={key: str(value) for key, value in self.params.items()},
            gather_ns=self.gather_ns,
        )
