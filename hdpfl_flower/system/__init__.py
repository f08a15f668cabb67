"""Files, paths and terminals."""
