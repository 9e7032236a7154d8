"""The plan file: a program, what it was made for, by whom, and what it promises.

JSON, `docs/schemas/plan.schema.json`. `program` is one of three kinds. In an ordered one every
plane is a list of entries `[src_port, dst_port, [message ids]]`; on an all-stop plane it is a list
of matchings, each a list of such entries that stand together: `[[[src, dst, [ids]], ...], ...]`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from scheduler.model.options import ExpansionOptions
from scheduler.model.program import Entry, OrderedProgram, ReactiveProgram, Slot, TimedProgram
from testbed.files.codec import decode_json, json_schema, read_bytes, write_chunks
from testbed.files.fabric import FabricRecord, Natural
from testbed.files.workload import encode_workload
from topologies.errors import FluxbedError, InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scheduler.model.expansion import Expansion
    from scheduler.model.program import Program
    from scheduler.model.workload import Workload
    from scheduler.policies.base import Scheduler
    from topologies import Fabric

__all__ = [
    "FORMAT",
    "VERSION",
    "ExpansionRecord",
    "Plan",
    "Prediction",
    "SchedulerRecord",
    "decode_plan",
    "encode_plan",
    "plan_schema",
    "read_plan",
    "workload_sha256",
    "write_plan",
]

FORMAT: Final = "fluxbed-plan"
VERSION: Final = 1

Port: TypeAlias = Annotated[int, Meta(ge=0, lt=2**31)]
_Entry: TypeAlias = tuple[Port, Port, list[Natural]]
_Option: TypeAlias = bool | int | float | str | None


class Prediction(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What the planner promises; null where it promises nothing.

    `solver_status` is what an exact solver said of its answer, `gap` how far the iteration is above
    the best bound, 0.01 for 1 %.
    """

    iteration_ns: float | None = None
    lower_bound_ns: float | None = None
    proven_optimal: bool | None = None
    solver_status: str | None = None
    gap: float | None = None


class SchedulerRecord(Struct, forbid_unknown_fields=True, kw_only=True):
    """Who made the plan. `source_sha256` is of the file that defines the scheduler."""

    name: str
    version: str
    params: dict[str, _Option]
    source_sha256: str | None

    @classmethod
    def of(cls, scheduler: Scheduler) -> SchedulerRecord:
        """Describe `scheduler` and hash its source, where it has a file."""
        import inspect

        try:
            source = inspect.getsourcefile(type(scheduler))
        except TypeError:  # made in a session: there is no file
            source = None
        path = Path(source) if source else None
        known = path is not None and path.is_file()
        return cls(
            name=scheduler.name,
            version=scheduler.version,
            params=dict(scheduler.params),
            source_sha256=hashlib.sha256(path.read_bytes()).hexdigest() if path and known else None,
        )


class ExpansionRecord(Struct, forbid_unknown_fields=True, kw_only=True):
    """The choices of an expansion and the hash of the messages they gave."""

    collectives: dict[str, str]
    channels: Natural
    chunk: Natural | None
    split: Natural | str
    protocol: str
    eager_send: bool
    reduce_bw_bps: Natural | None
    scale_up_bps: Natural | None
    iteration: Natural | None
    sizes: dict[str, Natural]
    sha256: str

    @classmethod
    def of(cls, options: ExpansionOptions, sha256: str) -> ExpansionRecord:
        """Describe the options that gave messages of this hash."""
        return cls(
            collectives=dict(options.collectives),
            channels=options.channels,
            chunk=options.chunk_bytes,
            split=options.split,
            protocol=options.protocol,
            eager_send=options.eager_send,
            reduce_bw_bps=options.reduce_bw_bps,
            scale_up_bps=options.scale_up_bps,
            iteration=options.iteration,
            sizes=dict(options.sizes),
            sha256=sha256,
        )

    def options(self, where: str) -> ExpansionOptions:
        """Return the options; raises `InputError` naming the file for a choice that is none."""
        try:
            return ExpansionOptions(
                collectives=self.collectives,
                channels=self.channels,
                chunk_bytes=self.chunk,
                split=self.split,
                protocol=self.protocol,
                eager_send=self.eager_send,
                reduce_bw_bps=self.reduce_bw_bps,
                scale_up_bps=self.scale_up_bps,
                iteration=self.iteration,
                sizes=self.sizes,
            )
        except FluxbedError as error:
            raise InputError(error.what, f"{where} {error.where}", error.why, error.fix) from error


