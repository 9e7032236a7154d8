"""`fluxbed convert`: any trace to a workload file, or a workload to what other tools read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from testbed.cli.output import note
from testbed.cli.parameters import EXPANSION, IMPORT, options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scheduler.model.workload import Loss, Workload

__all__ = ["command"]


@click.command("convert")
@click.argument("trace", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="A .workload.jsonl[.gz|.zst] file; for chakra a directory, for goal a file.",
)
@click.option(
    "--to",
    "target",
    type=click.Choice(["workload", "chakra", "goal"]),
    default="workload",
    show_default=True,
    help="chakra: one execution trace a rank, for ASTRA-sim; goal: messages, for LogGOPSim.",
)
@options(IMPORT, EXPANSION)
def command(trace: tuple[Path, ...], output: Path, target: str, **chosen: Any) -> None:  # noqa: ANN401
    """Read TRACE (files, archives or directories of all ranks) and write it as one workload.

    Example: fluxbed convert examples/traces/llama-tp4-dp2 -o llama.workload.jsonl.gz
    """
    from testbed.cli.pipeline import load

    workload = load(trace, chosen)
    if target == "goal":
        _write_goal(workload, output, chosen)
    elif target == "chakra":
        from testbed.traces.export_chakra import export_chakra

        note(f"{output}: {len(export_chakra(workload, output))} files")
    else:
        from testbed.files.workload import write_workload

        write_workload(workload, output)
        note(f"{output}: {workload.world} ranks, {len(workload.operations)} operations")
    tell_losses(workload.losses)


def _write_goal(workload: Workload, output: Path, chosen: Mapping[str, Any]) -> None:
    from testbed.cli.pipeline import expansion_options, prepare
    from testbed.traces.export_goal import export_goal
    from topologies import rails

    job = prepare(workload, rails(nodes=max(workload.world, 2)), expansion_options(chosen))
    export_goal(job.expansion, output)
    note(f"{output}: {len(job.expansion.graph.messages)} messages")
    tell_losses(job.expansion.losses)


def tell_losses(losses: Sequence[Loss]) -> None:
    """Tell the user what was dropped or inferred on the way."""
    for loss in losses:
        note(f"  {loss.what}: {loss.count}" + (f", as {loss.example}" if loss.example else ""))
