"""Client clusters from noisy updates, and their validity."""
