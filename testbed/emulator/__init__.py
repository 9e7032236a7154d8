"""The emulated fabric: Mininet hosts, the eBPF crossbar and the real-time engine."""
