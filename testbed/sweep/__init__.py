"""Experiments: a grid of points, evaluated one by one wherever there is room, and their table."""

from testbed.sweep.experiment import Experiment, experiment_schema, read_experiment
from testbed.sweep.point import Point
from testbed.sweep.store import Store, read_table
from testbed.sweep.sweeping import Progress, sweep

__all__ = [
    "Experiment",
    "Point",
    "Progress",
    "Store",
    "experiment_schema",
    "read_experiment",
    "read_table",
    "sweep",
]
