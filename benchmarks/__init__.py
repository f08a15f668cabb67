"""Benchmarks of `make bench`: ratios against named peers in one run."""
