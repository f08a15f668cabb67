"""Engines of DP-SGD: clipped gradient sums of a batch, and the steps of a round."""
