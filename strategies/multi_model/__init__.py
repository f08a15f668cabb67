"""Strategies that train more than one model: clusters and local models."""
