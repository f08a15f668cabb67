"""Worth of public weights under privacy."""
