"""The coordinator: rounds, the in-process grid, and the command ``hdpfl``."""
