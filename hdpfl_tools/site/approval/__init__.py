"""Approval of an app by the hash of its files."""
