"""Attacks by lying clients, and guards against them."""
