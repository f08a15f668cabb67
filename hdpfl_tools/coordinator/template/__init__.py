"""Your data, model and strategy: modules of a ``hdpfl new`` project."""
