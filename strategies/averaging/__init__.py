"""Weighted averages whose weights need no updates: FedAvg, WeiAvg, minimum, Ditto."""
