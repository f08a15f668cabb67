"""Linear algebra of (n, d) matrices of updates."""
