"""Ledger checks."""
