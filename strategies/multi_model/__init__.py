"""Strategies with several models: clusters and local models."""
