"""The command line: one verb per file, imported when it is asked for.

Tables go to stdout and everything else to stderr. Exit codes: 0 ok, 1 the run failed, 2 usage, 3 a
check or the integrity of a run is not met, 4 the machine lacks something, 5 bad input file, 6
stalled, 130 interrupted after clean-up.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, Final

import click

from testbed.cli.working import abandoned
from topologies.errors import FluxbedError
from topologies.spelling import meant

__all__ = ["cli", "main"]

_VERBS: Final = {
    "doctor": "What this machine can and cannot do.",
    "inspect": "What is in any file we know.",
    "convert": "Any trace to a workload, or a workload to Chakra or GOAL.",
    "synth": "A training step made from a model's dimensions.",
    "expand": "The messages of a workload and their dependencies.",
    "plan": "A schedule, its bound, and whether it is proven optimal.",
    "check": "Validate a plan, or re-check a finished run from its files alone.",
    "simulate": "Predict what schedulers do to a workload.",
    "run": "The same on the emulated fabric, with real packets (root).",
    "compare": "Ratios between runs; predicted against measured.",
    "sweep": "A grid of simulate or run, resumable.",
    "figure": "A figure for a paper, from a sweep.",
    "report": "(Re)write the report of a run.",
    "clean": "Remove what interrupted runs left behind, and nothing else.",
    "topologies": "The topologies that exist.",
    "schedulers": "The schedulers that exist.",
}
INTERRUPTED: Final = 130


class _InterruptedError(Exception):
    """Ctrl-C; its text, if any, says what is left of what was done."""


class _Verbs(click.Group):
    """Finds a verb in the module of its name, so that `--help` imports nothing heavy."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        return list(_VERBS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the verb, or say which one was meant."""
        if args and not args[0].startswith("-") and args[0] not in _VERBS:
            fix = meant(args[0], _VERBS, f"choose one of {', '.join(_VERBS)}")
            ctx.fail(f"There is no verb {args[0]!r}: {fix}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 (click's signature)
        """Invoke the verb; click would answer Ctrl-C with an empty line."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interruption:
            raise _InterruptedError(*interruption.args) from interruption

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _VERBS:
            return None
        module = importlib.import_module(f"testbed.cli.{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Verbs"):
            formatter.write_dl(list(_VERBS.items()))


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="fluxbed", message="%(prog)s %(version)s")
def cli() -> None:
    """Replay LLM training over optical circuit switches: predicted, and measured on real packets.

    \b
    fluxbed simulate TRACE -t rails,planes=2,rate=800Gbps,delay=10us -s flux -s rotor-direct
    sudo fluxbed run TRACE -t rails,planes=2,rate=800Gbps,delay=10us -s flux -s rotor-direct
    """  # noqa: D301 (\b is click's mark for a block it must not re-wrap)


def main() -> None:
    """Run the command line and exit with the code its outcome has."""
    try:
        code = cli.main(prog_name="fluxbed", standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt, _InterruptedError) as interruption:
        said = str(interruption) or "nothing of it is left running"
        sys.stderr.write(f"fluxbed: interrupted; {said}\n")
        code = INTERRUPTED
        sys.stderr.flush()
        if abandoned():
            os._exit(code)  # or what the thread computes with would be taken from under it
    except click.ClickException as error:
        where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else ""
        sys.stderr.write(f"{where or 'fluxbed'}: {' '.join(error.format_message().split())}\n")
        code = error.exit_code
    except FluxbedError as error:
        sys.stderr.write(f"{error}\n")
        code = error.exit_code
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our stdout left: nothing more to say to it
        code = 0
    sys.exit(code if isinstance(code, int) else 0)
