"""Shared noise against noise of each site alone, and against pooled records."""
