"""Battery of all weight strategies, with each one's largest deficit."""
