"""Natural federations: package tables with records at real sites."""
