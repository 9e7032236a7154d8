"""The schedulers, one per file, and the registry that finds them by name."""
