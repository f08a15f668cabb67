"""Personal models: DP-pFedDSU's tables, with added controls."""
