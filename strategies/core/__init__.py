"""Base class of all strategies, and its parts: sampling, exchange, validation, state."""
