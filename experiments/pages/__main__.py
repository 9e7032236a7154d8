"""`python -m experiments.pages SWEEP...`: table, page and figures of finished sweeps."""

from __future__ import annotations

from pathlib import Path

import click

from experiments.pages.page import page_of
from testbed.sweep import read_experiment, read_table
from testbed.sweep.figures import draw_figure
from topologies.errors import FluxbedError

ROOT = Path(__file__).resolve().parents[2]
PLACES = ["run"]  # columns that name directories of the sweep


@click.command()
@click.argument("sweeps", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
def main(sweeps: tuple[Path, ...]) -> None:
    """Write table, page and figures of SWEEPS, directories named after their experiments."""
    for sweep in sweeps:
        name = sweep.resolve().name
        path = ROOT / "experiments" / f"{name}.toml"
        try:
            experiment = read_experiment(path)
            frame = read_table(sweep).drop(PLACES, strict=False)
            frame.write_parquet(ROOT / "docs" / "results" / f"{name}.parquet", compression="zstd")
            for spec in experiment.figures:
                draw_figure(frame, spec, ROOT / "docs" / "figures" / f"{name}-{spec.name}.svg")
            page = page_of(name, experiment, experiment.points(path), frame)
        except FluxbedError as error:
            raise click.ClickException(str(error)) from error
        (ROOT / "docs" / "results" / f"{name}.md").write_text(page, encoding="utf-8")
        click.echo(f"docs/results/{name}.md: {len(frame)} points")


if __name__ == "__main__":
    main()
