"""Operator splitting (thesis, chapter 2) on convex problems, without DP and in float64."""
