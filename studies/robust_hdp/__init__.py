"""Robust-HDP's tables."""
