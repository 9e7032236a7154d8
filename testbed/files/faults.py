"""Faults as people write them and manifests keep them: `stuck-dark:plane=0,port=3,at=2ms,for=1ms`.

| fault | must have | may have | what happens |
|---|---|---|---|
| stuck-dark | plane, port | at, for | the port passes no light, either way |
| lost-plane | plane | at, for | none of the plane's ports does |
| slow-plane | plane, rate | at, for | frames that begin meanwhile leave at that rate |
| paused-host | host, for | at | it computes and sends nothing; its card still receives |
| frame-loss | share | plane, port, at, for | so many of the frames arrive spoilt: thrown away |
| late-commands | mean | plane, dist, at, for | commands arrive later, in their order |
| late-lock | mean | plane, port, dist, at, for | receivers take longer than the delay to lock |

Times are virtual; `at` is 0 by default, and without `for` a fault lasts. Without `plane` or `port`
it concerns all of them; `port` is the one that sends (frame-loss) or receives (late-lock). `dist`
is `exponential` (cut off at ten times the mean), `uniform` (from 0 to twice the mean) or `fixed`.
Neither the controller nor the senders are told of darkness; late light they wait for.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from topologies.errors import UsageError
from topologies.registry import parse_spec
from topologies.spelling import meant
from topologies.units import format_bytes, format_duration, parse_duration_ns, parse_rate_bps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from testbed.files.summary import FaultEffect
    from topologies.fabric import Fabric

__all__ = [
    "KINDS",
    "Fault",
    "effect_sentence",
    "faulted_fabric",
    "kind_of",
    "lost_in_the_dark",
    "parse_fault",
    "parse_faults",
    "predictable",
]

_EXAMPLE: Final = "stuck-dark:plane=0,port=3,at=2ms,for=1ms"
_MOST_NUMBER: Final = 6  # digits


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault, in virtual time; `text` is how it was written.

    `plane`, `port` and `host` are None where it concerns all of them or has none, `for_ns` where it
    lasts. What a kind does not have is None.
    """

    kind: str
    text: str
    plane: int | None = None
    port: int | None = None
    host: int | None = None
    at_ns: int = 0
    for_ns: int | None = None
    rate_bps: int | None = None
    share: float | None = None
    mean_ns: int | None = None
    dist: str | None = None

    @property
    def until_ns(self) -> int | None:
        """When it is over; None for never."""
        return None if self.for_ns is None else self.at_ns + self.for_ns

    @property
    def whole_run(self) -> bool:
        """Whether it is there from the beginning to the end."""
        return self.at_ns == 0 and self.for_ns is None

    @property
    def most_late_ns(self) -> int:
        """The longest delay it draws; 0 where it delays nothing."""
        return round((self.mean_ns or 0) * _CUT[self.dist or "fixed"])


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_NUMBER):
        raise UsageError(f"{text!r}", "fault", "it must be a whole number from 0", "write 0")
    return int(text)


def _host(text: str) -> int:
    if (match := re.fullmatch(r"h([0-9]{1,6})", text)) is None:
        raise UsageError(f"{text!r} is no host", "fault", "they are h0, h1, ...", "write h0")
    return int(match[1])


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 < share < 1:
        why = "it must be above 0 and below 1"
        raise UsageError(f"a share of {text}", "fault", why, "write share=0.01")
    return share


_CUT: Final = {"fixed": 1.0, "uniform": 2.0, "exponential": 10.0}


def _dist(text: str) -> str:
    if text not in _CUT:
        why = f"the distributions are {', '.join(_CUT)}"
        raise UsageError(f"{text!r} is no distribution", "fault", why, "choose one of them")
    return text


