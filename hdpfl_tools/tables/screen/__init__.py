"""Findings about a site's records, for its own screen alone."""