_ENTRY_SCHEMA: Final = {
    "type": "array",
    "prefixItems": [
        {"type": "integer", "minimum": 0},
        {"type": "integer", "minimum": 0},
        {"type": "array", "items": {"type": "integer", "minimum": 0}},
    ],
    "items": False,
    "minItems": 3,
}
_ORDERED_SCHEMA: Final = {
    "description": "[src_port, dst_port, [message ids]], or on an all-stop plane lists of those",
    "anyOf": [
        {"type": "array", "items": _ENTRY_SCHEMA},
        {"type": "array", "items": {"type": "array", "items": _ENTRY_SCHEMA, "minItems": 1}},
    ],
}


class _Ordered(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="ordered"):
    planes: list[Annotated[msgspec.Raw, Meta(extra_json_schema=_ORDERED_SCHEMA)]]


class _Timed(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="timed"):
    period_ns: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    phase_ns: Natural
    guard_ns: Natural
    routing: Literal["direct", "vlb", "rotorlb"]
    partial: bool
    planes: list[list[tuple[Natural, list[Annotated[int, Meta(ge=-1, lt=2**31)]]]]]


class _Reactive(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="reactive"):
    policy: str
    params: dict[str, str]


class _PlanRecord(Struct, forbid_unknown_fields=True, kw_only=True):
    format: Literal["fluxbed-plan"]
    version: Literal[1]
    fabric: FabricRecord
    rank_to_node: list[Natural]
    workload_sha256: str
    expansion: ExpansionRecord
    scheduler: SchedulerRecord
    seed: int
    budget_s: Annotated[float, Meta(ge=0)]
    initial_circuits: list[tuple[Port, Port, Port]]
    program: _Ordered | _Timed | _Reactive
    predicted: Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A program with its provenance: everything needed to execute, check or repeat it.

    `expansion_sha256` identifies the messages whose ids the program lists, `workload_sha256` the
    workload they came from (see `workload_sha256`).
    """

    fabric: Fabric
    rank_to_node: tuple[int, ...]
    workload_sha256: str
    options: ExpansionOptions
    expansion_sha256: str
    scheduler: SchedulerRecord
    program: Program
    seed: int = 0
    budget_s: float = 1.0
    predicted: Prediction = field(default_factory=Prediction)

    @classmethod
    def of(
        cls,
        program: Program,
        *,
        scheduler: Scheduler,
        fabric: Fabric,
        workload_sha256: str,
        expansion: Expansion,
        seed: int = 0,
        budget_s: float = 1.0,
        predicted: Prediction | None = None,
    ) -> Plan:
        """Put a planner's answer together with what it was asked."""
        return cls(
            fabric=fabric,
            rank_to_node=expansion.rank_to_node,
            workload_sha256=workload_sha256,
            options=expansion.options,
            expansion_sha256=expansion.sha256,
            scheduler=SchedulerRecord.of(scheduler),
            program=program,
            seed=seed,
            budget_s=budget_s,
            predicted=predicted or Prediction(),
        )


def workload_sha256(workload: Workload) -> str:
    """Hash a workload as its uncompressed file's bytes, whatever it was read from."""
    digest = hashlib.sha256()
    for line in encode_workload(workload):
        digest.update(line)
    return digest.hexdigest()


def plan_schema() -> bytes:
    """Write the JSON Schema of plan files."""
    return json_schema("A plan: a program and its provenance", "plan", _PlanRecord)


# --- writing