_READERS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "plane": ("plane", _number),
    "port": ("port", _number),
    "host": ("host", _host),
    "at": ("at_ns", parse_duration_ns),
    "for": ("for_ns", parse_duration_ns),
    "rate": ("rate_bps", parse_rate_bps),
    "share": ("share", _share),
    "mean": ("mean_ns", parse_duration_ns),
    "dist": ("dist", _dist),
}
KINDS: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "stuck-dark": (("plane", "port"), ("at", "for")),
    "lost-plane": (("plane",), ("at", "for")),
    "slow-plane": (("plane", "rate"), ("at", "for")),
    "paused-host": (("host", "for"), ("at",)),
    "frame-loss": (("share",), ("plane", "port", "at", "for")),
    "late-commands": (("mean",), ("plane", "dist", "at", "for")),
    "late-lock": (("mean",), ("plane", "port", "dist", "at", "for")),
}
"""What a fault of each kind must say, and what it may say."""


def kind_of(text: str) -> str:
    """Return the kind of a fault as it is written.

    >>> kind_of("lost-plane:plane=1")
    'lost-plane'
    """
    return text.partition(":")[0].strip()


def _settings(spec: str, where: str) -> dict[str, str]:
    try:
        return parse_spec(spec, "fault")[1]
    except UsageError as error:
        raise UsageError(error.what, where, error.why, error.fix) from error


def parse_fault(text: str, fabric: Fabric) -> Fault:
    """Read one fault on `fabric`; raises `UsageError` naming what is wrong with it.

    >>> from topologies import rails
    >>> fault = parse_fault("lost-plane:plane=1,at=2ms", rails(nodes=4, planes=2))
    >>> fault.plane, fault.at_ns, fault.for_ns
    (1, 2000000, None)
    """
    kind, colon, rest = text.partition(":")
    kind = kind.strip()
    if kind not in KINDS:
        why = f"the faults are {', '.join(KINDS)}"
        fix = meant(kind, KINDS, f"write {_EXAMPLE}")
        raise UsageError(f"there is no fault {kind!r}", "--fault", why, fix)
    where = f"--fault {text}"
    given = _settings(f"{kind},{rest}", where) if colon and rest.strip() else {}
    needed, allowed = KINDS[kind]
    for key in given:
        if key not in (*needed, *allowed):
            why = f"{kind} has {', '.join((*needed, *allowed))}"
            raise UsageError(f"there is no {key!r}", where, why, "leave it out")
    for key in needed:
        if key not in given:
            why = f"{kind} needs {' and '.join(needed)}"
            raise UsageError(f"{key} is missing", where, why, f"add {key}=...")
    values: dict[str, Any] = {}
    for key, value in given.items():
        name, read = _READERS[key]
        try:
            values[name] = read(value)
        except UsageError as error:
            raise UsageError(error.what, where, error.why, error.fix) from error
    if kind in ("late-commands", "late-lock"):
        values.setdefault("dist", "exponential")
    fault = Fault(kind=kind, text=text, **values)
    _refuse_misfits(fault, fabric)
    return fault


def _refuse_misfits(fault: Fault, fabric: Fabric) -> None:
    """Raise `UsageError` where the fabric has no such plane, port or host, or nothing happens."""
    planes = fabric.planes
    number = fault.plane or 0
    plane = planes[min(number, len(planes) - 1)]
    concerned = planes if fault.plane is None else (plane,)
    hosts = fabric.nodes
    not_slower = fault.rate_bps is not None and not 0 < fault.rate_bps < plane.rate_bps
    optical = fault.kind not in ("paused-host", "slow-plane", "frame-loss")
    for wrong, what, why, fix in (
        (
            number >= len(planes),
            f"there is no plane {number}", f"they are 0 to {len(planes) - 1}", "name one of them",
        ),
        (
            fault.port is not None and fault.plane is None,
            "a port is given without its plane", "each plane numbers its own", "add plane=0",
        ),
        (
            (fault.port or 0) >= plane.ports,
            f"plane {number} has no port {fault.port}", f"it has {plane.ports}", "name one of them",
        ),
        (
            (fault.host or 0) >= hosts,
            f"there is no host h{fault.host}", f"they are h0 to h{hosts - 1}", "name one of them",
        ),
        (fault.for_ns == 0, "it lasts no time", "for is 0", "give it a time, or leave it out"),
        (fault.mean_ns == 0, "nothing is late", "the mean is 0", "give a mean"),
        (
            not_slower,
            "the plane is not slower", f"it has {plane.rate_bps} bit/s", "give a lower rate",
        ),
        (
            optical and any(each.kind != "ocs" for each in concerned),
            "a packet plane has no circuits", "this is a fault of circuits", "name another plane",
        ),
    ):  # fmt: skip
        if wrong:
            raise UsageError(what, f"--fault {fault.text}", why, fix)


