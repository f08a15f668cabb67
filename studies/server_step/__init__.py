"""Studies of the server's step under DP."""
