"""Your data, model and strategy: the modules of a project that ``hdpfl new`` writes."""
