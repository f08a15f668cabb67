"""The journal of a run and its Prometheus series."""
