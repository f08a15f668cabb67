"""Server steps: one module per step."""
