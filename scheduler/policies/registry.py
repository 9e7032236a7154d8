"""Schedulers by name: `flux`, `rotor-direct,slot=100us`, `my_flux.py:MyFlux,key=value`.

A name is one of ours, or one that an installed package offers as an entry point in the group
`fluxbed.schedulers`. The ending `-tuned` on any scheduler that plans a timed program and has a slot
and a phase picks those two from a grid, for this workload and fabric.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeGuard

from scheduler.policies.base import Scheduler
from topologies.errors import UsageError
from topologies.registry import parse_spec
from topologies.spelling import meant
from topologies.units import parse_bytes, parse_duration_ns, parse_rate_bps
from topologies.user_files import is_in_file, load_attribute

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["BUILT_IN", "ENTRY_POINTS", "Explanation", "describe", "explain", "find"]

ENTRY_POINTS: Final = "fluxbed.schedulers"
BUILT_IN: Final[Mapping[str, str]] = {
    "flux": "scheduler.policies.flux:Flux",
    "flux-exact": "scheduler.policies.exact:FluxExact",
    "flux-timestamped": "scheduler.policies.timestamped:FluxTimestamped",
    "static": "scheduler.policies.static:Static",
    "rotor-direct": "scheduler.policies.rotor:RotorDirect",
    "rotor-vlb": "scheduler.policies.rotor:RotorVlb",
    "rotorlb": "scheduler.policies.rotor:RotorLb",
    "greedy": "scheduler.policies.greedy:Greedy",
    "bvn": "scheduler.policies.bvn:Bvn",
    "vermilion": "scheduler.policies.vermilion:Vermilion",
    "solstice": "scheduler.policies.solstice:Solstice",
    "spectra": "scheduler.policies.spectra:Spectra",
    "spectra-aggregate": "scheduler.policies.spectra:SpectraAggregate",
    "sunflow": "scheduler.policies.sunflow:Sunflow",
    "prefetch": "scheduler.policies.prefetch:Prefetch",
    "packet-ideal": "scheduler.policies.packet:PacketIdeal",
    "packet-fair": "scheduler.policies.packet_fair:PacketFair",
}
_TUNED: Final = "-tuned"
_UNITS: Final[Mapping[str, Callable[[str], int]]] = {
    "_ns": parse_duration_ns,
    "_bps": parse_rate_bps,
    "_bytes": parse_bytes,
}
_TRUTH: Final = {"yes": True, "true": True, "no": False, "false": False}


def find(spec: str) -> Scheduler:
    """Return the scheduler that `spec` names, with its options set.

    Raises `UsageError` for an unknown name, file, class or option, or a value that does not fit.

    >>> find("rotor-direct,slot=100us").params["slot_ns"]
    100000
    """
    name, written = parse_spec(spec, "scheduler")
    tuned = name.endswith(_TUNED) and ":" not in name
    cls = _class(name.removesuffix(_TUNED) if tuned else name, spec)
    options = _options(cls, written, spec)
    if tuned:
        from scheduler.policies.tuned import Tuned

        return Tuned(cls, options, spec)
    try:
        return cls(**options)
    except TypeError as error:
        why = f"{cls.__name__} refuses: {error}"
        raise UsageError("the options do not suffice", spec, why, "give what it needs") from error


def describe() -> dict[str, str]:
    """Return one line about each scheduler, by name; a broken entry point says what broke."""
    lines: dict[str, str] = {}
    for name in _names():
        try:
            cls = _class(name, name)
        except UsageError as error:
            lines[name] = f"cannot be used: {error.why}"
            continue
        lines[name] = cls.describe()
        if _tunable(cls):
            lines[name + _TUNED] = f"{name} with the slot and phase that suit the workload best"
    return lines


class Explanation(NamedTuple):
    """A scheduler in full: what it is, where it is from and what it does; options and defaults."""

    name: str
    text: str
    options: dict[str, str]


def explain(spec: str) -> Explanation:
    """Return all that is documented of the scheduler that `spec` names; raises `UsageError`.

    >>> explain("rotor-direct").options
    {'slot': 'its own choice', 'phase': '0 ns'}
    """
    name = parse_spec(spec, "scheduler")[0]
    cls = _class(name.removesuffix(_TUNED) if ".py:" not in name else name, spec)
    module = inspect.getmodule(cls)
    texts = [inspect.getdoc(cls), None if module is None else inspect.getdoc(module)]
    if name.endswith(_TUNED) and ".py:" not in name:
        from scheduler.policies.tuned import Tuned

        texts.insert(0, inspect.getdoc(Tuned))
    options = {
        _spelling(key): _told(key, parameter.default)
        for key, parameter in inspect.signature(cls).parameters.items()
    }
    return Explanation(name, "\n\n".join(text for text in texts if text), options)


def _told(parameter: str, default: object) -> str:
    """Write an option's default as one would write it, with its unit."""
    if default is inspect.Parameter.empty:
        return "has to be given"
    if default is None:
        return "its own choice"
    if isinstance(default, bool):
        return "yes" if default else "no"
    unit = {"_ns": " ns", "_bps": " bps", "_bytes": " B"}
    return f"{default}{next((u for end, u in unit.items() if parameter.endswith(end)), '')}"


