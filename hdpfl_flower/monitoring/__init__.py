"""Journal of a run and its Prometheus series."""
