"""Simulations: sites with drawn terms and seeded noise, in this process or under Ray."""