def _ordered(program: OrderedProgram, fabric: Fabric) -> _Ordered:
    planes: list[msgspec.Raw] = []
    for number, plane in enumerate(fabric.planes):
        written: list[_Entry] | list[list[_Entry]]
        entries = [(src, dst, list(ids)) for src, dst, ids in program.entries(number)]
        if plane.all_stop:
            numbers = program.matching[program.plane == number].tolist()
            grouped = groupby(zip(numbers, entries, strict=True), key=lambda pair: pair[0])
            written = [[entry for _, entry in group] for _, group in grouped]
        else:
            written = entries
        planes.append(msgspec.Raw(msgspec.json.encode(written)))
    return _Ordered(planes=planes)


def _program(program: Program, fabric: Fabric) -> _Ordered | _Timed | _Reactive:
    if isinstance(program, OrderedProgram):
        return _ordered(program, fabric)
    if isinstance(program, TimedProgram):
        return _Timed(
            period_ns=program.period_ns,
            phase_ns=program.phase_ns,
            guard_ns=program.guard_ns,
            routing=program.routing,
            partial=program.partial,
            planes=[
                [(slot.offset_ns, list(slot.dst_ports)) for slot in slots]
                for slots in program.planes
            ],
        )
    return _Reactive(policy=program.policy, params=dict(program.params))


def encode_plan(plan: Plan) -> bytes:
    """Return the file's bytes; equal plans give equal bytes."""
    initial: Sequence[tuple[int, int, int]] = ()
    if isinstance(plan.program, OrderedProgram):
        initial = plan.program.initial_circuits
    record = _PlanRecord(
        format=FORMAT,
        version=VERSION,
        fabric=FabricRecord.of(plan.fabric),
        rank_to_node=list(plan.rank_to_node),
        workload_sha256=plan.workload_sha256,
        expansion=ExpansionRecord.of(plan.options, plan.expansion_sha256),
        scheduler=plan.scheduler,
        seed=plan.seed,
        budget_s=plan.budget_s,
        initial_circuits=list(initial),
        program=_program(plan.program, plan.fabric),
        predicted=plan.predicted,
    )
    return msgspec.json.encode(record) + b"\n"


def write_plan(plan: Plan, path: Path | str) -> None:
    """Write `path`, compressed as its name ends. Raises `UsageError` when it cannot be written."""
    write_chunks(Path(path), [encode_plan(plan)])


# --- reading


def decode_plan(data: bytes, where: str) -> Plan:
    """Decode a plan; `where` names its file in the `InputError` raised when it is not one.

    Ports outside their plane and programs of the wrong shape are refused here; whether the plan
    suits its workload is for `scheduler.check.check_plan` to say.
    """
    record = decode_json(data, _PlanRecord, where, "a fluxbed-plan, version 1")
    fabric = record.fabric.fabric(where)
    for rank, node in enumerate(record.rank_to_node):
        if node >= fabric.nodes:
            why = f"the nodes are 0 to {fabric.nodes - 1}"
            raise InputError(f"rank {rank} is on node {node}", where, why, "correct rank_to_node")
    return Plan(
        fabric=fabric,
        rank_to_node=tuple(record.rank_to_node),
        workload_sha256=record.workload_sha256,
        options=record.expansion.options(where),
        expansion_sha256=record.expansion.sha256,
        scheduler=record.scheduler,
        program=_decoded_program(record, fabric, where),
        seed=record.seed,
        budget_s=record.budget_s,
        predicted=record.predicted,
    )


def read_plan(path: Path | str) -> Plan:
    """Read a plan file, compressed or not. Raises `InputError` as `decode_plan`."""
    return decode_plan(read_bytes(Path(path)), str(path))