def _names() -> list[str]:
    found = importlib.metadata.entry_points(group=ENTRY_POINTS)
    return [*BUILT_IN, *sorted({point.name for point in found} - BUILT_IN.keys())]


def _tunable(cls: type[Scheduler]) -> bool:
    return {"slot_ns", "phase_ns"} <= inspect.signature(cls).parameters.keys()


def _class(name: str, spec: str) -> type[Scheduler]:
    if is_in_file(name):
        found: Any = load_attribute(name, spec, _is_scheduler)
        return _checked(found, name.rpartition(":")[2], spec)
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        found = getattr(importlib.import_module(module), attribute)
        return _checked(found, name, spec)
    points = [p for p in importlib.metadata.entry_points(group=ENTRY_POINTS) if p.name == name]
    if not points:
        what = f"there is no scheduler {name!r}"
        why = f"the schedulers are {', '.join(_names())}"
        fix = "choose one of them, or write my_flux.py:Class"
        raise UsageError(what, spec, why, meant(name, _names(), fix))
    try:
        found = points[0].load()
    except (ImportError, AttributeError) as error:
        why = f"its package {points[0].value!r} does not load: {error}"
        raise UsageError(f"{name!r} cannot be used", spec, why, "repair that package") from error
    return _checked(found, name, spec)


def _is_scheduler(found: object) -> TypeGuard[type[Scheduler]]:
    return inspect.isclass(found) and issubclass(found, Scheduler)


def _checked(found: object, name: str, spec: str) -> type[Scheduler]:
    if not _is_scheduler(found):
        why = "it is not a subclass of fluxbed.Planner or fluxbed.Reactive"
        raise UsageError(f"{name!r} is not a scheduler", spec, why, "derive it from one of them")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        why = f"it does not define {missing}"
        raise UsageError(f"{name!r} is not complete", spec, why, f"define {missing}")
    if not hasattr(found, "name"):
        found.name = name
    return found


def _options(cls: type[Scheduler], written: Mapping[str, str], spec: str) -> dict[str, Any]:
    parameters = {_spelling(p): p for p in inspect.signature(cls).parameters}
    options: dict[str, Any] = {}
    for key, value in written.items():
        if key not in parameters:
            known = f"its options are {', '.join(parameters)}" if parameters else "it has none"
            fix = meant(key, parameters, "correct the spelling")
            raise UsageError(f"there is no option {key!r}", spec, known, fix)
        default = inspect.signature(cls).parameters[parameters[key]].default
        options[parameters[key]] = _convert(key, parameters[key], default, value, spec)
    return options


def _spelling(parameter: str) -> str:
    for ending in _UNITS:
        parameter = parameter.removesuffix(ending)
    return parameter


def _convert(key: str, parameter: str, default: object, value: str, spec: str) -> Any:  # noqa: ANN401 (what the parameter takes)
    """Read `value` as its parameter's unit says, else as the type of the parameter's default."""
    for ending, parse in _UNITS.items():
        if parameter.endswith(ending):
            return parse(value)
    if isinstance(default, bool):
        if value.lower() not in _TRUTH:
            raise UsageError(f"{key}={value!r}", spec, "it must be yes or no", f"write {key}=yes")
        return _TRUTH[value.lower()]
    if isinstance(default, int | float):
        try:
            return type(default)(value)
        except ValueError as error:
            kind = "a whole number" if isinstance(default, int) else "a number"
            why = f"it is {kind}"
            raise UsageError(f"{key}={value!r}", spec, why, f"write {key}={default}") from error
    return value
