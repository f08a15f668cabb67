"""Records from a site's own files or from a named data set."""