def _decoded_program(record: _PlanRecord, fabric: Fabric, where: str) -> Program:
    program = record.program
    if isinstance(program, _Reactive):
        return _decoded_reactive(program, record.scheduler.params, where)
    if len(program.planes) != len(fabric.planes):
        what = f"the program has {len(program.planes)} planes"
        why = f"the fabric has {len(fabric.planes)}"
        raise InputError(what, where, why, "plan for this fabric")
    if isinstance(program, _Timed):
        _check_slots(program, fabric, where)
        return TimedProgram(
            period_ns=program.period_ns,
            phase_ns=program.phase_ns,
            guard_ns=program.guard_ns,
            routing=program.routing,
            partial=program.partial,
            planes=tuple(
                tuple(Slot(offset, tuple(ports)) for offset, ports in slots)
                for slots in program.planes
            ),
        )
    lists: list[list[Entry]] = []
    matchings: list[list[int]] = []
    for number, (written, plane) in enumerate(zip(program.planes, fabric.planes, strict=True)):
        numbered = _numbered(written, f"{where} plane {number}", all_stop=plane.all_stop)
        matchings.append([index for index, _ in numbered])
        lists.append([Entry(src, dst, tuple(ids)) for _, (src, dst, ids) in numbered])
        circuits = [(entry.src_port, entry.dst_port) for entry in lists[-1]]
        circuits += [(src, dst) for at, src, dst in record.initial_circuits if at == number]
        for src, dst in circuits:
            if max(src, dst) >= plane.ports:
                what = f"a circuit joins ports {src} and {dst}"
                why = f"the ports are 0 to {plane.ports - 1}"
                raise InputError(what, f"{where} plane {number}", why, "correct the plan")
    for at, _, _ in record.initial_circuits:
        if at >= len(fabric.planes):
            why = f"the planes are 0 to {len(fabric.planes) - 1}"
            raise InputError(f"a circuit stands on plane {at}", where, why, "correct the plan")
    return OrderedProgram.from_entries(lists, record.initial_circuits, matchings)


def _numbered(written: msgspec.Raw, where: str, *, all_stop: bool) -> list[tuple[int, _Entry]]:
    """Number a plane's entries by matching; where it is not all-stop each is its own."""
    if all_stop:
        matchings = decode_json(written, list[list[_Entry]], where, "a list of matchings")
        return [(index, entry) for index, matching in enumerate(matchings) for entry in matching]
    return list(enumerate(decode_json(written, list[_Entry], where, "a list of entries")))


def _check_slots(program: _Timed, fabric: Fabric, where: str) -> None:
    if program.phase_ns >= program.period_ns:
        what, why = f"phase_ns is {program.phase_ns}", f"the period is {program.period_ns} ns"
        raise InputError(what, where, why, "give a phase below the period")
    for number, (slots, plane) in enumerate(zip(program.planes, fabric.planes, strict=True)):
        place = f"{where} plane {number}"
        offsets = [offset for offset, _ in slots]
        if offsets != sorted(set(offsets)) or (offsets and offsets[-1] >= program.period_ns):
            why = "they rise and stay below the period"
            raise InputError(f"the slots' offsets are {offsets}", place, why, "correct them")
        for offset, ports in slots:
            if len(ports) != plane.ports or max(ports, default=0) >= plane.ports:
                what = f"the slot at {offset} ns joins {len(ports)} ports, up to {max(ports)}"
                why = f"the plane has ports 0 to {plane.ports - 1}"
                raise InputError(what, place, why, "correct the slot")


def _decoded_reactive(
    program: _Reactive, params: Mapping[str, _Option], where: str
) -> ReactiveProgram:
    """Find the policy among the schedulers of this machine and give it the plan's options."""
    from scheduler.policies.base import Reactive
    from scheduler.policies.registry import find

    try:
        kind = type(find(program.policy))
        found = kind(**params)
    except (FluxbedError, TypeError) as error:
        why = f"this machine has no such scheduler: {error}"
        raise InputError(f"its policy is {program.policy!r}", where, why, "install it") from error
    if not isinstance(found, Reactive):
        why = "that scheduler plans ahead"
        raise InputError(f"its policy is {program.policy!r}", where, why, "correct the plan")
    return ReactiveProgram(
        policy=program.policy,
        function=found.function(),
        params=program.params,
        gather_ns=found.gather_ns,
    )
