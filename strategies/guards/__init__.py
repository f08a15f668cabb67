"""Bounds and evidence against clients that lie."""
