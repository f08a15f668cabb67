"""Personal models: what sharing is worth beside local training, and DP-pFedDSU's tables."""
