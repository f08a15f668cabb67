"""Plans, accounting, noise and private selection: what a site's guarantee rests on."""
