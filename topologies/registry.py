"""Topologies by name, in Mininet's spelling: `rails,nodes=8,planes=2,rate=800Gbps,delay=100us`.

One's own is a function in a file, `my_fabric.py:ring,nodes=8`, that returns a `Fabric`. Its options
are its keyword parameters; one that ends in `_ns` or `_bps` is written without that ending.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any, Final

from topologies.errors import UsageError
from topologies.fabric import Fabric
from topologies.hybrid import hybrid
from topologies.rails import rails
from topologies.rotor import rotor
from topologies.servers import servers
from topologies.single import single
from topologies.spelling import meant
from topologies.torus import torus
from topologies.units import parse_duration_ns, parse_rate_bps
from topologies.user_files import is_in_file, load_attribute

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["BUILDERS", "build_fabric", "describe", "options_of", "parse_spec"]

BUILDERS: Final[Mapping[str, Callable[..., Fabric]]] = {
    builder.__name__: builder for builder in (rails, single, servers, hybrid, rotor, torus)
}
_MOST_DIGITS: Final = 6
_FEWEST_NODES: Final = 2
_TRUTH: Final = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}


def parse_spec(spec: str, what: str) -> tuple[str, dict[str, str]]:
    """Split `name,key=value,...`; `what` names the thing in errors.

    >>> parse_spec("rails,planes=2", "topology")
    ('rails', {'planes': '2'})
    """
    name, *pairs = (part.strip() for part in spec.split(","))
    options: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key or not value:
            why = f"a {what} is written name,key=value,..."
            raise UsageError(f"{pair!r} is not key=value", spec, why, "correct it")
        if key in options:
            why = "each option can be given once"
            raise UsageError(f"{key!r} appears twice", spec, why, "remove one")
        options[key] = value
    return name, options


def _convert(key: str, parameter: inspect.Parameter, value: str, spec: str) -> Any:  # noqa: ANN401 (int, bool or str)
    """Read `value` as its parameter's unit says, else as the type of the parameter's default."""
    if isinstance(parameter.default, str):
        return value
    for ending, parse in (("_ns", parse_duration_ns), ("_bps", parse_rate_bps)):
        if parameter.name.endswith(ending):
            try:
                return parse(value)
            except UsageError as error:
                what = f"{key}={error.what}"
                raise UsageError(what, spec, error.why, error.fix) from error
    if isinstance(parameter.default, bool):
        if value.lower() not in _TRUTH:
            raise UsageError(f"{key}={value!r}", spec, "it must be yes or no", f"write {key}=yes")
        return _TRUTH[value.lower()]
    if not value.isdecimal() or not value.isascii() or len(value) > _MOST_DIGITS:
        why = "it must be a whole number below a million"
        raise UsageError(f"{key}={value!r}", spec, why, f"write {key}=2")
    return int(value)


def _option(parameter: str) -> str:
    """`rate_bps` is written `rate`, `control_ns` is written `control`."""
    return parameter.removesuffix("_ns").removesuffix("_bps")


def _nodes_for(
    world: int, builder: Callable[..., Fabric], arguments: Mapping[str, Any], spec: str
) -> int:
    """Return how many nodes hold `world` ranks: one each, or one per server of `gpus`."""
    gpus = arguments.get("gpus") or getattr(builder, "__kwdefaults__", {}).get("gpus", 1)
    if gpus > 1 and gpus >= world:
        what = f"one server of {gpus} GPUs holds all {world} ranks"
        raise UsageError(what, spec, "a fabric joins two nodes or more", f"add gpus={world // 2}")
    return -(-world // int(gpus))


def build_fabric(spec: str, world: int | None = None) -> Fabric:
    """Build the fabric that `spec` names; `nodes` defaults to what holds `world` ranks.

    Raises `UsageError` for an unknown topology, option or unit, `FabricError` for an impossible
    fabric.

    >>> build_fabric("rails,delay=10us", world=8).planes[0].delay_ns
    10000
    """
    name, options = parse_spec(spec, "topology")
    builder = _builder(name, spec)
    parameters = {_option(p): p for p in inspect.signature(builder).parameters}
    for key in options:
        if key not in parameters:
            why = f"the options of {name} are {', '.join(parameters)}"
            fix = meant(key, parameters, "choose one of them")
            raise UsageError(f"there is no option {key!r}", spec, why, fix)
    described = inspect.signature(builder).parameters
    arguments = {
        parameters[key]: _convert(key, described[parameters[key]], value, spec)
        for key, value in options.items()
    }
    if "nodes" not in arguments and "nodes" in parameters:
        if world is None:
            why = "no workload says how many nodes there are"
            raise UsageError("nodes is missing", spec, why, "add nodes=8")
        arguments["nodes"] = _nodes_for(world, builder, arguments, spec)
    if "nodes" in parameters and arguments["nodes"] < _FEWEST_NODES:
        why = "a fabric joins two nodes or more"
        raise UsageError(f"nodes={arguments['nodes']}", spec, why, "write nodes=2 or more")
    try:
        fabric: object = builder(**arguments)
    except TypeError as error:
        why = f"{name} refuses: {error}"
        raise UsageError("the options do not suffice", spec, why, "give what it needs") from error
    if not isinstance(fabric, Fabric):
        why = f"{name} returns {type(fabric).__name__}"
        raise UsageError(f"{name!r} is no topology", spec, why, "return a fluxbed.Fabric")
    return dataclasses.replace(fabric, name=spec)


def _builder(name: str, spec: str) -> Callable[..., Fabric]:
    if is_in_file(name):
        found: Any = load_attribute(name, spec, inspect.isfunction)
        if not callable(found):
            why = f"it is {type(found).__name__}"
            raise UsageError(f"{name!r} is no function", spec, why, "name a function")
        builder: Callable[..., Fabric] = found
        return builder
    if name not in BUILDERS:
        why = f"the topologies are {', '.join(BUILDERS)}"
        fix = "choose one of them, or write my_fabric.py:function"
        raise UsageError(f"there is no topology {name!r}", spec, why, meant(name, BUILDERS, fix))
    return BUILDERS[name]


def options_of(name: str) -> list[str]:
    """Return the options of a topology, as they are written.

    >>> options_of("single")[:3]
    ['nodes', 'ports', 'rate']
    """
    return [_option(parameter) for parameter in inspect.signature(BUILDERS[name]).parameters]


def describe() -> dict[str, str]:
    """Return one line about each topology, by name."""
    return {name: (inspect.getdoc(b) or "").splitlines()[0] for name, b in BUILDERS.items()}
