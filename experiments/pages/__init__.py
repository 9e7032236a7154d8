"""The pages of docs/results, made from the tables of sweeps: no number on them is typed.

    python -m experiments.pages runs/flux-headline ...

writes docs/results/NAME.parquet and NAME.md, and the experiment's figures to docs/figures.
"""

from experiments.pages.page import page_of

__all__ = ["page_of"]
