"""Noise variance of updates, estimated from the updates alone."""
