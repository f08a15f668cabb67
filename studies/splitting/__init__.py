"""Operator splitting (thesis, chapter 2) on convex problems, float64, without DP."""
