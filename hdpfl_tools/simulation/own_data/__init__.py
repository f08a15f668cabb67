"""User data sets for simulations."""
