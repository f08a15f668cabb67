"""Doors for apps of others: one private training, a client's updates, weights by noise."""
