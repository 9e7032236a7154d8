"""Experiments on disk: TOML that a person writes, checked whole before anything runs.

    format = "fluxbed-experiment"
    version = 1
    title = "Flux beside RotorNet"
    schedulers = ["flux", "rotor-direct"]

    [synth]                      # or [workload] path = "trace/"
    model = "llama3-8b"
    tp = 4
    dp = 2

    [topology]
    name = "rails"
    delay = ["1us", "1ms"]       # a list is an axis

The points are all combinations of the lists. `[[grids]]`, where there are any, are added to what
stands above them key by key: each is a grid of its own, and one without lists is a single point.
A grid with `mode = "run"` is emulated, one point after another. `[[figures]]` are drawn from the
table. Unknown keys are refused.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from testbed.files.codec import json_schema, read_bytes, refusal
from testbed.files.rundir import sha256_of
from testbed.sweep.point import Point, Value
from topologies.errors import InputError
from topologies.registry import BUILDERS, options_of
from topologies.spelling import meant

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["Experiment", "FigureSpec", "experiment_schema", "read_experiment"]

_OPTIONS: Final = (
    "budget",
    "lookahead",
    "nic_buffer",
    "jitter",
    "jitter_seed",
    "straggler",
    "skew",
    "faults",
)
_FILES: Final = (".toml", ".json")
Count: TypeAlias = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Seed: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Counts: TypeAlias = Count | Annotated[list[Count], Meta(min_length=1)]
Seeds: TypeAlias = Seed | Annotated[list[Seed], Meta(min_length=1)]
Numbers: TypeAlias = float | Annotated[list[float], Meta(min_length=1)]
Spread: TypeAlias = Annotated[float, Meta(ge=0, le=10)]
Spreads: TypeAlias = Spread | Annotated[list[Spread], Meta(min_length=1)]
Truths: TypeAlias = bool | Annotated[list[bool], Meta(min_length=1)]
Words: TypeAlias = str | Annotated[list[str], Meta(min_length=1)]
Settings: TypeAlias = Value | list[Value]


class Synth(Struct, forbid_unknown_fields=True, kw_only=True):
    """A training step made from a model's dimensions; the fields of `testbed.synth.Recipe`."""

    model: Words | UnsetType = UNSET
    tp: Counts | UnsetType = UNSET
    pp: Counts | UnsetType = UNSET
    dp: Counts | UnsetType = UNSET
    ep: Counts | UnsetType = UNSET
    cp: Counts | UnsetType = UNSET
    layers: Counts | UnsetType = UNSET
    seq: Counts | UnsetType = UNSET
    micro_batch: Counts | UnsetType = UNSET
    micro_batches: Counts | UnsetType = UNSET
    gpu: Words | UnsetType = UNSET
    mfu: Numbers | UnsetType = UNSET
    sequence_parallel: Truths | UnsetType = UNSET
    regather: Truths | UnsetType = UNSET
    schedule: Words | UnsetType = UNSET
    virtual_stages: Counts | UnsetType = UNSET
    zero: Seeds | UnsetType = UNSET
    bucket: Words | UnsetType = UNSET
    overlap: Truths | UnsetType = UNSET
    recompute: Words | UnsetType = UNSET
    embeddings: Words | UnsetType = UNSET
    expert_skew: Numbers | UnsetType = UNSET


class Workload(Struct, forbid_unknown_fields=True, kw_only=True):
    """A trace or workload file, its path from where the experiment is; options as `convert`'s."""

    path: Words | UnsetType = UNSET
    importer: str | UnsetType = UNSET
    ranks: Words | UnsetType = UNSET
    window: Seeds | UnsetType = UNSET
    compute_scale: Numbers | UnsetType = UNSET


class Expansion(Struct, forbid_unknown_fields=True, kw_only=True):
    """How collectives become messages; `algorithm` is of every kind that has one of that name."""

    algorithm: Words | UnsetType = UNSET
    collectives: dict[str, Words] | UnsetType = UNSET
    channels: Counts | UnsetType = UNSET
    chunk: Words | UnsetType = UNSET
    split: Count | str | Annotated[list[Count | str], Meta(min_length=1)] | UnsetType = UNSET
    protocol: Words | UnsetType = UNSET
    eager_send: Truths | UnsetType = UNSET
    reduce_bw: Words | UnsetType = UNSET
    scale_up: Words | UnsetType = UNSET
    iteration: Seeds | UnsetType = UNSET