def parse_faults(texts: Iterable[str], fabric: Fabric) -> tuple[Fault, ...]:
    """Read every fault of a run; raises `UsageError`."""
    return tuple(parse_fault(text, fabric) for text in texts)


def effect_sentence(effect: FaultEffect) -> str:
    """Say what a fault did.

    >>> from testbed.files.summary import FaultEffect
    >>> effect_sentence(FaultEffect(fault="frame-loss:share=0.1", frames_lost=2, frames_resent=3))
    'frame-loss:share=0.1: 2 frames (0 B) lost, 3 sent again'
    """
    said = []
    if effect.frames_lost or effect.frames_resent:
        size = format_bytes(effect.bytes_lost)
        said.append(f"{effect.frames_lost} frames ({size}) lost, {effect.frames_resent} sent again")
    if effect.delayed:
        total, most = map(format_duration, (effect.delay_ns, effect.delay_most_ns))
        said.append(f"{effect.delayed} times something was late, {total} in all, {most} at most")
    if kind_of(effect.fault) == "slow-plane":
        said.append("its frames left more slowly")
    return f"{effect.fault}: {'; '.join(said) or 'it struck nothing'}"


def lost_in_the_dark(effects: Iterable[FaultEffect]) -> int:
    """Return how many frames faults darkened.

    >>> from testbed.files.summary import FaultEffect
    >>> spoilt = FaultEffect(fault="frame-loss:share=0.1", frames_lost=2)
    >>> lost_in_the_dark([spoilt, FaultEffect(fault="lost-plane:plane=0", frames_lost=5)])
    5
    """
    return sum(
        effect.frames_lost
        for effect in effects
        if kind_of(effect.fault) in ("stuck-dark", "lost-plane")
    )


def predictable(faults: Iterable[Fault], *, timed: bool) -> bool:
    """Say whether a simulation on `faulted_fabric` has the same faults.

    Only what lasts all the run and is always alike becomes a property of the fabric. The slots of
    a timed program stay where they are however late its commands.
    """
    return all(
        fault.whole_run
        and (
            fault.kind == "slow-plane"
            or (fault.dist == "fixed" and fault.port is None and fault.kind == "late-lock")
            or (
                fault.dist == "fixed"
                and fault.kind == "late-commands"
                and fault.plane is None
                and not timed
            )
        )
        for fault in faults
    )


def faulted_fabric(fabric: Fabric, faults: Iterable[Fault]) -> Fabric:
    """Return `fabric` with faults that are `predictable` as its own properties."""
    for fault in faults:
        planes = list(fabric.planes)
        for number, plane in enumerate(planes):
            if fault.plane not in (None, number):
                continue
            if fault.rate_bps is not None:
                planes[number] = dataclasses.replace(plane, rate_bps=fault.rate_bps)
            elif fault.kind == "late-lock":
                later_ns = plane.delay_ns + (fault.mean_ns or 0)
                planes[number] = dataclasses.replace(plane, delay_ns=later_ns)
        control_ns = fabric.control_ns
        if fault.kind == "late-commands":
            control_ns += fault.mean_ns or 0
        fabric = dataclasses.replace(fabric, planes=tuple(planes), control_ns=control_ns)
    return fabric
