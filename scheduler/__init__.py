"""fluxbed: when each circuit stands. Workloads, schedulers, their dispatcher, bounds and checks."""
