"""Training steps made from a model's dimensions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from testbed.synth.models import find_model
from testbed.synth.recipe import Recipe
from testbed.synth.schedules import dimensions_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scheduler.model.workload import Workload
    from testbed.synth.models import Model

__all__ = ["Recipe", "synth"]


def synth(model: str | Mapping[str, Any] | Model, **options: Any) -> Workload:  # noqa: ANN401 (Recipe's)
    """Make the workload of one training step.

    `model` is a preset, a `.toml` file or a mapping of dimensions (`testbed.synth.models.Model`);
    `options` are the fields of `Recipe`; a schedule in a file says how many stages there are.
    Raises `UsageError` for what does not fit together and `InputError` for an unreadable file.

    >>> synth("llama3-8b", tp=4, dp=2, layers=1, mfu=0.5).world
    8
    """
    from testbed.synth.step import Step

    for name, value in dimensions_of(str(options.get("schedule", ""))).items():
        if options.get(name) in (None, 1):  # not chosen: the schedule's file decides
            options[name] = value
    return Step(Recipe(model=find_model(model), **options)).run()
