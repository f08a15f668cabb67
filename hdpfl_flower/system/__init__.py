"""Files, locks, paths and terminals."""
