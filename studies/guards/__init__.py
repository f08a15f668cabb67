"""Attacks by clients that lie, and guards against them."""
