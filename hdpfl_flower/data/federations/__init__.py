"""Natural federations: tables of Python packages whose records lie at sites of their own."""
