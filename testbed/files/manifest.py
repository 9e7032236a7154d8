"""manifest.json: what a run was, how it ended, and the hashes of its files."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from testbed.files.codec import decode_json, json_schema
from testbed.files.fabric import FabricRecord, Natural
from testbed.files.plan import ExpansionRecord
from testbed.files.summary import FaultEffect, Status
from topologies.errors import FluxbedError, InputError

if TYPE_CHECKING:
    from scheduler.model.expansion import Expansion
    from scheduler.model.perturbation import Perturbation
    from topologies import Fabric

__all__ = [
    "FORMAT",
    "VERSION",
    "ErrorRecord",
    "Injection",
    "JitterRecord",
    "Manifest",
    "decode_manifest",
    "manifest_schema",
    "versions",
]

FORMAT: Final = "fluxbed-run"
VERSION: Final = 1

Number: TypeAlias = int | float | None
_PACKAGES: Final = ("numpy", "numba", "polars", "msgspec", "mininet", "pyroute2", "scapy")


class ErrorRecord(Struct, kw_only=True):
    """Why a run did not end well: the sentence's parts and the exit code."""

    exit: int
    what: str
    where: str
    why: str
    fix: str

    @classmethod
    def of(cls, error: BaseException) -> ErrorRecord:
        """Describe what ended the run."""
        if isinstance(error, FluxbedError):
            return cls(
                exit=error.exit_code,
                what=error.what,
                where=error.where,
                why=error.why,
                fix=error.fix,
            )
        if isinstance(error, KeyboardInterrupt):
            why = "it was asked to stop"
            return cls(exit=130, what="interrupted", where="run", why=why, fix="run it again")
        why = f"{type(error).__name__}: {error}"
        fix = "report this with the run directory"
        return cls(exit=1, what="an internal error", where="fluxbed", why=why, fix=fix)


class Injection(Struct, kw_only=True):
    """How bytes enter the network cards, and the window of the paced accounts.

    `buffer_bytes` is what each card holds of its own messages, null without end
    (`scheduler.model.admission`).
    """

    kind: Literal["eager", "paced"] = "eager"
    feedback_ns: Natural = 2_000
    mtu_bytes: Natural = 4_096
    buffer_bytes: Annotated[int, Meta(ge=1)] | None = None


class JitterRecord(Struct, kw_only=True):
    """How durations and sizes differed from what was planned; see `Perturbation`, field by field.

    `stragglers` are factors by rank.
    """

    spread: Annotated[float, Meta(ge=0)] = 0.0
    seed: Natural = 0
    stragglers: dict[str, Annotated[float, Meta(gt=0)]] = {}
    skew: Annotated[float, Meta(ge=0)] = 0.0

    @classmethod
    def of(cls, perturbation: Perturbation | None) -> JitterRecord | None:
        """Describe a perturbation; None where there is none."""
        if not perturbation:
            return None
        return cls(
            spread=perturbation.jitter,
            seed=perturbation.seed,
            stragglers={str(rank): factor for rank, factor in perturbation.stragglers},
            skew=perturbation.skew,
        )

    def perturbation(self, where: str) -> Perturbation:
        """Return what was described; raises `InputError` for a rank that is no number."""
        from scheduler.model.perturbation import Perturbation

        for rank in self.stragglers:
            if not (rank.isascii() and rank.isdecimal()):
                why = "ranks are numbers"
                raise InputError(f"the straggler is {rank!r}", where, why, "correct it")
        return Perturbation(
            jitter=self.spread,
            seed=self.seed,
            stragglers=tuple((int(rank), factor) for rank, factor in self.stragglers.items()),
            skew=self.skew,
        )


class Manifest(Struct, kw_only=True):
    """Everything about a run that is not a result. What does not apply or is unknown is null.

    `status` is `interrupted` from the first byte on, until the run says otherwise: a run that was
    killed has it. `measures` are numbers only an emulation has, by name. `skip` iterations are left
    out of the steady state. `options` are further command-line options, as given.

    Of an emulation: `capabilities` is what `doctor` says of each thing it looks at, `clock_test`
    how late a real-time sleep was and how fine the clock, `calibration` what the machine carried
    just before and how exactly, `verdict` the same in words, `expected_wall_s` what
    `measures["wall_s"]` was thought to be, `engine_core` where the engine was pinned. `overload`
    says, a sentence each, where this machine did not keep up: the numbers of such a run are not
    those of the fabric. Empty: it did.

    `faults` are what the run was made to bear, as written (`testbed.files.faults` explains them),
    drawn from `fault_seed`; `fault_effects` what each did, of a failed run too. `fault_predicted`
    says whether the prediction bore them as well; false: it is that of a sound fabric.
    """

    format: Literal["fluxbed-run"] = FORMAT
    version: Literal[1] = VERSION
    run_id: str
    status: Status
    error: ErrorRecord | None = None
    origin: Literal["simulated", "emulated"]
    scheduler: str
    reference: bool = False
    created_utc: str
    ended_utc: str | None = None
    topology: str
    fabric: FabricRecord
    rank_to_node: list[Natural]
    expansion: ExpansionRecord
    iterations: Annotated[int, Meta(ge=1)]
    skip: Natural
    injection: Injection
    jitter: JitterRecord | None = None
    faults: list[str] = []
    fault_seed: int | None = None
    fault_effects: list[FaultEffect] | None = None
    fault_predicted: bool | None = None
    quantum_bytes: Natural = 0
    guard_ns: Natural | None = None
    gather_ns: Natural = 0
    lookahead_ns: Natural = 0
    versions: dict[str, str]
    kernel: str
    capabilities: list[str] | None = None
    clock_test: dict[str, Number] | None = None
    calibration: dict[str, Number] | None = None
    verdict: str | None = None
    expected_wall_s: float | None = None
    engine_core: int | None = None
    overload: list[str] | None = None
    dilation: float | None = None
    bytes_per_wall_byte: float | None = None
    tolerance_ns: Natural = 0
    measures: dict[str, Number] = {}
    options: dict[str, Any] = {}
    files: dict[str, str] = {}

    @classmethod
    def begin(
        cls,
        *,
        run_id: str,
        created_utc: str,
        origin: Literal["simulated", "emulated"],
        scheduler: str,
        fabric: Fabric,
        expansion: Expansion,
        iterations: int,
        skip: int,
        **known: Any,  # noqa: ANN401 (any further field)
    ) -> Manifest:
        """Describe a run that begins now; `known` are further fields by name."""
        return cls(
            run_id=run_id,
            created_utc=created_utc,
            status="interrupted",
            origin=origin,
            scheduler=scheduler,
            topology=fabric.name,
            fabric=FabricRecord.of(fabric),
            rank_to_node=list(expansion.rank_to_node),
            expansion=ExpansionRecord.of(expansion.options, expansion.sha256),
            iterations=iterations,
            skip=skip,
            injection=known.pop("injection", Injection()),
            versions=versions(),
            kernel=f"{platform.system()} {platform.release()}",
            **known,
        )


def versions() -> dict[str, str]:
    """Return the versions of fluxbed, Python and the packages that shape a result."""
    found = {"python": platform.python_version()}
    for name in ("fluxbed", *_PACKAGES):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # an optional one, or fluxbed used from its source
    return found


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the file's bytes, indented for people."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def decode_manifest(data: bytes, where: str) -> Manifest:
    """Decode a manifest; raises `InputError` when it is not one."""
    return decode_json(data, Manifest, where, "a fluxbed-run manifest, version 1")


def manifest_schema() -> bytes:
    """Write the JSON Schema of manifests."""
    return json_schema("The manifest of a run", "manifest", Manifest)
