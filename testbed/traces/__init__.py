"""Importers: one file per trace format, behind one protocol."""
