"""The vocabulary and the mathematics of federated learning with private budgets.

No Flower (except ``wire.py``), no sockets, no globals.
"""
