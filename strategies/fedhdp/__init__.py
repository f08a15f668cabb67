"""FedHDP: privacy levels, two-step averaging, adaptive clipping."""
