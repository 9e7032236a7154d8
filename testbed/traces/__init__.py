"""Importers: one file per trace format, behind one protocol."""

from testbed.traces.loading import IMPORTERS, Importer, load_recordings, load_workload

__all__ = ["IMPORTERS", "Importer", "load_recordings", "load_workload"]
