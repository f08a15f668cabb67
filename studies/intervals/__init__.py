"""Coverage of the intervals of coefficients, in simulated federations."""
