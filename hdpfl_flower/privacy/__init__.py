"""Plans, accounting, noise and private selection of a site's guarantee."""