class Grid(Struct, forbid_unknown_fields=True, kw_only=True):
    """Values whose combinations are points. A grid has `synth` or `workload`, not both.

    `iterations` and `skip` default to 12 and 2, emulated to 4 and 1. `phases` > 1 also simulates
    timed programs from that many start phases; `dilation` is for `mode = "run"`. `label` names the
    grid's points in tables and figures. `nic_buffer` is a size or "unlimited". `jitter`, `skew`
    (0.1 is 10 %), `jitter_seed` and `straggler` ("3=1.5", commas between several) are what no plan
    knew. `faults` (`mode = "run"` only) are written as `run --fault` takes them, "; " between
    several, "" for none.
    """

    label: str | UnsetType = UNSET
    mode: Literal["simulate", "run"] | UnsetType = UNSET
    iterations: Annotated[int, Meta(ge=2, le=10_000)] | UnsetType = UNSET
    skip: Count | UnsetType = UNSET
    phases: Annotated[int, Meta(ge=1, le=1024)] | UnsetType = UNSET
    dilation: Annotated[float, Meta(gt=0)] | UnsetType = UNSET
    schedulers: Annotated[list[str], Meta(min_length=1)] | UnsetType = UNSET
    seeds: Seeds | UnsetType = UNSET
    budget: Words | UnsetType = UNSET
    lookahead: Words | UnsetType = UNSET
    nic_buffer: Words | UnsetType = UNSET
    jitter: Spreads | UnsetType = UNSET
    jitter_seed: Seeds | UnsetType = UNSET
    straggler: Words | UnsetType = UNSET
    skew: Spreads | UnsetType = UNSET
    faults: Words | UnsetType = UNSET
    synth: Synth | UnsetType = UNSET
    workload: Workload | UnsetType = UNSET
    topology: dict[str, Settings] | UnsetType = UNSET
    expansion: Expansion | UnsetType = UNSET


class FigureSpec(Struct, forbid_unknown_fields=True, kw_only=True):
    """A figure of the table, as the options of `fluxbed figure` say it; `name` is its file's.

    With `map` it is a map: that column's ratio of the best other to `relative_to`, over x and y.
    """

    name: Annotated[str, Meta(pattern="^[a-z0-9-]+$")]
    x: str
    y: str
    by: str = "scheduler"
    facets: Annotated[list[str], Meta(max_length=2)] = []
    where: dict[str, Annotated[list[str], Meta(min_length=1)]] = {}
    relative_to: str | None = None
    map: str | None = None
    interval: Literal["quartiles", "range"] = "quartiles"


class Experiment(Grid, kw_only=True):
    """An experiment file: what stands above its grids, and what is drawn of the results."""

    format: Literal["fluxbed-experiment"]
    version: Literal[1]
    title: str
    grids: Annotated[list[Grid], Meta(min_length=1)] | UnsetType = UNSET
    figures: list[FigureSpec] = []

    def points(self, where: Path) -> list[Point]:
        """List the points, each once, in the order written: schedulers change fastest.

        `where` is the experiment's file: paths count from its directory. Raises `InputError` for
        what is missing or does not fit together.
        """
        written = msgspec.to_builtins(self)
        base = {key: written[key] for key in Grid.__struct_fields__ if key in written}
        found: dict[str, Point] = {}
        digests: dict[str, str] = {}
        for number, grid in enumerate(written.get("grids", [{}])):
            place = f"{where} grid {number}" if "grids" in written else str(where)
            merged = _merged(base, grid)
            mode = merged.get("mode", "simulate")
            always = _always(merged, mode, place)
            axes = _axes(merged, place)
            for values in itertools.product(*axes.values()):
                settings = dict(zip(axes, values, strict=True)) | always
                point = _point(mode, settings, where, digests)
                found.setdefault(point.id, point)
        return list(found.values())


def _always(grid: Mapping[str, Any], mode: str, place: str) -> dict[str, Value]:
    """Return the settings that are no axes: how much is executed."""
    if "faults" in grid and mode != "run":
        why = "only the emulated fabric bears faults"
        raise InputError("faults are given for a simulation", place, why, 'add mode = "run"')
    iterations, skip = (4, 1) if mode == "run" else (12, 2)
    iterations, skip = grid.get("iterations", iterations), grid.get("skip", skip)
    if skip >= iterations:
        what = f"skip = {skip} leaves nothing of {iterations} iterations"
        why = "the steady state is measured over what is left"
        raise InputError(what, place, why, "skip fewer or execute more")
    always: dict[str, Value] = {"iterations": iterations, "skip": skip}
    if grid.get("phases", 1) > 1:
        always["phases"] = grid["phases"]
    return always | {key: grid[key] for key in ("dilation", "label") if key in grid}


def _merged(above: Mapping[str, Any], grid: Mapping[str, Any]) -> dict[str, Any]:
    """Add `grid` to what stands above it: tables key by key, everything else as a whole."""
    merged = {**above, **grid}
    for key, value in above.items():
        if isinstance(value, dict) and key in grid:
            merged[key] = _merged(value, grid[key])
    return merged


