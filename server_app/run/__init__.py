"""The rounds of a run: configure, exchange, aggregate, checkpoint, resume."""
