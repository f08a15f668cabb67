"""What `make bench` runs: ratios against named peers, taken in one run."""
