"""Scenarios of simulated sites: budgets, partitions, groups and site tests."""
