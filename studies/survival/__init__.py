"""Survival curves of a charged first message, beside the exact ones."""
