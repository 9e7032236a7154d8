"""`fluxbed synth`: a training step made from a model's dimensions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from testbed.cli.output import note
from testbed.cli.parameters import SIZE

__all__ = ["command"]

_COUNT = click.IntRange(1)


@click.command("synth")
@click.argument("model")
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="Workload file to write: .workload.jsonl, also with .gz or .zst.",
)
@click.option("--tp", type=_COUNT, default=1, help="Tensor-parallel ranks.")
@click.option("--pp", type=_COUNT, default=1, help="Pipeline stages.")
@click.option("--dp", type=_COUNT, default=1, help="Data-parallel ranks.")
@click.option("--ep", type=_COUNT, default=1, help="Expert-parallel ranks.")
@click.option("--cp", type=_COUNT, default=1, help="Context-parallel ranks.")
@click.option("--layers", type=_COUNT, help="Train only so many layers.  [default: all]")
@click.option("--seq", type=_COUNT, default=8192, show_default=True, help="Tokens of a sample.")
@click.option("--micro-batch", type=_COUNT, default=1, show_default=True)
@click.option("--micro-batches", type=_COUNT, help="[default: twice the stages]")
@click.option("--gpu", default="A100", show_default=True, help="A100, H100, H200 or B200.")
@click.option(
    "--mfu",
    type=click.FloatRange(0, 1, min_open=True),
    help="Model FLOPs utilisation.  [default: by roofline]",
)
@click.option("--sequence-parallel/--no-sequence-parallel", default=True, show_default=True)
@click.option(
    "--regather/--no-regather",
    default=True,
    show_default=True,
    help="Gather inputs again for weight gradients, as Megatron-LM does.",
)
@click.option(
    "--schedule",
    default="1f1b",
    show_default=True,
    metavar="1f1b|interleaved|zero-bubble|FILE.csv",
    help="A .csv as PyTorch writes it also decides --pp and --micro-batches.",
)
@click.option("--virtual-stages", type=_COUNT, default=1, show_default=True)
@click.option("--zero", type=click.IntRange(0, 3), default=0, show_default=True, help="ZeRO stage.")
@click.option("--bucket", "bucket_bytes", type=SIZE, help="Reduce gradients in such buckets.")
@click.option("--overlap/--no-overlap", default=True, show_default=True)
@click.option(
    "--recompute",
    type=click.Choice(["none", "selective", "full"]),
    default="none",
    show_default=True,
)
@click.option(
    "--embeddings",
    type=click.Choice(["sharded", "tied", "replicated", "omitted"]),
    help="[default: as the model]",
)
@click.option("--expert-skew", type=click.FloatRange(0), default=0.0, show_default=True)
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True)
def command(model: str, output: Path, **recipe: Any) -> None:  # noqa: ANN401 (options)
    """Make one training step of MODEL (llama3-8b, mixtral-8x7b, ..., or a TOML of dimensions).

    Example: fluxbed synth llama3-8b --tp 4 --dp 2 --layers 1 --mfu 0.5 -o step.workload.jsonl
    """
    from testbed.files.workload import write_workload
    from testbed.synth import synth

    workload = synth(model, **recipe)
    write_workload(workload, output)
    note(f"{output}: {workload.world} ranks, {len(workload.operations)} operations")
