"""Shared parts of all studies: runs, kept results, tables."""
