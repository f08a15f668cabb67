"""Flower app whose clients have privacy of their own."""
