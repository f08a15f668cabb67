"""Shared noise: secure sums of a fixed set of sites, with one noise for all of them."""
