"""fluxbed: the testbed: traces in, emulated and simulated runs, files, reports, commands."""
