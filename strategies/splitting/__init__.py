"""Operator splitting: FedProx, FedSplit, FedPi, FedRP and SCAFFOLD."""
