"""Federations in one process: comparison of strategies, attacks, workers."""
