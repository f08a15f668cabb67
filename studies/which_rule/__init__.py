"""Which rule to take: every weight rule on one battery of cases, and how far behind it falls."""
