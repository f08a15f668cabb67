"""Natural federations: strategies at real sites, against local and constant models."""
