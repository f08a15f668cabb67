"""Site: decode, plan, reserve, train, seal, encode; messages are untrusted."""
