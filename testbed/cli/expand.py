"""`fluxbed expand`: the messages a workload sends over a fabric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from testbed.cli.convert import tell_losses
from testbed.cli.output import note
from testbed.cli.parameters import EXPANSION, IMPORT, TOPOLOGY, options, workload_argument

__all__ = ["command"]


@click.command("expand")
@workload_argument
@options(TOPOLOGY)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="Parquet file of the messages; their dependencies go beside it.",
)
@options(EXPANSION, IMPORT)
def command(workload: Path, topology: str, output: Path, **chosen: Any) -> None:  # noqa: ANN401
    """Write the messages of one iteration of WORKLOAD, and what each waits for.

    Example: fluxbed expand step.workload.jsonl -t rails,planes=2,delay=10us -o messages.parquet
    """
    from testbed.cli.pipeline import expansion_options, load, prepare
    from testbed.files.messages import write_messages
    from topologies.units import format_bytes

    job = prepare(load([workload], chosen), topology, expansion_options(chosen))
    graph = job.expansion.graph
    deps = write_messages(job.expansion, output)
    total = format_bytes(int(graph.size_bytes.sum()))
    note(f"{output}: {len(graph.messages)} messages, {total}; dependencies in {deps}")
    tell_losses(job.expansion.losses)
