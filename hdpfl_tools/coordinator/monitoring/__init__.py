"""Prometheus series of a run."""
