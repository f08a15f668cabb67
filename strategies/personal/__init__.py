"""Strategies with a part of the model at each client."""
