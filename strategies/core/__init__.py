"""Base class of all strategies, with its parts."""
