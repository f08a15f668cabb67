"""What all studies share: runs, kept results, tables."""
