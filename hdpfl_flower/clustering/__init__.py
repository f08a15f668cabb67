"""Clusters of clients, estimated from noisy updates, and what may be claimed of them."""
