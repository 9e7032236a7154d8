"""The model that simulator and emulator both obey: workloads, messages, programs, timelines."""
