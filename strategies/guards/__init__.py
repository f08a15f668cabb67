"""Guards against lying clients: bounds, proofs and content checks."""
