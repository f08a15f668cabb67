"""Weights from estimated noise: Robust-HDP and its relatives."""
