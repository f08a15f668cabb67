"""Scenarios of simulated sites: budgets, partitions, groups, attacks and site tests."""
