"""Weights of a round's updates: by records, by estimated noise, by least error."""
