"""Options that several verbs share, each defined once."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from testbed.cli.pipeline import parse_nic_buffer
from topologies.units import parse_bytes, parse_duration_ns, parse_rate_bps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = [
    "EXPANSION",
    "FAULTS",
    "IMPORT",
    "NIC",
    "OUTPUT",
    "PERTURBATION",
    "PLANNING",
    "PLAN_FILES",
    "SCHEDULERS",
    "TOPOLOGY",
    "TOPOLOGY_UNLESS_PLANNED",
    "Quantity",
    "options",
    "steady_state",
    "workload_argument",
]

if TYPE_CHECKING:
    _IntegerType = click.ParamType[int]
    _NumberType = click.ParamType[float]
else:
    _IntegerType = _NumberType = click.ParamType  # not generic before click 8.2

F = TypeVar("F", bound="Callable[..., Any]")


class Quantity(_IntegerType):
    """A number with a unit; `parse` refuses what is not one."""

    def __init__(self, name: str, parse: Callable[[str], int]) -> None:
        self.name = name
        self.parse = parse

    def convert(
        self,
        value: Any,  # noqa: ANN401 (click's signature)
        param: click.Parameter | None,  # noqa: ARG002
        ctx: click.Context | None,  # noqa: ARG002
    ) -> int:
        """Return the quantity in its smallest unit; raises `UsageError`."""
        return value if isinstance(value, int) else self.parse(value)


DURATION = Quantity("duration", parse_duration_ns)
SIZE = Quantity("size", parse_bytes)
RATE = Quantity("rate", parse_rate_bps)


def _split(_ctx: click.Context, _param: click.Parameter, value: str) -> int | str:
    if value == "planes":
        return value
    if not (value.isascii() and value.isdecimal() and int(value[:6]) > 0 and len(value) < 6):  # noqa: PLR2004 (five digits)
        message = f"{value!r} is neither a positive whole number nor 'planes'."
        raise click.BadParameter(message)
    return int(value)


def _nic_buffer(_ctx: click.Context, _param: click.Parameter, value: str) -> int | None:
    return parse_nic_buffer(value)


def _pairs(_ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for item in value:
        key, equals, setting = item.partition("=")
        if not (key and equals and setting):
            message = f"{item!r} is not {param.metavar}."
            raise click.BadParameter(message)
        pairs[key] = setting
    return pairs


def _sizes(
    context: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> dict[str, int]:
    return {key: parse_bytes(size) for key, size in _pairs(context, param, value).items()}


class _Spread(_NumberType):
    """A part of one, written 0.1 or 10%."""

    name = "spread"

    def convert(
        self,
        value: Any,  # noqa: ANN401 (click's signature)
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        """Return it as a number; `Perturbation` knows which ones can be."""
        if isinstance(value, float):
            return value
        text = str(value).strip()
        try:
            number = float(text.removesuffix("%"))
        except ValueError:
            self.fail(f"{value!r} is no part of one: write 0.1 or 10%.", param, ctx)
        if text.endswith("%"):
            return number / 100
        if number > 1:
            self.fail(
                f"{value!r} could be percent or times: write {text}% or {100 * number:g}%.",
                param,
                ctx,
            )
        return number


class _Factor(_NumberType):
    """A positive number."""

    name = "factor"

    def convert(
        self,
        value: Any,  # noqa: ANN401 (click's signature)
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        """Return it; neither what is no number nor what has no end will do."""
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not 0 < number < math.inf:
            self.fail(f"{value!r} is not a positive number: write 0.5 or 2.", param, ctx)
        return number


def _stragglers(
    _context: click.Context, _param: click.Parameter, value: tuple[str, ...]
) -> dict[int, float]:
    from testbed.cli.pipeline import parse_stragglers

    return parse_stragglers(",".join(value))


def _completed(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """Return what a shell may put for `incomplete`: one of `names`, or else a file."""
    found = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


def _complete_topology(
    _ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from topologies.registry import BUILDERS

    return _completed(BUILDERS, incomplete)


def _complete_scheduler(
    _ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from scheduler.policies.registry import BUILT_IN

    return _completed(BUILT_IN, incomplete)


IMPORT = (
    click.option(
        "--from", "importer", metavar="FORMAT", help="Read as this, or my_trace.py:Class."
    ),
    click.option("--ranks", metavar="LIST", help="Keep only these ranks, as 0-3,8 or 0-6:2."),
    click.option(
        "--group",
        "groups",
        multiple=True,
        callback=_pairs,
        metavar="CALLS=RANKS",
        help="Who is in a collective whose group the trace does not say, as all_to_all=0-15; CALLS "
        "is a group's name, KIND or KIND:BYTES.",
    ),
    click.option("--window", type=int, help="Which profiler window of each rank, from 0."),
    click.option("--strict", is_flag=True, help="Refuse a trace when anything would be lost."),
    click.option(
        "--compute-scale",
        type=_Factor(),
        help="Multiply every captured compute time by this.",
    ),
)


FAULTS = (
    click.option(
        "--fault",
        "faults",
        multiple=True,
        metavar="FAULT",
        help="As stuck-dark:plane=0,port=3,at=2ms,for=1ms; may be repeated. All are listed below.",
    ),
)


def _topology(*, required: bool, text: str) -> Callable[[F], F]:
    return click.option(
        "-t",
        "--topology",
        required=required,
        metavar="TOPOLOGY",
        help=text,
        shell_complete=_complete_topology,
    )


_SPELLING = "As rails,nodes=8,planes=2,rate=800Gbps,delay=100us, or a TOML file."
TOPOLOGY = (_topology(required=True, text=_SPELLING),)
TOPOLOGY_UNLESS_PLANNED = (_topology(required=False, text=f"{_SPELLING}  [default: the plan's]"),)
EXPANSION = (
    click.option(
        "--collective",
        "collectives",
        multiple=True,
        callback=_pairs,
        metavar="KIND=ALGORITHM",
        help="As all_reduce=ring; may be repeated.",
    ),
    click.option("--channels", type=click.IntRange(1, 64), default=1, show_default=True),
    click.option(
        "--chunk", "chunk_bytes", type=SIZE, help="Pipeline rings in chunks of this size."
    ),
    click.option(
        "--split",
        default="1",
        show_default=True,
        callback=_split,
        metavar="planes|N",
        help="Cut every message into this many.",
    ),
    click.option(
        "--protocol",
        type=click.Choice(["Simple", "LL", "LL128"], case_sensitive=False),
        default="Simple",
        show_default=True,
        help="NCCL protocol, for its bytes on the wire.",
    ),
    click.option("--eager-send", is_flag=True, help="Send before the receiver has entered."),
    click.option(
        "--reduce-bw", "reduce_bw_bps", type=RATE, help="Reductions take time, at this rate."
    ),
    click.option(
        "--scale-up",
        "scale_up_bps",
        type=RATE,
        help="Transfers inside a server take time, at this rate.",
    ),
    click.option(
        "--size",
        "sizes",
        multiple=True,
        callback=_sizes,
        metavar="KIND=SIZE",
        help="What each rank puts into a collective whose size the trace does not say.",
    ),
    click.option(
        "--iteration", type=int, help="Which captured iteration to replay.  [default: last]"
    ),
)
PERTURBATION = (
    click.option(
        "--jitter",
        type=_Spread(),
        default=0.0,
        metavar="SPREAD",
        help="Computations last longer or shorter by chance: 10% is the standard deviation.",
    ),
    click.option("--jitter-seed", type=click.IntRange(0), default=0, help="What chance draws."),
    click.option(
        "--straggler",
        "stragglers",
        multiple=True,
        callback=_stragglers,
        metavar="RANK=FACTOR",
        help="All computations of a rank last so many times as long; may be repeated.",
    ),
    click.option(
        "--skew",
        type=_Spread(),
        default=0.0,
        metavar="SPREAD",
        help="Shift the bytes of every all_to_all to popular ranks, anew in each iteration.",
    ),
)
REPLANNING = (
    click.option(
        "--replan",
        type=_Spread(),
        metavar="SHARE",
        help="Also say what planning anew would bring: where a rank's computing drifts by that.",
    ),
    click.option(
        "--replan-time",
        "replan_ns",
        type=DURATION,
        help="What each new plan takes of the workload's time.  [default: --budget]",
    ),
)
NIC = (
    click.option(
        "--nic-buffer",
        "nic_buffer_bytes",
        default="unlimited",
        show_default=True,
        callback=_nic_buffer,
        metavar="SIZE",
        help="How much of its own messages each NIC holds; messages wait for room in it.",
    ),
)
PLAN_FILES = (
    click.option(
        "-p",
        "--plan",
        "plans",
        multiple=True,
        type=click.Path(path_type=Path, dir_okay=False),
        help="Also execute this plan; may be repeated.",
    ),
)
SCHEDULERS = (
    click.option(
        "-s",
        "--scheduler",
        "schedulers",
        multiple=True,
        metavar="SCHEDULER",
        help="A name[,key=value], or my_flux.py:Class; may be repeated.",
        shell_complete=_complete_scheduler,
    ),
)
PLANNING = (
    click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True),
    click.option(
        "--budget",
        "budget_ns",
        type=DURATION,
        default="1s",
        show_default=True,
        help="How long a scheduler may think.",
    ),
    click.option(
        "--lookahead",
        "lookahead_ns",
        type=DURATION,
        default="0",
        help="Request circuits this long before a predicted end.",
    ),
)
OUTPUT = (
    click.option(
        "-o",
        "--output",
        type=click.Path(path_type=Path),
        help="Directory to make; never overwritten.  [default: runs/<utc>-<scheduler>-<hash>]",
    ),
)


def options(*groups: Sequence[Callable[[F], F]]) -> Callable[[F], F]:
    """Apply groups of options in the order in which help shows them."""

    def decorate(function: F) -> F:
        for option in reversed([option for group in groups for option in group]):
            function = option(function)
        return function

    return decorate


def steady_state(iterations: int, skip: int) -> tuple[Callable[[F], F], ...]:
    """Return the options that say which iterations are measured, with these defaults."""
    return (
        click.option(
            "-n",
            "--iterations",
            type=click.IntRange(2, 10_000),
            default=iterations,
            show_default=True,
            help="Iterations to execute.",
        ),
        click.option(
            "--skip",
            type=click.IntRange(1),
            default=skip,
            show_default=True,
            help="Iterations to leave out of the steady state.",
        ),
    )


workload_argument = click.argument("workload", type=click.Path(path_type=Path))