def _axes(grid: Mapping[str, Any], place: str) -> dict[str, list[Value]]:
    """Return the values of every setting, schedulers last, so that neighbours share a workload."""
    for key, example in (
        ("schedulers", 'schedulers = ["flux"]'),
        ("topology", 'topology = {name = "rails"}'),
    ):
        if key not in grid:
            raise InputError(f"{key} is missing", place, "every point has one", f"add {example}")
    if ("synth" in grid) == ("workload" in grid):
        what = "it has both synth and workload" if "synth" in grid else "it has no workload"
        why = "a point replays one workload"
        raise InputError(what, place, why, "write either [synth] or [workload]")
    source, needed = ("synth", "model") if "synth" in grid else ("workload", "path")
    for table, key in ((source, needed), ("topology", "name")):
        if key not in grid[table]:
            why = "nothing says which one"
            raise InputError(f"{table}.{key} is missing", place, why, f"add {key} to [{table}]")
    _check_topology(grid["topology"], place)
    axes: dict[str, list[Value]] = {}
    for table in (source, "topology", "expansion"):
        _flatten(table, grid.get(table, {}), axes)
    for key in _OPTIONS:
        if key in grid:
            _flatten(key, grid[key], axes)
    _flatten("seed", grid.get("seeds", 0), axes)
    _flatten("scheduler", grid["schedulers"], axes)
    if empty := [name for name, values in axes.items() if not values]:
        raise InputError(f"{empty[0]} is empty", place, "an axis has values", "give it some")
    return axes


def _flatten(name: str, value: Any, axes: dict[str, list[Value]]) -> None:  # noqa: ANN401 (decoded)
    if isinstance(value, dict):
        for key, inner in value.items():
            _flatten(f"{name}.{key}", inner, axes)
    else:
        axes[name] = value if isinstance(value, list) else [value]


def _check_topology(options: Mapping[str, Any], place: str) -> None:
    names = options["name"] if isinstance(options["name"], list) else [options["name"]]
    for name in names:
        if name not in BUILDERS:
            if str(name).endswith(_FILES):
                continue
            why = f"the topologies are {', '.join(BUILDERS)}"
            fix = meant(str(name), BUILDERS, "choose one of them")
            raise InputError(f"there is no topology {name!r}", place, why, fix)
        for key in options:
            if key != "name" and key not in (known := options_of(name)):
                why = f"the options of {name} are {', '.join(known)}"
                what = f"topology has no option {key!r}"
                fix = meant(key, known, "choose one of them")
                raise InputError(what, place, why, fix)


def _point(mode: str, settings: dict[str, Value], where: Path, digests: dict[str, str]) -> Point:
    """Make a point; `digests` remembers those of files seen before."""
    found: dict[str, str] = {}
    places: dict[str, str] = {}
    for key in ("workload.path", "topology.name", "synth.model", "scheduler"):
        text = str(settings.get(key, ""))
        name, code, rest = text.partition(".py:")
        name += ".py" if code else ""
        if not (code or name.endswith(_FILES) or (key == "workload.path" and name)):
            continue
        path = where.parent.absolute() / name
        if name not in digests:
            digests[name] = _digest(path, where)
        found[key] = digests[name]
        places[key] = f"{path}{':' if code else ''}{rest}"
    return Point(mode=mode, settings=settings, digests=found, places=places)


def _digest(path: Path, where: Path) -> str:
    """Hash a file, or the files of a directory with their names; `InputError` if it is missing."""
    if path.is_file():
        return sha256_of(path)
    if not path.is_dir():
        why = "a path counts from the directory of the experiment"
        raise InputError(f"{os.fspath(path)!r} is missing", str(where), why, "correct the path")
    whole = hashlib.sha256()
    for file in sorted(each for each in path.rglob("*") if each.is_file()):
        whole.update(f"{file.relative_to(path)} {sha256_of(file)}\n".encode())
    return whole.hexdigest()


def read_experiment(path: Path) -> Experiment:
    """Read an experiment file. Raises `InputError` when it cannot be read or has unknown keys."""
    data, where = read_bytes(path), str(path)
    try:
        return msgspec.toml.decode(data, type=Experiment)
    except msgspec.ValidationError as error:
        raise refusal(error, where, "an experiment") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        why = f"it is not TOML: {error}"
        raise InputError("this is not an experiment", where, why, "correct the file") from error


def experiment_schema() -> bytes:
    """Write the JSON Schema of experiments."""
    return json_schema("An experiment", "experiment", Experiment)
