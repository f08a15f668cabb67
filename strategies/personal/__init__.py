"""Strategies that leave a part of the model, or an offset to it, at each client."""
