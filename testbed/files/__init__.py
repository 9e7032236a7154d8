"""The formats on disk: workloads, fabrics, plans and run directories."""
