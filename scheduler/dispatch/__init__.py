"""The compiled dispatcher and the simulator that drives it on a virtual clock."""
