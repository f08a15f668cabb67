"""Local training with DP-SGD, and its engines."""
