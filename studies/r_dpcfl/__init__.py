"""R-DPCFL's tables."""
