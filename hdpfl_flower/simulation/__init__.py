"""What only a simulation draws: budgets, partitions, groups, attacks, tests for each site."""
