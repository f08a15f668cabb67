"""A user's own data set in a simulation."""
