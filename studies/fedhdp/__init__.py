"""FedHDP's tables."""
